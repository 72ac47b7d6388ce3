"""The service measured: the API, load, the agent, stops and restarts."""
