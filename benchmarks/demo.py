"""`make demo`: the whole story on real data, in a home of its own that is gone afterwards.

Prepares the sample, starts the service, trains, stops half-way, restarts from the checkpoint, and
prints the result next to simple baselines. Ends with 1 if the model is no better than the best of
them, if a step fails, or if anything it started is still running at the end.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from app.cli.output import number, size
from app.cli.progress import Teller, make_view
from app.cli.specs.specfile import read_request
from stoker import Client, ClientError

SPEC = Path(__file__).parent.parent / "examples" / "weather-lstm.yaml"
START_SECONDS, END_SECONDS = 90.0, 90.0
Document = dict[str, Any]


class DemoFailed(Exception):
    """A step did not do what it should; the text says what."""


@dataclass
class Demo:
    """One pass. `home` holds everything; `times` collects (stage, seconds)."""

    home: Path
    times: list[tuple[str, float]] = field(default_factory=list)
    service: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        own = {
            "STOKER_HOME": str(self.home),
            "STOKER_PORT": "0",
            "STOKER_EXPORTER_PORT": "0",
            "STOKER_BEAT_SECONDS": "0.5",
        }
        others = {k: v for k, v in os.environ.items() if not k.startswith("STOKER_")}
        self.environment = others | own

    def run(self) -> None:
        with self.stage("service"):
            url = self.start_service()
            say(f"ready at {url}")
        with self.stage("sample data"):
            self.prepare_data()
        token = (self.home / "token").read_text().strip()
        with Client(url, token) as client:
            with self.stage("train, stop half-way"):
                stopped = train_and_stop(client, read_request(str(SPEC), []))
            with self.stage("restart to the end"):
                finished = restart_to_the_end(client, stopped)
            print_result(client, (stopped, finished))

    # -- the parts that start processes -------------------------------------------------------

    def start_service(self) -> str:
        """Start `stoker up`; its address when it is ready."""
        with (self.home / "up.log").open("wb") as log:
            self.service = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "up"],
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C comes to the demo alone, which ends it in order
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.service.poll() is None:
            for line in (self.home / "up.log").read_text().splitlines():
                if "ready: " in line:
                    return line.split("ready: ")[1].strip()
            time.sleep(0.05)
        raise DemoFailed("the service did not start")

    def prepare_data(self) -> None:
        """Builds and registers the sample."""
        sample = self.call("-m", "app.cli", "data", "sample", "weather", "--json")
        dataset = sample["dataset"]
        if dataset is None or dataset["state"] != "ready":
            raise DemoFailed(f"the dataset is not ready: {dataset}")
        hours, features = dataset["fields"]["features"]["shape"]
        say(
            f"{number(dataset['samples'])} windows of {hours} h × {features} measurements, "
            f"{size(dataset['size_bytes'])}: hourly weather of TMY3 station 723170"
        )

    def call(self, *arguments: str) -> Document:
        """Run a Python module; its JSON answer."""
        done = subprocess.run(
            [sys.executable, *arguments],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DemoFailed(f"{' '.join(arguments)}: {done.stderr.strip()}")
        document: Document = json.loads(done.stdout)
        return document

    # -- the end ------------------------------------------------------------------------------

    def end(self) -> None:
        """End the service and see that nothing of it is left; DemoFailed names what was."""
        with self.stage("end"):
            if self.service is not None and self.service.poll() is None:
                self.service.terminate()
                try:
                    self.service.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    self.service.kill()
                    self.service.wait()
            left = self.left_running()
            for process in left:
                process.kill()
            psutil.wait_procs(left)
        if left:
            raise DemoFailed(f"still running at the end (now killed): {left}")
        say("everything it started has ended")

    def left_running(self) -> list[psutil.Process]:
        """Processes with this home in their environment or command line."""
        return [p for p in psutil.process_iter() if str(self.home) in _words_of(p)]

    def log_tail(self) -> str:
        log = self.home / "up.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-25:]) if log.exists() else ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Print the stage's name, and remember how long it took."""
        heading(name)
        began = time.monotonic()
        try:
            yield
        finally:
            self.times.append((name, time.monotonic() - began))


