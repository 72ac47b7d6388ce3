"""From a lease to a launch: what an attempt needs before its trainer starts."""
