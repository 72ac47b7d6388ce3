"""How the worker logs: as the API does, so that their lines in `stoker up` read as one log."""

from app.logs import configure_logging

__all__ = ["configure_logging"]
