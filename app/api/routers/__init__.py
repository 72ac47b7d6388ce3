"""The endpoints, a router a resource."""

from app.api import paths

paths.register()
