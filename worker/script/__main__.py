"""`python -m worker.script ATTEMPT_DIR`: runs one attempt of a script."""

import sys
from pathlib import Path

from worker.script.runner import run_attempt

if __name__ == "__main__":
    sys.exit(run_attempt(Path(sys.argv[1])))
