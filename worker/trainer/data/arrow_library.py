"""pyarrow, which is an extra: what is said where it is missing, and of what it refuses."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from worker.trainer.errors import DataError


def arrow() -> Any:
    """The module. DataError where it is not installed."""
    try:
        import pyarrow  # an extra, and a tenth of a second that HDF5 does not need
    except ImportError:
        raise DataError(
            "CSV, Feather and Arrow files are read by pyarrow, which is not installed here: on"
            " each worker, pip install 'stoker[tables]'."
        ) from None
    return pyarrow


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What pyarrow says of a file as a DataError."""
    library = arrow()
    try:
        yield
    except (library.ArrowException, OSError, UnicodeDecodeError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path} cannot be read as a table ({told}): it is damaged or of another kind. Write it"
            " again, or restore it from a copy."
        ) from error
