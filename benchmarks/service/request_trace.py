"""Follows one `POST /runs` from the socket to the commit: the floors, files and functions.

`python -m benchmarks.service.request_trace` prints the files and the named functions of Stoker
that it enters, floor by floor, and how often a floor is entered again that had been left. The
guard's rules are left out: each is a function of its own. The table of docs/design/requests.md is
made by it.
"""

import inspect
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

import app
from app.api.main import create_app
from app.settings import load_settings
from app.store.engine.migrate import upgrade
from app.store.identity import this_process
from app.store.records import Inspection
from app.store.store import Store, open_store
from app.store.worker_records import NewWorker

PACKAGES = Path(app.__file__).parent.parent
OURS = ("app", "stoker")
LEFT_OUT = "app/guard/rules/"
SPEC = {"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}, "training": {"epochs": 1}}
FIELDS = {
    "features": {"shape": [24, 3], "dtype": "float32"},
    "targets": {"shape": [4], "dtype": "float32"},
}
PAUSING = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
WARM = 3  # requests before: what is made once is not of a request


class Trace:
    """What a request enters, in the order of its time, over all threads."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, str]] = []
        self._paused: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call" or frame in self._paused:
            return
        if frame.f_code.co_flags & PAUSING:  # it goes on later: that is not another call
            self._paused.add(frame)
        place = Path(frame.f_code.co_filename)
        if not place.is_relative_to(PACKAGES) or frame.f_code.co_name.startswith("<"):
            return
        file = str(place.relative_to(PACKAGES))
        if file.startswith(OURS) and not file.startswith(LEFT_OUT):
            self.entered.append((file, frame.f_code.co_qualname))

    @property
    def functions(self) -> set[tuple[str, str]]:
        return set(self.entered)

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.entered}

    @property
    def again(self) -> Counter[str]:
        """How often each floor is entered that was left before."""
        known: set[str] = set()
        again: Counter[str] = Counter()
        at = ""
        for file, _ in self.entered:
            floor = _floor(file)
            if floor != at and floor in known:
                again[floor] += 1
            known.add(floor)
            at = floor
        return again


def _floor(file: str) -> str:
    parts = Path(file).parts
    return "/".join(parts[:2]) if len(parts) > 2 else "app"


def trace() -> Trace:
    """Of a run that is accepted, on a fresh SQLite home with a worker and a dataset."""
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(home=Path(folder), port=0)
        upgrade(settings)
        with closing(open_store(settings)) as store:
            _furnish(store)
            _, secret = store.tokens.create("trace")
            found = Trace()
            # Threads of the pool are made while it is set, and look at it from then on.
            threading.setprofile(_Switch(found))
            server = uvicorn.Server(
                uvicorn.Config(create_app(settings, store), port=0, log_config=None, http="h11")
            )
            thread = threading.Thread(target=server.run)
            thread.start()
            try:
                _post(server, secret, found)
            finally:
                server.should_exit = True
                thread.join()
                threading.setprofile(None)
            return found


class _Switch:
    """Passes calls on while a request is followed."""

    is_on = False

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if _Switch.is_on and threading.current_thread().name not in ("tailer", "observer"):
            self._trace(frame, event, argument)


def _post(server: uvicorn.Server, secret: str, found: Trace) -> None:
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    head = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    with closing(HTTPConnection("127.0.0.1", port)) as client:
        for number in range(WARM + 1):
            _Switch.is_on = number == WARM
            client.request("POST", "/runs", json.dumps(SPEC), head)
            answer = client.getresponse()
            body = answer.read()
            if answer.status != 201:
                raise RuntimeError(f"the run was not made: {body.decode()}")
        _Switch.is_on = False


def _furnish(store: Store) -> None:
    me = this_process()
    worker_id = store.workers.register(
        NewWorker(
            name="trace",
            host=me.host,
            boot_id=me.boot_id,
            pid=me.pid,
            start_time=me.start_time,
            version="0",
            slots=[{"name": "cpu-0-0", "device": "cpu", "run_id": None, "waiting": None}],
            devices=[{"kind": "cpu", "name": "cpu"}],
            facts={"cores": 2, "host_memory_bytes": 2**34},
        )
    )
    store.datasets.register("weather", "weather.h5")
    job = store.jobs.claim(worker_id)
    if job is None:
        raise RuntimeError("the dataset was not registered")
    print_ = {"size": 300_000, "mtime_ns": 1, "sha256": "0"}
    inspection = Inspection(
        "ready", fields=FIELDS, samples=1000, size_bytes=300_000, fingerprint=print_
    )
    store.jobs.finish(job.id, worker_id, inspection=inspection)


def main() -> int:
    found = trace()
    print(f"{len(found.files)} files, {len(found.functions)} functions; entered again:", end=" ")
    print(", ".join(f"{floor} {count}" for floor, count in found.again.most_common()) or "none")
    for floor in sorted({_floor(file) for file in found.files}):
        files = {file for file in found.files if _floor(file) == floor}
        functions = {name for file, name in found.functions if file in files}
        print(f"{floor:14} {len(files):3} files {len(functions):4} functions")
    if "--all" in sys.argv:
        for file, name in found.entered:
            print(f"{file:40} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
