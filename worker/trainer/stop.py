"""The wish to stop: signal handlers only record it, the loop acts on it at a step boundary."""

import faulthandler
import signal
from types import FrameType


class StopFlag:
    """`requested` turns true once and stays so."""

    def __init__(self) -> None:
        self._requested = False

    @property
    def requested(self) -> bool:
        return self._requested

    def request(self) -> None:
        self._requested = True

    def listen(self) -> None:
        """SIGTERM asks to stop; SIGINT is the agent's business; SIGUSR1 dumps every stack."""

        def on_terminate(_signal: int, _frame: FrameType | None) -> None:
            self.request()

        signal.signal(signal.SIGTERM, on_terminate)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1)
