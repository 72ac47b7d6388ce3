"""`stoker run -- COMMAND`: the user's own command, with the queue, the GPU, stop and resume."""

import base64
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.connect import connect, read_settings
from app.cli.failures import CommandFailed, ExitCode, fix_steps, issue_lines
from app.cli.output import JsonOption, in_words, one_line, print_json, print_lines
from app.cli.piped import read_piped
from app.cli.typed import find_program, require_script
from app.cli.watch import watch_run
from app.codestate import code_state, make_snapshot, remove_snapshot
from app.durable import socket_address
from app.errors import OtherService
from app.inherited import Inherited
from stoker import ServiceUnreachable
from stoker.secret import looks_secret

if TYPE_CHECKING:
    from app.settings import Settings
    from stoker import Client

Document = dict[str, Any]
# What belongs to this terminal, or to a process above, and not to the run.
NOT_OF_THE_RUN = frozenset(
    {"_", "OLDPWD", "SHLVL", "CUDA_VISIBLE_DEVICES", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"}
)
START_SECONDS = 100.0
ANSWER_BYTES = 2**20


class Unanswered(CommandFailed):
    """It is not known whether the command is queued."""


CommandArgument = Annotated[
    list[str], typer.Argument(help="The command, after --.", metavar="-- COMMAND…")
]
NameOption = Annotated[
    str, typer.Option(help="What to call the run; by default the name of the script.")
]
GpusOption = Annotated[
    int | None,
    typer.Option(min=0, help="How many GPUs; 0 for none. Default: 1 if the machine has any."),
]
LaunchOption = Annotated[
    str | None,
    typer.Option(
        help="none: on several GPUs it starts its processes itself. Default auto: `python SCRIPT` "
        "and `python -m MODULE` become one process a GPU."
    ),
]
GpuMemoryOption = Annotated[
    str | None, typer.Option(help='Memory that it needs of each GPU, such as "20GiB".')
]
HostMemoryOption = Annotated[
    str | None, typer.Option(help='Host memory that it needs, such as "8GiB".')
]
LikeOption = Annotated[
    str | None,
    typer.Option(
        help="hf, lightning, accelerate or ultralytics: sets --resume and --checkpoints for it."
    ),
]
ResumeOption = Annotated[
    str | None,
    typer.Option(help="Arguments that resume it: '--resume_from_checkpoint {checkpoint}'."),
]
CheckpointsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Where it saves: 'out/checkpoint-*'. Can be repeated."),
]
MetricsFileOption = Annotated[
    str | None, typer.Option(help="Read curves from this file: JSON lines or CSV.")
]
MetricsStdoutOption = Annotated[
    str | None,
    typer.Option(
        help="Read curves from its output, where plain prints are not enough: "
        "'step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)'."
    ),
]
SignalOption = Annotated[
    str | None, typer.Option(help="The signal that asks it to stop; default SIGTERM.")
]
GraceOption = Annotated[
    float | None,
    typer.Option(min=0, help="Seconds it has to stop before it is killed; default 300."),
]
DurationOption = Annotated[
    float | None, typer.Option(min=1, help="Stop it after this many seconds.")
]
HangOption = Annotated[
    float | None,
    typer.Option(
        min=5,
        help="End it after this many seconds without a step and without a metric; without output "
        "if it has neither made a step nor reported a metric.",
    ),
]
RetriesOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="How often it is tried again after a crash or a lost worker. Default: 3 if it can "
        "resume (by --resume, or by a checkpoint saved with run.checkpoint), else 0.",
    ),
]
ShimOption = Annotated[
    bool,
    typer.Option("--no-shim", help="Do not count steps and the wait for data inside the script."),
]
PreemptibleOption = Annotated[
    bool,
    typer.Option(
        "--preemptible",
        help="Runs of higher priority may take its slot once it has saved; without --resume, once "
        "it has saved with run.checkpoint.",
    ),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Pass on this variable although it looks secret. Can be repeated."
    ),
]
SnapshotOption = Annotated[
    bool, typer.Option("--snapshot", help="Run from a git copy of the current code.")
]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Follow it to its end; the exit code is the outcome.")
]

