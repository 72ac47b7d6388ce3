"""`python -m worker.trainer.weights.importing`: makes a checkpoint of a file's tensors.

Reads an order from its input (worker.jobs.import_work), and prints one JSON document: `{checkpoint,
left, message}`, or {error: sentence}. The file may be anybody's, and its process owns nothing.
"""

from typing import Any

from worker.trainer.weights.order import answer_order


def _answer(order: dict[str, Any]) -> dict[str, Any]:
    try:
        # Imported only now, to say in a sentence that torch is missing or broken.
        from worker.trainer.errors import TrainerError
        from worker.trainer.out_of_memory import which_memory
        from worker.trainer.weights.foreign import ADVICE, import_weights
    except Exception as error:  # noqa: BLE001 - whatever a broken installation raises
        told = f"PyTorch cannot be used on this worker: {type(error).__name__}: {error}"
        return {"error": " ".join(f"{told}. Install Stoker's worker extra there.".split())}
    try:
        return import_weights(order)
    except TrainerError as error:
        return {"error": error.message}
    except Exception as error:  # noqa: BLE001 - every failure is told as a sentence
        if which_memory(error) is not None:
            return {"error": f"This worker has not enough memory for {order['path']}. {ADVICE}"}
        if isinstance(error, OSError):
            return {"error": f"Nothing was imported: {error}."}
        told = f"Nothing was imported: {order['path']} has what this worker cannot keep "
        return {"error": " ".join(f"{told}({type(error).__name__}: {error}). {ADVICE}".split())}


if __name__ == "__main__":
    answer_order(_answer)
