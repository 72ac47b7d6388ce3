"""`python -m worker`: the agent of this host, as a process."""

import sys

from app.errors import StokerError
from app.loading import unsearched


def main() -> int:
    """Run the agent until it is told to end; 1 when it cannot start, with a sentence."""
    with unsearched():
        # Imported only now: all that it brings is loaded without that search.
        from app.settings import load_settings
        from worker.agent.agent import run_agent
    try:
        return run_agent(load_settings())
    except StokerError as error:
        print(f"stoker worker: {error.detail}", file=sys.stderr)  # noqa: T201 - before logging
    except OSError as error:
        print(  # noqa: T201 - before logging
            f"stoker worker: this host refuses what the worker needs ({error}); runs that were "
            "training have been asked to save. `stoker doctor` may show why.",
            file=sys.stderr,
        )
    return 1


if __name__ == "__main__":
    sys.exit(main())