# The fields that these options say.
OPTIONS = {
    "recipe.launch": "--launch",
    "recipe.like": "--like",
    "recipe.resume": "--resume",
    "recipe.checkpoints": "--checkpoints",
    "recipe.stop_signal": "--stop-signal",
    "recipe.grace_seconds": "--grace",
    "recipe.metrics.file": "--metrics-file",
    "recipe.metrics.stdout": "--metrics-stdout",
    "runtime.gpus": "--gpus",
    "runtime.gpu_memory": "--gpu-memory",
    "runtime.host_memory": "--host-memory",
    "policy.max_duration_seconds": "--max-duration",
    "policy.hang_timeout_seconds": "--hang-timeout",
    "policy.max_retries": "--retries",
    "policy.preemptible": "--preemptible",
}


def run(
    command: CommandArgument,
    name: NameOption = "",
    gpus: GpusOption = None,
    gpu_memory: GpuMemoryOption = None,
    host_memory: HostMemoryOption = None,
    launch: LaunchOption = None,
    like: LikeOption = None,
    resume: ResumeOption = None,
    checkpoints: CheckpointsOption = None,
    metrics_file: MetricsFileOption = None,
    metrics_stdout: MetricsStdoutOption = None,
    stop_signal: SignalOption = None,
    grace: GraceOption = None,
    max_duration: DurationOption = None,
    hang_timeout: HangOption = None,
    retries: RetriesOption = None,
    no_shim: ShimOption = False,
    priority: Annotated[int, typer.Option(help="Higher starts first.")] = 0,
    preemptible: PreemptibleOption = False,
    env: EnvOption = None,
    snapshot: SnapshotOption = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run your own script: stoker run -- python train.py --lr 3e-4."""
    settings, cwd = read_settings(), Path.cwd()
    database_id = _require_own_service(settings)
    program = find_program(command[0])
    require_script(cwd, command)
    piped = read_piped(command)
    if snapshot:
        copy = make_snapshot(cwd, settings.home)
        program, cwd = _in_copy(program, cwd, copy), copy
    code = code_state(cwd, command)
    recipe: Document = {"kind": "script", "argv": [program, *command[1:]], "cwd": str(cwd)}
    recipe |= _given(like=like, resume=resume, checkpoints=checkpoints, stop_signal=stop_signal)
    recipe |= _given(metrics=_given(file=metrics_file, stdout=metrics_stdout) or None)
    recipe |= _given(grace_seconds=grace, launch=launch, snapshot=snapshot or None)
    recipe |= _given(shim=False if no_shim else None)
    request: Document = {"name": name, "priority": priority, "recipe": recipe}
    runtime = _given(gpus=gpus, gpu_memory=gpu_memory, host_memory=host_memory)
    policy = _given(max_duration_seconds=max_duration, hang_timeout_seconds=hang_timeout)
    policy |= _given(max_retries=retries, preemptible=preemptible or None)
    request |= _given(runtime=runtime or None, policy=policy or None)
    recipe |= _given(env=_asked_for(env or []) or None)
    environment, left_out = _environment(env or [])
    shell = {**Inherited.here().document(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
    asked: Document = {"request": request, "environment": environment, "code": code, "shell": shell}
    if piped:
        asked["stdin"] = base64.b64encode(piped).decode()
    asked |= _given(database_id=database_id)
    made = cwd if snapshot else None
    run_id = _queued(settings, asked, made, as_json=as_json)
    _tell(run_id, left_out, made, watch=watch, as_json=as_json)


def _queued(settings: "Settings", asked: Document, copy: Path | None, *, as_json: bool) -> int:
    """The new run; what is refused needs no copy of its code."""
    try:
        return _admitted(settings, asked, as_json=as_json)
    except CommandFailed as failure:
        if copy is not None and not isinstance(failure, Unanswered):
            remove_snapshot(_top_of(copy, settings))
        raise


def _tell(
    run_id: int, left_out: list[str], copy: Path | None, *, watch: bool, as_json: bool
) -> None:
    """Say what has become of it, and follow it if that is wanted."""
    with _connected(run_id) as client:
        shown = client.run(run_id)
        if as_json and not watch:
            print_json({**shown, "left_out": left_out, "copy": copy and str(copy)})
            return
        warnings = [] if as_json else client.issues(run_id)
        if not as_json:
            _say(shown, warnings, left_out)
            if copy is not None:
                typer.echo(f"  its copy of the code, removed with the run: {copy}")
            if not watch:
                typer.echo(f"  stoker watch {run_id}")
        if watch:
            raise typer.Exit(watch_run(client, run_id, warnings, as_json=as_json))


def _connected(run_id: int) -> "Client":
    """Returns a client; where none can be made, the error says that the run is queued."""
    try:
        return connect()
    except ServiceUnreachable as error:
        detail = f"Run {run_id} is queued, but cannot be shown: {error.detail}"
        raise CommandFailed(detail, ExitCode.unreachable, document={"run": run_id}) from None


def _given(**values: Any) -> Document:
    return {name: value for name, value in values.items() if value is not None}


def _in_copy(program: str, cwd: Path, copy: Path) -> str:
    """A program of the folder that was copied is that of the copy, where git has it: the python of
    an environment inside the folder stays the one it is.
    """
    if not Path(program).is_relative_to(cwd):
        return program
    copied = copy / Path(program).relative_to(cwd)
    return str(copied) if copied.exists() else program


def _top_of(cwd: Path, settings: "Settings") -> Path:
    """Of a folder in a copy, the whole of it."""
    return settings.snapshots_dir / cwd.relative_to(settings.snapshots_dir).parts[0]


def _asked_for(wanted: list[str]) -> dict[str, str]:
    """What --env names. CommandFailed for what is not set here."""
    for name in wanted:
        variable, is_assigned, value = name.partition("=")
        if is_assigned:
            raise CommandFailed(
                f"--env {variable} passes on the value that {variable} has here, and takes none. "
                f"Set it before: {variable}={shlex.quote(value)} stoker run --env {variable} …",
                ExitCode.usage,
            )
        if name not in os.environ:
            said = f"--env {shlex.quote(name)}: this variable is not set here."
            raise CommandFailed(said, ExitCode.usage)
    return {name: os.environ[name] for name in wanted}


def _environment(wanted: list[str]) -> tuple[dict[str, str], list[str]]:
    """What the run gets of this environment, and the names that look secret and stay here."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in NOT_OF_THE_RUN and not name.startswith("STOKER_")
    }
    secret = {name for name, value in kept.items() if looks_secret(name, value)}
    left_out = sorted(secret - {"PWD", *wanted})
    return {name: value for name, value in kept.items() if name not in left_out}, left_out


