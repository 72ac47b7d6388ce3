"""`python -m worker.trainer ATTEMPT_DIR`: runs one attempt and says in `end` how it ended.

With `--standby FD` in place of the folder it gets ready first, says so to that descriptor, and
waits to be told.
"""

import logging
import multiprocessing.util
import os
import sys
from pathlib import Path
from typing import Any

from app.lifecycle import Reason
from app.loading import unsearched
from worker.reporting import EventLog, Pulse
from worker.trainer.errors import Diverged, OutOfMemory
from worker.trainer.stop import StopFlag
from worker.trainer.warm import wait_for_attempt


def main(folder: Path) -> int:
    """0 when the training is done, or interrupted with its state saved; 1 after an error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = StopFlag()
    stop.listen()
    events, pulse = EventLog(folder / "events.jsonl"), Pulse(folder / "pulse")
    pulse.enter("starting")
    events.emit("phase", phase="starting")
    try:
        with unsearched():
            # Imported only now because importing torch takes seconds, and until then a stop would
            # kill and the attempt would look dead.
            from worker.trainer.failure import explain
            from worker.trainer.run import execute
    except Exception as error:
        # Whatever a broken installation raises, not ImportError alone.
        logging.exception("the trainer cannot start")
        told = (
            f"The trainer cannot start on this worker: {type(error).__name__}: {error}. Install "
            "Stoker's worker extra (PyTorch, h5py, numpy, safetensors) there, then restart the run."
        )
        return _fail(events, Reason.trainer_error, " ".join(told.split()))
    try:
        end = execute(folder, stop, events, pulse)
    except OutOfMemory as error:
        logging.exception("memory ran out while %s", pulse.phase)
        figures = {"wanted_bytes": error.wanted_bytes, "free_bytes": error.free_bytes}
        return _fail(events, error.reason, error.message, memory=figures)
    except Diverged as error:
        logging.exception("a number is not finite while %s", pulse.phase)
        reached = None if error.reached is None else {"what": error.what, **error.reached}
        return _fail(events, error.reason, error.message, nonfinite=reached)
    except Exception as error:
        logging.exception("the attempt failed while %s", pulse.phase)
        return _fail(events, *explain(error, pulse.phase))
    logging.info(end.message)
    events.emit("end", reason=end.reason, message=end.message, result=end.result, step=end.step)
    return 0


def _fail(events: EventLog, reason: Reason, message: str, **more: Any) -> int:
    try:
        events.emit("end", reason=reason, message=message, result=None, step=None, **more)
    except OSError:  # a full disk: the log and the exit code still tell
        logging.exception("the end could not be told: %s", message)
    return 1


if __name__ == "__main__":
    code = main(
        wait_for_attempt(int(sys.argv[2])) if sys.argv[1] == "--standby" else Path(sys.argv[1])
    )
    # Not sys.exit: taking torch apart lasts over a second, which every stop would wait for.
    # Events, losses and checkpoints are on disk by now; only the log has a buffer, and a loader's
    # fork server a folder for temporary files.
    multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]  # noqa: SLF001
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)
