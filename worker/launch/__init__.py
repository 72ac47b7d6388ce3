"""How an attempt is started on this host, and what outlives whom."""
