"""The child of a job: remove artifacts for good.

`python -m worker.jobs.remove ARTIFACT_ROOT DATABASE_ID` reads the paths below the root from
standard input, as JSON. It ends with 1 and a sentence when they are not gone: while the root is
away, what is not there is not removed.
"""

import json
import subprocess
import sys
from pathlib import Path

from app.store.artifact_root import is_marked
from worker.start.preparation import confined


def main(artifact_root: Path, database_id: str) -> int:
    root = artifact_root.resolve()
    try:
        paths = [confined(path, root) for path in json.load(sys.stdin)]
    except ValueError as error:
        return _kept(f"{error}")
    if root in paths:
        return _kept("the artifact root itself is never removed")
    if not is_marked(root, database_id):
        return _kept(f"the artifact root {root} is away")
    command = ["rm", "-rf", "--one-file-system", "--", *map(str, paths)]
    code = subprocess.run(command, check=False).returncode
    if not is_marked(root, database_id):
        return _kept(f"the artifact root {root} went away meanwhile")
    return code


def _kept(why: str) -> int:
    sys.stderr.write(f"Nothing is known to be removed: {why.rstrip('.')}.")
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
