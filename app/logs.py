"""How every process logs: sentences on stderr, with the facts behind them as key=value."""

import logging
import sys
import time

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


def quiet(*names: str) -> None:
    """Have these loggers of libraries write a warning or error once a second at most.

    For what strangers can cause as often as they like.
    """
    for name in names:
        logging.getLogger(name).addFilter(_OnceASecond())


class _OnceASecond(logging.Filter):
    """Passes a message on again after a second, with how many like it were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        message = str(record.msg).partition("\n")[0]
        told, left_out = self._told.get(message, (-1.0, 0))
        now = time.monotonic()
        if now - told < 1.0:
            self._told[message] = told, left_out + 1
            return False
        self._told[message] = now, 0
        if left_out:
            record.msg = f"{record.msg} ({left_out} more like this)"
        if isinstance(record.exc_info, tuple) and isinstance(record.exc_info[1], OSError):
            record.exc_info = None  # the message says it; where it happened is of no use
        return True
