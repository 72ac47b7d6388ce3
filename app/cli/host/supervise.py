"""`stoker up` at work: starts API and worker, shows what they say, drains them at the end."""

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from app.cli.failures import CommandFailed, ExitCode
from app.cli.host.children import HostChild, Outputs
from app.cli.host.machine import ask_without_metrics
from stoker import Client, find_token, read_api_file

if TYPE_CHECKING:
    from app.settings import Settings

READY_TIMEOUT_SECONDS = 90.0
API_DRAIN_SECONDS = 15.0
# The worker ends a trainer after the grace time itself; this is for it to report and to leave. Up
# to 15 of them the driver has to give back a GPU's memory: RELEASE_SECONDS in worker.agent.devices.
WORKER_MARGIN_SECONDS = 35.0
TICK_SECONDS = 0.2

Say = Callable[[str, str], None]


class Supervisor:
    """Runs both processes until it is asked to end. `say(who, line)` takes every line."""

    def __init__(self, settings: "Settings", say: Say) -> None:
        self._settings = settings
        self._say = say
        self._asked = 0
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._api = HostChild("api", dict(environment))
        self._worker = HostChild("worker", environment)
        self._outputs = Outputs()

    def run(self) -> ExitCode:
        """Start, announce, watch, drain; the exit code of `stoker up`."""
        previous = {
            number: signal.signal(number, self._note_signal)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            for child in (self._api, self._worker):
                self._outputs.follow(child)
            self._until_ready()
            self._until_asked()
            return ExitCode.ok
        finally:
            self._drain()
            self._outputs.close()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked += 1

    def _until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while not self._asked:
            self._pump(TICK_SECONDS)
            for child in (self._api, self._worker):
                if not child.is_running():
                    self._pump(0)
                    raise CommandFailed(
                        f"The {child.name} ended while it was starting ({child.how_it_ended()})"
                        f"{child.last_words()}",
                        ExitCode.failed,
                    )
            url = self._ready_url()
            if url is not None:
                # Should the API have to be started again, clients will find it where it was.
                self._api.environment["STOKER_PORT"] = url.rpartition(":")[2]
                self._say("stoker", f"ready: {url}")
                return
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"The service was not ready after {READY_TIMEOUT_SECONDS:.0f} s. "
                    "`stoker doctor` says what is wrong.",
                    ExitCode.failed,
                )

    def _ready_url(self) -> str | None:
        """The address, once our own API has written it and finds everything well.

        An artifact root that is away is waited for by the worker: it may come back by itself.
        """
        written = read_api_file(self._settings.home)
        if written is None or written["pid"] != self._api.pid:
            return None
        with Client(written["url"], find_token(self._settings.home)) as client:
            if not client.ready():
                if not client.lacks_only_artifacts():
                    return None
                self._say("stoker", "the artifact root is away: runs wait; stoker doctor says why")
            for why in ask_without_metrics(client):
                self._say("stoker", why)
            return client.url

    def _until_asked(self) -> None:
        """Watch both; one that ends by itself is started again, unless it keeps ending."""
        while not self._asked:
            self._pump(TICK_SECONDS * 5)
            for child in (self._api, self._worker):
                if child.is_running():
                    continue
                if not child.may_start_again():
                    raise CommandFailed(
                        f"The {child.name} keeps ending ({child.how_it_ended()}). Its last lines "
                        "say why; runs that were training have saved their state.",
                        ExitCode.failed,
                    )
                self._say(
                    "stoker", f"the {child.name} ended ({child.how_it_ended()}); starting it again"
                )
                self._outputs.follow(child)

    def _drain(self) -> None:
        """End the worker first, so that its runs save and report, then the API."""
        patience = self._settings.stop_grace_seconds + WORKER_MARGIN_SECONDS
        for child, seconds in ((self._worker, patience), (self._api, API_DRAIN_SECONDS)):
            if child.is_running():
                self._say("stoker", f"stopping the {child.name}")
                self._end(child, seconds)
        self._pump(0)

    def _end(self, child: HostChild, seconds: float) -> None:
        """SIGTERM, then SIGKILL when the time is over or somebody asks a second time.

        A killed worker's launchers notice and still let their trainers save.
        """
        asked, deadline = self._asked, time.monotonic() + seconds
        child.send(signal.SIGTERM)
        while child.is_running():
            if time.monotonic() > deadline or self._asked > max(asked, 1):
                child.send(signal.SIGKILL)
            self._pump(TICK_SECONDS)

    def _pump(self, seconds: float) -> None:
        for name, line in self._outputs.wait(seconds):
            self._say(name, line)
