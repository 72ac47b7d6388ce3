"""The agent: claims runs, supervises their attempts, finishes them. Never imports torch."""
