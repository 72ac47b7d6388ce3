"""`python -m worker.trainer.weights.exporting`: makes an export, and says what it is.

Reads an order from its input (worker.jobs.export_work), and prints one JSON document: `{bytes,
facts}`, or {error: sentence}.
"""

from typing import Any

from app.installing import pip_install
from worker.trainer.weights.order import answer_order

EXTRA = ("onnx", "onnxruntime", "onnxscript")


def _answer(order: dict[str, Any]) -> dict[str, Any]:
    try:
        # Imported only now, to say in a sentence what is missing or broken.
        from worker.trainer.failure import explain
        from worker.trainer.weights.make import make_export
    except Exception as error:  # noqa: BLE001 - whatever a broken installation raises
        told = f"PyTorch cannot be used on this worker: {type(error).__name__}: {error}. "
        return {"error": " ".join(told.split())}
    try:
        return make_export(order)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRA:
            return {"error": explain(error, "exporting", logged=False)[1]}
        told = f"This worker has no {error.name.partition('.')[0]}, which {order['format']} needs."
        ways = f"{pip_install('stoker[export]')}, or {pip_install(*EXTRA)}"
        return {"error": f"{told} Install the extra where the worker runs: {ways}"}
    except Exception as error:  # noqa: BLE001 - every failure is told as a sentence
        return {"error": explain(error, "exporting", logged=False)[1]}


if __name__ == "__main__":
    answer_order(_answer)
