"""`python -m worker.trainer.tools.task KIND`: whether a recipe's half that trains can be imported.

Prints the kind as its last line where it can; else a sentence, as the last one of its errors, and
ends with 1. A process of its own: whatever a package does when it is imported ends with it.
"""

import os
import sys


def main(kind: str) -> None:
    """Import it, and end."""
    # Imported only now, so that what is missing here is told as well.
    from worker.trainer.errors import TrainerError
    from worker.trainer.recipes import task_of

    told, to, code = kind, sys.stdout, 0
    try:
        task_of(kind)
    except TrainerError as error:
        told, to, code = " ".join(error.message.split()), sys.stderr, 1
    to.write(f"{told}\n")
    to.flush()
    os._exit(code)  # as the trainer does: taking torch apart lasts over a second


if __name__ == "__main__":
    main(sys.argv[1])
