"""The database itself: connections, limits, migrations, clocks and the doorbell."""
