"""Starting and ending the service: up, down, api, worker."""

import json
import os
import subprocess
import sys
import time
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from app.cli.connect import read_settings
from app.cli.failures import CommandFailed, ExitCode
from app.cli.host.home_lock import HomeLock, end_holder, holder_of, making
from app.cli.host.machine import ask_without_metrics
from app.cli.output import JsonOption, print_json, print_lines
from app.installing import pip_install
from app.loading import unsearched
from stoker import find_token, read_api_file

if TYPE_CHECKING:
    from app.cli.host.home_lock import LockHolder
    from app.cli.host.supervise import Say
    from app.settings import Settings

WORKER_PACKAGES = ("torch", "h5py", "numpy", "safetensors")
DETACHED_START_SECONDS = 100.0
LOG_BYTES = 10 * 2**20
LOG_FILES_KEPT = 3
LOG_LINES_TOLD = 15
MOST_TOLD = 1_000  # runs that `down` speaks of

HostOption = Annotated[str | None, typer.Option(help="Address of the API.")]
PortOption = Annotated[int | None, typer.Option(min=0, max=65535, help="Its port; 0: a free one.")]
HomeOption = Annotated[
    Path | None, typer.Option(help="Where database, token and artifacts lie.", file_okay=False)
]


def up(
    host: HostOption = None,
    port: PortOption = None,
    home: HomeOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; `stoker down` stops it.")
    ] = False,
    log_file: Annotated[
        Path | None, typer.Option(help="Write output to this file instead; rotated at 10 MiB.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start API, worker and exporter. Ctrl-C saves what is training and stops everything."""
    _set_environment(host, port, home)
    require_worker_extra()
    settings = read_settings()
    if detach:
        start_detached(settings, sys.stdout, as_json=as_json)
        return
    # Imported late: start-up of every command.
    from app.cli.host.ports import require_port
    from app.cli.host.supervise import Supervisor

    with HomeLock(settings):
        require_port(settings)
        raise typer.Exit(Supervisor(settings, _make_say(log_file, as_json)).run())


def _set_environment(host: str | None, port: int | None, home: Path | None) -> None:
    """Options become settings of the children, which read the environment."""
    for name, value in (("HOST", host), ("PORT", port), ("HOME", home and home.absolute())):
        if value is not None:
            os.environ[f"STOKER_{name}"] = str(value)


def _make_say(log_file: Path | None, as_json: bool) -> "Say":
    """Where the lines of the children go: a rotated file, JSON lines, or colour in a terminal."""
    if as_json:
        return lambda who, line: typer.echo(json.dumps({"from": who, "line": line}))
    if log_file is None:
        colors = {"api": typer.colors.BLUE, "worker": typer.colors.MAGENTA}
        return lambda who, line: typer.echo(
            f"{typer.style(f'{who:<6}', fg=colors.get(who, typer.colors.GREEN))} {line}"
        )
    import logging.handlers  # imported late: only the background service writes a file

    log_file.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        log_file, maxBytes=LOG_BYTES, backupCount=LOG_FILES_KEPT, encoding="utf-8"
    )
    logger = logging.getLogger("stoker.up")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    return lambda who, line: logger.info("%-6s %s", who, line)


def start_detached(settings: "Settings", out: TextIO, *, as_json: bool = False) -> None:
    """Start `stoker up` in a session of its own, wait until it is ready, and say so to `out`."""
    from app.cli.host.ports import require_port  # late, as in `up`

    holder = holder_of(settings)
    if holder is not None:
        raise holder.refused()
    require_port(settings)
    log = settings.home / "logs" / "stoker.log"
    with making(settings.home):
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        log.parent.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "app.cli", "up", "--log-file", str(log)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    url, lacking = _await_ready(settings, process, log)
    if as_json:
        print_json({"url": url, "pid": process.pid, "log": str(log), "without_metrics": lacking})
        return
    typer.echo(f"Stoker is ready at {url} (process {process.pid}).", file=out)
    for why in lacking:
        typer.echo(f"  {why}", file=out)
    typer.echo(f"  log: {log}\n  end: stoker down", file=out)


def _await_ready(
    settings: "Settings", process: "subprocess.Popen[str]", log: Path
) -> tuple[str, list[str]]:
    """Its URL, and of each worker that exports no metrics why. CommandFailed."""
    from stoker import Client  # httpx: late, as in connect

    deadline = time.monotonic() + DETACHED_START_SECONDS
    while process.poll() is None:
        holder = holder_of(settings)
        written = read_api_file(settings.home)
        ours = holder is not None and holder.pid == process.pid
        if ours and written is not None and _is_child(written["pid"], process.pid):
            with Client(written["url"], find_token(settings.home)) as client:
                if client.ready() or client.lacks_only_artifacts():
                    return client.url, ask_without_metrics(client)
        if time.monotonic() > deadline:
            process.terminate()
            process.wait()
            break
        time.sleep(0.1)
    said = process.stderr.read().strip() if process.stderr is not None else ""
    tail = log.read_text(errors="replace").splitlines()[-LOG_LINES_TOLD:] if log.exists() else []
    raise CommandFailed(
        said.removeprefix("error: ").splitlines()[-1] if said else "The service did not start.",
        ExitCode.failed,
        hints=[f"  The end of {log}:", *tail] if tail else [],
        document={"log": tail},
    )


def _is_child(pid: int, parent: int) -> bool:
    """Whether a process is a child of another; field 4 of /proc/PID/stat is the parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return int(stat.rpartition(")")[2].split()[1]) == parent


def down(
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop what `up` started; runs that are training save their state first."""
    _set_environment(None, None, home)
    settings = read_settings()
    holder = holder_of(settings)
    go_on, anew = ([], []) if holder is None else _end(holder, settings)
    if as_json:
        ended = {"ended": holder is not None, "pid": holder and holder.pid}
        print_json({**ended, "go_on": go_on, "begin_anew": anew})
    elif holder is None:
        typer.echo(f"`stoker up` is not running for {settings.home}.")
    else:
        typer.echo("Stoker has stopped.")
        print_lines(_at_the_next_start(go_on, anew))


def _end(holder: "LockHolder", settings: "Settings") -> tuple[list[int], list[int]]:
    """End it; of the runs that it ran, those that go on at the next start, and those that begin
    anew: scripts that have saved nothing. It ends also where the database cannot say.
    """
    from app.errors import StokerError  # late, as SQLAlchemy: start-up
    from app.lifecycle import RunState
    from app.store import open_store
    from app.store.records import RunFilter

    ran: list[int] = []
    with suppress(StokerError), closing(open_store(settings)) as store:
        if store.schema_is_current():  # else another version of Stoker runs
            ran = sorted(store.runs.find_ids(RunFilter(state=RunState.running), MOST_TOLD))
    end_holder(holder, settings)
    with suppress(StokerError), closing(open_store(settings)) as store:
        queued = [run for run in map(store.runs.get, ran) if run.state is RunState.queued]
        anew = [
            run.id
            for run in queued
            if run.recipe == "script" and not store.checkpoints.list(run.id)
        ]
        return [run.id for run in queued if run.id not in anew], anew
    return [], []


def _at_the_next_start(go_on: list[int], anew: list[int]) -> list[str]:
    told = []
    if go_on:
        who = f"Run {go_on[0]} waits" if len(go_on) == 1 else f"Runs {_in_list(go_on)} wait"
        told.append(f"  {who} in the queue to go on after the next start.")
    if anew:
        one = len(anew) == 1
        who = f"Run {anew[0]} begins" if one else f"Runs {_in_list(anew)} begin"
        has = "it has" if one else "they have"
        told.append(f"  {who} anew then: {has} saved nothing that could be gone on from.")
    return told


def _in_list(ids: list[int]) -> str:
    """`3, 4 and 7`."""
    return f"{', '.join(map(str, ids[:-1]))} and {ids[-1]}"


def api(host: HostOption = None, port: PortOption = None) -> None:
    """Start the API alone."""
    _set_environment(host, port, None)
    from app.cli.host.ports import require_port  # late, as in `up`

    settings = read_settings()
    require_port(settings)
    with unsearched():
        # Imported late: FastAPI is by far the heaviest import of the CLI.
        from app.api.main import serve
    serve(settings)


def worker() -> None:
    """Start a worker alone: it claims runs, trains them and exports metrics."""
    require_worker_extra()
    read_settings()  # a wrong setting is a sentence here
    # -P, here and wherever a module is started: a folder `app` or `worker` in the place where the
    # user stands must not be taken for ours.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "worker"])  # noqa: S606 - no shell: our own


def require_worker_extra() -> None:
    """Refuse to start a worker where the packages are missing that it trains with."""
    missing = [name for name in WORKER_PACKAGES if find_spec(name) is None]
    if missing:
        raise CommandFailed(
            f"Training needs the worker extra, which is not installed here (missing: "
            f"{', '.join(missing)}). Install it with: {pip_install('stoker[worker]')}"
        )
