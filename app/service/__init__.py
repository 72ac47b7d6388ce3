"""What API, command line and agent do with the floors below: plan, submit, restart, probe, wait."""
