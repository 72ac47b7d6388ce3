"""What API and agent do with the floors below: plan, submit, restart, probe, wait, observe."""
