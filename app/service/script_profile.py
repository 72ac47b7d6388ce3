"""What earlier runs of the same command took of memory, which a new one asks for.

The same command: a registered one by its name, whatever its parameters; a free one by its program
and script, or module, and the words after it, in the same folder of the same repository, whatever
its options.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePath
from typing import Any, Literal

from app.lifecycle import REASON_POLICY, Reason
from app.planning.profile import COUNTED_POINTS, Measured, Point, Profile, ProfileKey
from app.planning.requirements import Requirements
from app.planning.residency import GIB, MIB, in_gib, in_one_unit
from app.spec.issue import Issue, PatchOp
from app.spec.script import SCRIPT, ScriptSpec, bytes_of
from app.store.telemetry.memory_profiles import MemoryProfiles

Document = dict[str, Any]
Kind = Literal["cpu", "cuda"]

DIGITS = 32
# Of the way in which a command's memory is measured.
VERSION = "1"
# What ended before tells little: it may not have come to its first step.
LEAST_SECONDS = 60.0
NONE = Profile(())
SCRIPTS, BEFORE_WHAT_RUNS = (".py", ".sh"), ("-m", "-c")


@dataclass(frozen=True)
class Took:
    """What runs like it took at their peaks, in bytes; None: not known."""

    device_bytes: int | None = None
    """Of each GPU's memory."""
    host_bytes: int | None = None
    """Of the host's memory, beside a GPU."""
    cpu_bytes: int | None = None
    """Of the host's memory, without a GPU."""
    runs: tuple[int, ...] = ()
    """Which were measured, the newest first."""

    def as_json(self) -> Document:
        return {
            "runs": list(self.runs),
            "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes,
            "cpu_bytes": self.cpu_bytes,
            "message": self._message(),
        }

    def _message(self) -> str:
        host = self.host_bytes
        if host is None and self.device_bytes is None:
            host = self.cpu_bytes
        whose = "of the host's memory" if self.device_bytes is None else "of the host's"
        told = ((self.device_bytes, "of GPU memory"), (host, whose))
        known = [(count, words) for count, words in told if count is not None]
        sizes = in_one_unit([count for count, _ in known])
        parts = [f"{size} {words}" for size, (_, words) in zip(sizes, known, strict=True)]
        which = ", ".join(str(run) for run in self.runs)
        who = f"run{'s' if len(self.runs) > 1 else ''} {which}"
        return f"Runs like this took {' and '.join(parts)} ({who})."


def took_before(
    profiles: MemoryProfiles, spec: ScriptSpec, code: Document | None, run_id: int | None = None
) -> Took | None:
    """What runs like it took on the devices that it may get; None: none was measured. `run_id`: its
    own, where it has one; it is not like itself.
    """
    by_kind = {kind: _key(spec, code, kind) for kind in _kinds(spec)}
    known = profiles.of(by_kind.values())
    others = {key: _without(run_id, profile) for key, profile in known.items()}
    found = {kind: others[key] for kind, key in by_kind.items() if others.get(key, NONE).points}
    if not found:
        return None
    gpu, cpu = found.get("cuda"), found.get("cpu")
    points = [point for profile in found.values() for point in profile.points[:COUNTED_POINTS]]
    runs = sorted({p.run_id for p in points if p.run_id is not None}, reverse=True)
    return Took(_taken(gpu), None if gpu is None else gpu.host_bytes, _taken(cpu), tuple(runs))


def _without(run_id: int | None, profile: Profile) -> Profile:
    kept = (point for point in profile.points if run_id is None or point.run_id != run_id)
    return Profile(tuple(kept))


def _taken(profile: Profile | None) -> int | None:
    """The most of the newest; where memory ran out, so much at least."""
    found = None if profile is None else profile.training(1, 0, accumulated=False)
    return None if found is None else found.least