def _say(run: Document, warnings: list[Document], left_out: list[str]) -> None:
    typer.echo(f"Run {run['id']} ({one_line(run['name'])}) {in_words(run['status'])}.")
    if run["state"] == "queued" and run["message"]:
        print_lines([f"  {run['message']}"])
    if profile := run.get("profile"):
        print_lines([f"  {profile['message']}"])
    print_lines(issue_lines(warnings, OPTIONS))
    if left_out:
        names = ", ".join(left_out)
        typer.echo(f"  not passed on, because they look secret: {names} (--env NAME passes one on)")


def _admitted(settings: "Settings", asked: Document, *, as_json: bool) -> int:
    """The id of the run. The service is started where there is none."""
    if settings.scripts != "local":
        raise CommandFailed(
            f"Your own commands are turned off here (STOKER_SCRIPTS={settings.scripts}). Ask "
            "whoever runs the service to register the command."
        )
    answer = _ask(settings, asked)
    if answer is None and "database_id" in asked:  # its worker has just ended
        raise _other_service(settings)
    if answer is None:
        _start_service(settings, as_json=as_json)
        answer = _ask(settings, asked)
    if answer is None:
        raise CommandFailed(
            "No worker of your user is running here. `stoker workers` lists the workers, and "
            "`stoker doctor` says what is wrong.",
            ExitCode.unreachable,
        )
    if (problem := answer.get("problem")) is not None:
        if problem.get("code") == OtherService.code:
            raise _other_service(settings)
        raise _refused(problem, asked["request"]["recipe"].get("env", ()))
    return int(answer["run"])


