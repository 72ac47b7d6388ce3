"""The HTTP API: a router per resource, problem+json for every error."""