def measured_script(
    spec: ScriptSpec,
    code: Document | None,
    peak: Mapping[str, int | None],
    reason: Reason,
    seconds: float,
    *,
    on_gpu: bool,
) -> Measured | None:
    """From what an attempt took, in `peak` as `device_bytes` and `host_bytes`, to a point of the
    profile; None where it ended too early to tell. Its runner tells no `host_bytes` of a script
    that did not live long enough to be measured.
    """
    is_done = REASON_POLICY[reason].outcome == "succeed"
    ran_out = reason is (Reason.device_oom if on_gpu else Reason.host_oom)
    if not (is_done or ran_out or seconds >= LEAST_SECONDS):
        return None
    host, device = peak.get("host_bytes"), peak.get("device_bytes")
    if host is None:
        return None
    taken = device if on_gpu else host
    point = Point(
        batch_size=1,  # of all that it computes at once: a script says no more
        training_bytes=taken,
        host_bytes=host if on_gpu else None,
        ran_out="training" if ran_out and taken is not None else None,
    )
    return Measured(_key(spec, code, "cuda" if on_gpu else "cpu"), [point])


def needs_of(spec: ScriptSpec, took: Took | None) -> Requirements:
    """What the user says, else what runs like it took; what neither tells is not known."""
    took = took or Took()
    device, host = bytes_of(spec.runtime.gpu_memory), bytes_of(spec.runtime.host_memory)
    return Requirements(
        device_bytes=took.device_bytes if device is None else device,
        host_bytes=took.host_bytes if host is None else host,
        cpu_bytes=took.cpu_bytes if host is None else host,
    )


def asks_for_less(spec: ScriptSpec, took: Took | None) -> list[Issue]:
    """A warning for each figure of the user's that is below what runs like it took."""
    took = took or Took()
    runtime = spec.runtime
    host = max((took.host_bytes or 0, took.cpu_bytes or 0))
    asked = (
        ("gpu_memory", runtime.gpu_memory, took.device_bytes or 0),
        ("host_memory", runtime.host_memory, host),
    )
    return [
        Issue(
            code="memory.below_profile",
            severity="warning",
            loc=["runtime", name],
            message=f"runtime.{name} is {size}, and runs like this took {in_gib(taken)}.",
            why="It may get a place in which its memory runs out. What was measured: "
            + took.as_json()["message"],
            fix=[PatchOp(op="replace", path=f"/runtime/{name}", value=_size(taken))],
        )
        for name, size, taken in asked
        if size is not None and (bytes_of(size) or 0) < taken
    ]


def _size(count: int) -> str:
    """As a spec has it, rounded up."""
    unit, name = (GIB, "GiB") if count >= 10 * GIB else (MIB, "MiB")
    return f"{-(-count // unit)}{name}"


def _kinds(spec: ScriptSpec) -> tuple[Kind, ...]:
    if spec.runtime.gpus == 0:
        return ("cpu",)
    return ("cuda", "cpu") if spec.runtime.gpus == "auto" else ("cuda",)


def _key(spec: ScriptSpec, code: Document | None, kind: Kind) -> ProfileKey:
    """Of several GPUs each holds a part, so their number counts; their model does not."""
    gpus = 0 if kind == "cpu" else 1 if spec.runtime.gpus == "auto" else spec.runtime.gpus
    return ProfileKey(
        recipe=SCRIPT,
        recipe_version=VERSION,
        shape=_command(spec, code or {}),
        runtime=f"gpus={gpus}",
        device=kind,
    )


def _command(spec: ScriptSpec, code: Document) -> str:
    """A digest that commands share that are the same."""
    recipe = spec.recipe
    if recipe.command is not None:
        told: list[Any] = ["registered", recipe.command]
    elif code.get("repository") is not None:
        told = ["repository", code["repository"], code.get("folder"), what_runs(recipe.argv)]
    else:
        told = ["folder", recipe.cwd, what_runs(recipe.argv)]
    return sha256(json.dumps(told).encode()).hexdigest()[:DIGITS]


def what_runs(argv: Sequence[str]) -> list[str]:
    """The program, with its script or module, and the words up to the first option after it, as in
    `main.py train`. The program counts by its name: each environment has a python of its own.
    """
    program, *rest = argv or ("",)
    places = range(len(rest))
    scripts = [i + 1 for i in places if rest[i].endswith(SCRIPTS)]
    modules = [i + 2 for i in places if rest[i] in BEFORE_WHAT_RUNS]
    options = [i for i in places if rest[i].startswith("-") or "=" in rest[i]]
    begin = next((found[0] for found in (scripts, modules) if found), 0)
    end = next((place for place in options if place >= begin), len(rest))
    return [PurePath(program).name, *rest[:end]]
