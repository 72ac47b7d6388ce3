"""Jobs: what needs this host's disk or libraries, done in a child of the agent."""
