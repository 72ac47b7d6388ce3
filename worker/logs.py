"""How the worker logs: sentences on stderr, with the facts behind them as key=value."""

import logging
import sys

import structlog


def configure_logging(level: str) -> None:
    """Write lines of this level and above, with UTC times and without colours."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
