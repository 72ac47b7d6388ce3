"""How every process logs: sentences on stderr, with the facts behind them as key=value."""

import logging
import sys

import structlog
from structlog.typing import Processor

# In front of every line, whoever wrote it.
STAMPS: tuple[Processor, ...] = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def configure_logging(level: str) -> None:
    """Write lines of this level and above, with UTC times and without colours.

    What libraries log looks the same, from warnings on. Tracebacks show no values.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer = structlog.dev.ConsoleRenderer(
        colors=False, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(
        processors=[*STAMPS, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # a line is one write
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=STAMPS,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)
