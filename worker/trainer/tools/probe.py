"""`python -m worker.trainer.tools.probe`: measures one real step of a spec, and says what it took.

Reads {spec, fields: {name: {shape, dtype}}, spreads: {name: {mean, std, most}}, device, threads,
batch_size, evaluation_batch_size} from its input; spreads are of the rows of packed arrays. It
prints one JSON document: see `worker.trainer.tools.one_step`, or {error: sentence}.
"""

import json
import os
import sys
from typing import Any


def main() -> None:
    """Print the document and end; a process that dies without one says so by that."""
    order = json.load(sys.stdin)
    try:
        # Imported only now, to say in a sentence that torch is missing or broken.
        from worker.trainer.tools.one_step import measure_step
    except Exception as error:  # noqa: BLE001 - whatever a broken installation raises
        told = (
            f"PyTorch cannot be used there: {type(error).__name__}: {error}. Install Stoker's "
            "worker extra (PyTorch, h5py, numpy, safetensors) on that worker."
        )
        answer: dict[str, Any] = {"error": " ".join(told.split())}
    else:
        answer = measure_step(order)
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # as the trainer does: taking torch apart lasts over a second


if __name__ == "__main__":
    main()