def train_and_stop(client: Client, request: Document) -> Document:
    """Submit, watch, and stop at half of the steps; the run as it was stopped."""
    run = client.submit(request)
    say(f"POST /runs → run {run['id']}, {run['status']}")
    view = make_view()
    try:
        teller = Teller(view, "  ")
        for event in client.watch(run["id"]):
            teller.tell(event)
            if event.kind == "progress" and _is_half_way(event.data):
                break
    finally:
        view.close()
    began = time.monotonic()
    stopped = client.act(run["id"], "stop", wait_seconds=60)
    if stopped["state"] != "stopped":
        raise DemoFailed(f"run {run['id']} should be stopped, but is {stopped['status']}")
    seconds = time.monotonic() - began
    saved = client.every(client.checkpoints, run["id"])
    [latest] = [checkpoint for checkpoint in saved if checkpoint["is_latest"]]
    say(f"POST /runs/{run['id']}/stop → stopped in {seconds:.2f} s, saved at step {latest['step']}")
    return stopped


def _is_half_way(progress: Document) -> bool:
    step, steps = progress.get("step") or 0, progress.get("steps")
    return steps is not None and progress.get("phase") == "training" and 2 * step >= steps


def restart_to_the_end(client: Client, parent: Document) -> Document:
    """Restart from the latest checkpoint and watch; the run as it succeeded."""
    run = client.restart(parent["id"])
    say(f"POST /runs/{parent['id']}/restart → run {run['id']}, {run['carry']['kind']} state")
    view = make_view()
    try:
        teller = Teller(view, "  ")
        for event in client.watch(run["id"]):
            teller.tell(event)
    finally:
        view.close()
    finished = client.run(run["id"])
    if finished["state"] != "succeeded":
        raise DemoFailed(f"run {run['id']} {finished['state']}: {finished['message']}")
    return finished


def print_result(client: Client, runs: tuple[Document, Document]) -> None:
    """Prints the result, and the simple baselines that every run is compared with. Raises
    DemoFailed if the model is no better than the best of them.
    """
    finished = runs[1]
    result = finished["result"]
    best, tested = result["best"], result["test"]["test_mae"]
    baselines = [one for one in result["baselines"] or () if one["metric"] == "test_mae"]
    heading("result, tested on November and December")
    for one in sorted(baselines, key=lambda one: -one["value"]):
        say(f"baseline       {one['value']:5.2f} °C mean absolute error, {one['name']}")
    say(f"the model      {tested:5.2f} °C, by the checkpoint of step {best['step']}, the best on")
    say(f"               September and October ({best['val_mae']:.2f} °C)")
    for row in client.every(client.checkpoints, finished["id"]):
        which = " and ".join(name for name in ("latest", "best") if row[f"is_{name}"])
        say(f"checkpoint     step {row['step']}, {size(row['bytes'])}, {which or 'kept'}")
    say(f"speed          {median_rates(client, runs)}")
    naive = (result["naive"] or {}).get("test_mae")
    if naive is not None and tested >= naive:
        raise DemoFailed(f"the model has {tested:.2f} °C; the best baseline has {naive:.2f} °C")


def median_rates(client: Client, runs: tuple[Document, Document]) -> str:
    """Training speed over both runs."""
    shown = []
    curves = [client.metrics(run["id"])["series"] for run in runs]
    for name, unit in (("iterations_per_second", "it/s"), ("samples_per_second", "samples/s")):
        points = [point for series in curves for point in series.get(name, [])]
        if points:
            shown.append(f"{number(statistics.median(value for _, _, value in points))} {unit}")
    return ", ".join(shown) or "not measured"


def heading(text: str) -> None:
    bold = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold[0]}{text}{bold[1]}", flush=True)


def say(text: str) -> None:
    print(f"  {text}", flush=True)


def _words_of(process: psutil.Process) -> str:
    try:
        return " ".join([*process.environ().values(), *process.cmdline()])
    except psutil.Error:  # it ended, or it is another user's
        return ""


def _interrupt(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:  # nobody looks any more, and what is printed must not fail
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
    raise KeyboardInterrupt


def main() -> int:
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _interrupt)
    began = time.monotonic()
    demo = Demo(Path(tempfile.mkdtemp(prefix="stoker-demo-")))
    failure: str | None = None
    try:
        demo.run()
    except (DemoFailed, ClientError) as error:
        failure = f"{error}\n\nThe service's last lines:\n{demo.log_tail()}"
    except KeyboardInterrupt:
        failure = "interrupted"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what follows has its own time limits
    try:
        demo.end()
    except DemoFailed as error:
        failure = f"{failure}; {error}" if failure else str(error)
    finally:
        shutil.rmtree(demo.home, ignore_errors=True)
    for name, seconds in demo.times:
        say(f"{name:<22} {seconds:5.1f} s")
    say(f"{'in all':<22} {time.monotonic() - began:5.1f} s")
    if failure is not None:
        print(f"\nThe demo failed: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
