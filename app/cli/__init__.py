"""The command line, on top of app.client."""
