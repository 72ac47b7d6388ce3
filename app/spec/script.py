"""ScriptSpec: a run of a user's own command. What Stoker does not decide of it is not there."""

import re
import shlex
import signal
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from app.spec.base import SpecModel
from stoker.models.base import Labels, Priority, RunName, Text
from stoker.script import CHECKPOINT as CHECKPOINT
from stoker.script import STEP

SCRIPT = "script"
RETRIES = 3
"""Of a script that can resume."""
PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")
# As people type it: 20GiB, 20GB, 20g. All are powers of two, as GPUs' memory is counted.
SIZE = re.compile(r"([1-9][0-9]{0,5}(?:\.[0-9]{1,3})?) ?([MG])(?:i?B)?", re.IGNORECASE)
UNITS = {"MiB": 2**20, "GiB": 2**30}


class KnownTrainer(NamedTuple):
    """How a well-known trainer goes on from a checkpoint, and where it puts them: {output} is what
    the command line says of its folder, else `output`.
    """

    resume: tuple[str, ...]
    checkpoints: tuple[str, ...]
    output: str = "."


LIKE = {
    "hf": KnownTrainer(
        ("--resume_from_checkpoint", CHECKPOINT), ("{output}/checkpoint-*",), "trainer_output"
    ),
    "lightning": KnownTrainer(
        ("--ckpt_path", CHECKPOINT), ("lightning_logs/version_*/checkpoints/*.ckpt",)
    ),
    "accelerate": KnownTrainer(
        ("--resume_from_checkpoint", CHECKPOINT),
        ("{output}/step_*", "{output}/epoch_*", "{output}/checkpoints/checkpoint_*"),
    ),
    "ultralytics": KnownTrainer(
        ("resume=True", f"model={CHECKPOINT}"), ("runs/*/*/weights/last.pt",)
    ),
}
# Variables that a script gets from its runner; so are all that begin with STOKER_.
SET_BY_STOKER = frozenset(
    {
        *("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
        *("KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"),
        *("TENSORBOARD_LOGGING_DIR", "PYTHONUNBUFFERED"),
    }
)
OUTPUT_OPTIONS = ("--output_dir", "--output-dir", "-o")


PYTHON = re.compile(r"python[0-9.]*")
# Modules that start processes themselves.
LAUNCHERS = frozenset(
    {
        *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
        *("deepspeed.launcher.runner", "horovod.runner"),
    }
)


def is_set_by_stoker(variable: str) -> bool:
    """Whether a script gets this variable from Stoker, whatever its submitter's environment has."""
    return variable in SET_BY_STOKER or variable.startswith("STOKER_")


def on_several(argv: Sequence[str], gpus: int) -> tuple[str, ...] | None:
    """`python SCRIPT …` or `python -m MODULE …` as one process a GPU; None of any other command,
    of which nobody knows how to start it so.
    """
    if not argv or not PYTHON.fullmatch(argv[0].rpartition("/")[2]):
        return None
    program = list(argv[1:])
    while program[:1] == ["-u"]:  # as the launcher starts them anyway
        del program[0]
    if program[:1] == ["-m"]:
        if len(program) < 2 or program[1] in LAUNCHERS:
            return None
    elif not program or program[0].startswith("-"):
        return None
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus))
    return (argv[0], *launcher, *program)


