"""`python -m worker.launch.bound AGENT COMMAND...`: a command that does not outlive its agent.

The kernel kills it when the agent (a process id) ends in whatever way, and takes it before others
when memory runs out.
"""

import os
import signal
import sys
from pathlib import Path

from worker.launch.launcher import PR_SET_PDEATHSIG, TRAINER_OOM_SCORE_ADJ, prctl


def main(agent: int, command: list[str]) -> None:
    """Never returns."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # stays through exec
    if os.getppid() != agent:  # it died before the line above
        sys.exit(1)
    Path("/proc/self/oom_score_adj").write_text(TRAINER_OOM_SCORE_ADJ)
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
