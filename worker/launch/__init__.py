"""How an attempt is started: on this host, and later by torchrun or Ray."""
