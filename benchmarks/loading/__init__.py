"""How fast batches come: Stoker's loader beside the machine's limits and what users have now."""