def _require_own_service(settings: "Settings") -> str | None:
    """Returns the database id of the service at STOKER_URL, so that the worker can compare it with
    its own; None without STOKER_URL. CommandFailed where no worker listens here.
    """
    if not os.environ.get("STOKER_URL"):
        return None
    if not any(settings.sockets_dir.glob("agent-*.sock")):
        raise _other_service(settings)
    with connect() as client:
        database_id = client.version().get("database_id")
    if database_id is None:
        raise CommandFailed(
            f"The service at {os.environ['STOKER_URL']} does not name its database: that is away, "
            "or the service is of an earlier version. So nobody knows whether its worker runs "
            "here, and nothing was started.",
            ExitCode.unreachable,
            hints=["  Run it without that address: env -u STOKER_URL stoker run -- COMMAND"],
        )
    return str(database_id)


def _other_service(settings: "Settings") -> CommandFailed:
    return CommandFailed(
        f"STOKER_URL is set to {os.environ['STOKER_URL']}, and no worker of that service runs here "
        f"in {settings.home}. `stoker run` starts a command on the machine where it is typed, so "
        "nothing was started.",
        hints=[
            "  Run it on that machine, in a shell there.",
            "  Or run it on this machine: env -u STOKER_URL stoker run -- COMMAND",
            "  Or submit a command that is registered there: stoker submit SPEC.yaml",
        ],
        code=OtherService.code,
    )


def _refused(problem: Document, env: Iterable[str]) -> CommandFailed:
    """With each finding in words of the command line, for nobody has typed the request. `env`: what
    --env has named.
    """
    options = OPTIONS | {f"recipe.env.{name}": f"--env {name}" for name in env}
    issues = [
        {**issue, "fix_options": fix_steps(issue, options)} for issue in problem.get("issues") or ()
    ]
    if not issues:
        return CommandFailed(str(problem["detail"]), document=problem)
    hints = issue_lines(issues, options)
    # The findings say all that its sentence would.
    return CommandFailed(
        "The command was refused.", hints=hints, document={**problem, "issues": issues}
    )


def _ask(settings: "Settings", asked: Document) -> Document | None:
    """What an agent of this home answers; None where none listens."""
    for path in sorted(settings.sockets_dir.glob("agent-*.sock")):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30.0)
            try:
                connection.connect(socket_address(path))
            except OSError:  # of an agent that was killed
                continue
            try:
                connection.sendall(json.dumps(asked).encode() + b"\n")
                with connection.makefile("rb") as file:
                    answer: Document = json.loads(file.readline(ANSWER_BYTES))
            except (OSError, ValueError):
                raise Unanswered(
                    "The worker took the command, but did not answer in time. It may be queued "
                    "anyway: `stoker ls` shows it."
                ) from None
            return answer
    return None


def _start_service(settings: "Settings", *, as_json: bool) -> None:
    from app.cli.host.service import start_detached  # late: start-up

    if not as_json:
        typer.echo("No service is running; starting one in the background (`stoker down` ends it).")
    start_detached(settings, sys.stderr if as_json else sys.stdout)
    deadline = time.monotonic() + START_SECONDS
    while not any(settings.sockets_dir.glob("agent-*.sock")) and time.monotonic() < deadline:
        time.sleep(0.1)
