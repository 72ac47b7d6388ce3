"""This machine: starting and ending the service, and what the doctor checks."""