def like_of(trainer: str, argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments to resume with, and the patterns of checkpoints, of a trainer of LIKE."""
    resume, checkpoints, output = LIKE[trainer]
    for option, value in zip(argv, [*argv[1:], ""], strict=True):
        if option in OUTPUT_OPTIONS and value:
            output = value
        elif option.startswith(tuple(f"{name}=" for name in OUTPUT_OPTIONS[:2])):
            output = option.partition("=")[2]
    return resume, tuple(pattern.format(output=output) for pattern in checkpoints)


def split_once(value: Any) -> Any:
    """A text is split once, as a shell would; what it becomes is never split again."""
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise ValueError(f"its quotes do not match ({error})") from None
    return tuple(value) if isinstance(value, list) else value


def one_or_more(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def are_bounded(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Raises ValueError for one that would look through everything below a folder."""
    if any("**" in pattern for pattern in patterns):
        raise ValueError("name the folders: ** would look through all that lies below, every time")
    return patterns


def has_placeholder(parts: tuple[str, ...]) -> tuple[str, ...]:
    named = {found for part in parts for found in PLACEHOLDER.findall(part)}
    if parts and named.isdisjoint((CHECKPOINT, STEP)):
        raise ValueError(f"say where the checkpoint goes, by {CHECKPOINT}, or its step, by {STEP}")
    if unknown := named - {CHECKPOINT, STEP}:
        raise ValueError(f"{min(unknown)} is no placeholder; there are {CHECKPOINT} and {STEP}")
    return parts


def is_signal(name: str) -> str:
    if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
        raise ValueError("give a signal that a process can handle, such as SIGTERM or SIGINT")
    return name


def _is_pattern(text: str) -> str:
    try:
        groups = re.compile(text).groupindex
    except re.error as error:
        raise ValueError(f"it is no regular expression ({error})") from None
    if not groups:
        raise ValueError("name what it finds, such as 'loss: (?P<loss>[0-9.]+)'")
    return text


def _size(text: str) -> str:
    """As "20GiB"."""
    found = SIZE.fullmatch(text)
    if found is None:
        raise ValueError('give a size such as "20GiB" or "512MiB"')
    return f"{found[1]}{found[2].upper()}iB"


def bytes_of(size: str | None) -> int | None:
    """Of "20GiB"; None of None."""
    if size is None:
        return None
    return int(float(size[:-3]) * UNITS[size[-3:]])


Argument = Annotated[str, Field(max_length=131_072, pattern=r"^[^\x00]*$")]
Arguments = Annotated[tuple[Argument, ...], Field(max_length=4_096)]
Size = Annotated[str, AfterValidator(_size)]
ParamValue = bool | int | float | Annotated[str, Field(max_length=10_000)]


class ScriptMetrics(SpecModel):
    """Curves from what the script writes, beside those that are found anyway."""

    file: Annotated[str, Field(max_length=4_096)] | None = None
    """A file of JSON lines, or a CSV table, in the script's folder; default none."""
    stdout: Annotated[str, Field(max_length=1_000), AfterValidator(_is_pattern)] | None = None
    """A regular expression with named groups that finds numbers in a line; default none."""


class ScriptRecipe(SpecModel):
    """A command: one that the administrator registered, or the user's own (`stoker run`)."""

    kind: Literal["script"]
    """A command of the user's own."""
    command: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Name of a registered command; default none."""
    params: Annotated[dict[str, ParamValue], Field(max_length=100)] = Field(default_factory=dict)
    """Values of its parameters; default those of its registration."""
    argv: Arguments = ()
    """The command and its arguments. No shell is involved."""
    cwd: Annotated[str, Field(max_length=4_096)] | None = None
    """The folder in which it runs."""
    environment: Annotated[str, Field(pattern=r"^[a-f0-9]{32}$")] | None = None
    """Under which key the submitter's environment is kept; default none."""
    like: Literal["hf", "lightning", "accelerate", "ultralytics"] | None = None
    """Fills in resume and checkpoints as this trainer has them; default none."""
    resume: Annotated[Arguments, BeforeValidator(split_once), AfterValidator(has_placeholder)] = ()
    """Arguments that follow when there is a {checkpoint}, or its {step}, to go on from; default
    none."""
    checkpoints: Annotated[
        Arguments, BeforeValidator(one_or_more), AfterValidator(are_bounded)
    ] = ()
    """Patterns of the checkpoints that it writes, from its folder on; default none."""
    stop_signal: Annotated[str, AfterValidator(is_signal)] = "SIGTERM"
    """The signal that asks it to stop; default SIGTERM."""
    grace_seconds: Annotated[float, Field(ge=0.0, le=86_400.0)] = 300.0
    """Seconds from that signal to SIGKILL; default 300."""
    launch: Literal["auto", "none"] = "auto"
    """On several GPUs, auto starts `python SCRIPT` and `python -m MODULE` as one process a GPU, by
    torch.distributed.run; none: the command starts its processes itself. Default auto."""
    snapshot: bool = False
    """Run the code as it was submitted, from a copy by git; default false."""
    shim: bool = True
    """Count optimizer steps and the wait for data from within; default true."""
    metrics: ScriptMetrics = ScriptMetrics()
    """More curves."""


class ScriptRuntime(SpecModel):
    """What it takes."""

    gpus: Literal["auto"] | Annotated[int, Field(ge=0, le=64)] = "auto"
    """GPUs, all of one worker; 0 takes none; auto: one where there are any. Default auto."""
    gpu_memory: Size | None = None
    """Of each GPU's memory at least, such as "20GiB"; default what there is."""
    host_memory: Size | None = None
    """Of the host's memory at least; default what there is."""


class ScriptCheckpoints(SpecModel):
    """Which of its checkpoints are kept with the run."""

    keep_last: Annotated[int, Field(ge=1, le=1_000)] = 2
    """How many of the newest; default 2."""
    keep_best: Annotated[int, Field(ge=0, le=1_000)] = 1
    """How many of the best, where they come with the monitored metric; default 1."""
    monitor: Annotated[str, Field(max_length=100)] = "val_loss"
    """Which metric decides what is best; default val_loss."""
    mode: Literal["min", "max"] = "min"
    """Whether less or more is better; default min."""


class ScriptPolicy(SpecModel):
    """What happens when something goes wrong."""

    max_retries: Literal["auto"] | Annotated[int, Field(ge=0, le=1_000)] = "auto"
    """New attempts after failures; auto: 3 with `resume`, or after a save by `run.checkpoint`, else
    0. Default auto."""
    max_duration_seconds: Annotated[float, Field(ge=1.0, le=31_536_000.0)] | None = None
    """Seconds that an attempt may run before it is asked to stop, and has succeeded; default none.
    """
    hang_timeout_seconds: Annotated[float, Field(ge=5.0, le=604_800.0)] | None = None
    """Seconds without a step and without a metric after which it is ended; one that has neither
    made a step nor reported a metric is judged by its output. Default none.
    """
    preemptible: bool = False
    """May be stopped for a run of higher priority, to go on later; it is left alone until it has
    saved, and without `resume` until it has saved by `run.checkpoint`. Default false.
    """


class ScriptSpec(SpecModel):
    """A run of a command. Only `recipe` must be given."""

    name: RunName = ""
    """A name for people; default empty."""
    notes: Text = ""
    """Free text; default empty."""
    labels: Labels = Field(default_factory=dict)
    """Labels; default none."""
    priority: Priority = 0
    """Higher is claimed first, -1000 to 1000; default 0."""
    mode: Literal["train"] = "train"
    """A script is always run as it is."""
    recipe: ScriptRecipe
    """The command."""
    runtime: ScriptRuntime = ScriptRuntime()
    """GPUs and memory that it needs."""
    checkpoint: ScriptCheckpoints = ScriptCheckpoints()
    """What is kept."""
    policy: ScriptPolicy = ScriptPolicy()
    """Retries and limits."""

    @property
    def gpus(self) -> int:
        """With auto settled, for a worker that has any."""
        return 1 if self.runtime.gpus == "auto" else self.runtime.gpus

    @property
    def argv(self) -> tuple[str, ...] | None:
        """The command as it is started; None where nobody knows how on so many GPUs."""
        is_plain = self.gpus <= 1 or self.recipe.launch == "none"
        return self.recipe.argv if is_plain else on_several(self.recipe.argv, self.gpus)

    @property
    def max_retries(self) -> int:
        """With auto settled."""
        if self.policy.max_retries == "auto":
            return RETRIES if self.recipe.resume else 0
        return self.policy.max_retries


class SubmittedCode(SpecModel):
    """The code of a command as it was when it was submitted, see `app.codestate.code_state`."""

    git_sha: str | None = None
    dirty: bool | None = None
    diff: str | None = None
    diff_bytes: int | None = None
    untracked: list[str] = Field(default_factory=list)
    argv: list[str] = Field(default_factory=list)
    repository: str | None = None
    folder: str | None = None
    sources: dict[str, str] = Field(default_factory=dict)


def is_script(document: Any) -> bool:
    """Whether a request or a stored spec is of a script."""
    recipe = document.get("recipe") if isinstance(document, dict) else None
    return isinstance(recipe, dict) and recipe.get("kind") == SCRIPT
