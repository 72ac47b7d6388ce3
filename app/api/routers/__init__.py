"""The endpoints, a router a resource."""
