"""What a script's request asks for that no script can have, or that it tells only half of."""

from collections.abc import Sequence
from typing import Literal

from app.planning.requirements import SlotOffer, most_of
from app.planning.residency import in_gib
from app.spec.issue import Issue, PatchOp, pointer
from app.spec.layers import Document
from app.spec.script import ScriptSpec, bytes_of, is_set_by_stoker

# What a recipe has and a script decides by itself.
DECIDED_BY_SCRIPT = (
    "data", "training", "optimizer", "schedule", "averaging", "evaluation", "early_stopping",
    "loss_weights", "init_from", "preset", "accept_risks",
)  # fmt: skip


def decided_by_script(request: Document) -> list[Issue]:
    given = [name for name in DECIDED_BY_SCRIPT if name in request]
    policy = request.get("policy")
    rolls_back = isinstance(policy, dict) and "on_nonfinite" in policy
    return [*_of_recipes(given), *([_no_rollback()] if rolls_back else [])]


def _no_rollback() -> Issue:
    return Issue(
        code="not_of_a_script",
        severity="error",
        loc=["policy", "on_nonfinite"],
        message="Scripts take no policy.on_nonfinite: whether its loss is finite, and which "
        "batches to leave out, the script decides itself.",
        why="It would be ignored. Have the script end with an error where its loss is not finite; "
        "with --resume it is tried again from its newest checkpoint.",
        fix=[PatchOp(op="remove", path="/policy/on_nonfinite")],
    )


def _of_recipes(given: Sequence[str]) -> list[Issue]:
    return [
        Issue(
            code="not_of_a_script",
            severity="error",
            loc=[name],
            message=f"Scripts take no {name}; the script decides that itself.",
            why="It would be ignored, and the run would not do what it says.",
            fix=[PatchOp(op="remove", path=f"/{name}")],
        )
        for name in given
    ]


def set_by_stoker(variables: Sequence[str]) -> list[Issue]:
    """Of what is asked to be in a command's environment, what cannot be chosen."""
    return [
        Issue(
            code="set_by_stoker",
            severity="error",
            loc=["recipe", "env", name],
            message=f"{name} cannot be passed on: Stoker decides it for each command.",
            why="Your value would be lost. How many GPUs it sees is runtime.gpus; all these names, "
            "STOKER_ ones among them, are in docs/scripts.md.",
            fix=[PatchOp(op="remove", path=pointer(["recipe", "env", name]))],
        )
        for name in variables
        if is_set_by_stoker(name)
    ]


def gpus_of_shell(spec: ScriptSpec, gpus: str | None) -> list[Issue]:
    """Warns if the shell had chosen GPUs, and the run may get others. `gpus`: its
    CUDA_VISIBLE_DEVICES, None if unset.
    """
    if gpus is None or spec.runtime.gpus == 0:
        return []
    return [
        Issue(
            code="gpus_of_shell",
            severity="warning",
            loc=["runtime", "gpus"],
            message=f"CUDA_VISIBLE_DEVICES={gpus} of this shell is not passed on: the run sees the "
            "GPUs of its slot.",
            why="Stoker gives each run GPUs that are free: --gpus says how many, 0 for none. To "
            "keep Stoker off a GPU, start `stoker up` with a CUDA_VISIBLE_DEVICES without it.",
        )
    ]


def impossible_gpus(spec: ScriptSpec, most: int | None) -> list[Issue]:
    issues, wanted = [], spec.runtime.gpus
    if most is not None and wanted != "auto" and wanted > most:
        has = f"the largest worker has {most}" if most else "no worker has any"
        issues.append(
            Issue(
                code="not_enough_gpus",
                severity="error",
                loc=["runtime", "gpus"],
                message=f"It asks for {wanted} {_gpus(wanted)}, but {has}.",
                why="All GPUs of a run are of one worker, so it would wait forever.",
                fix=[PatchOp(op="replace", path="/runtime/gpus", value=most)],
            )
        )
    if spec.argv is None:
        named = spec.recipe.command is not None
        how = 'launch = "none" in its registration' if named else "--launch none"
        issues.append(
            Issue(
                code="cannot_be_launched",
                severity="error",
                loc=["recipe", "launch"],
                message="This command cannot be started as one process a GPU. `python SCRIPT` and "
                "`python -m MODULE` can, without options of Python.",
                why=f"One process would use one GPU, but hold all {wanted}. If the command starts "
                f"its processes itself, as torchrun and accelerate do, say so: {how}.",
                fix=[] if named else [PatchOp(op="add", path="/recipe/launch", value="none")],
            )
        )
    return issues


def impossible_memory(
    spec: ScriptSpec, device: Literal["auto", "cpu", "cuda"], places: Sequence[SlotOffer]
) -> list[Issue]:
    """What is asked for and no place has in total; what is merely not free now is waited for."""
    runtime = spec.runtime
    asked = (
        ("gpu_memory", runtime.gpu_memory, ("device_bytes",), "of each GPU's memory", "GPU"),
        ("host_memory", runtime.host_memory, ("host_bytes", "cpu_bytes"), "of host memory", "host"),
    )
    issues = []
    for name, size, needs, what, who in asked:
        most, wanted = most_of(places, device, spec.gpus, needs), bytes_of(size)
        if most is None or wanted is None or wanted <= most:
            continue
        issues.append(
            Issue(
                code="not_enough_memory",
                severity="error",
                loc=["runtime", name],
                message=f"It asks for {in_gib(wanted)} {what}, but the largest {who} that it could "
                f"run on has {in_gib(most)} in total.",
                why="It would wait forever. Ask for less, or start a worker where there is more.",
            )
        )
    return issues


def _gpus(number: int) -> str:
    return "GPU" if number == 1 else "GPUs"


def half_told_resume(spec: ScriptSpec) -> list[Issue]:
    recipe = spec.recipe
    if bool(recipe.resume) == bool(recipe.checkpoints):
        return []
    if not recipe.resume and spec.max_retries:
        return []  # that it may be tried again says that it resumes by itself
    if recipe.resume:
        return [
            Issue(
                code="correctness.resume_without_checkpoints",
                severity="warning",
                loc=["recipe", "checkpoints"],
                message="It says how it resumes, but not where its checkpoints are.",
                why="Only those that it saves by `stoker.init().checkpoint(…)` are found. Name the "
                "others, such as --checkpoints 'out/checkpoint-*'.",
            )
        ]
    return [
        Issue(
            code="correctness.checkpoints_without_resume",
            severity="warning",
            loc=["recipe", "resume"],
            message="Nothing says how the script resumes from its checkpoints.",
            why="After a pause or a restart the same command runs again. If the script loads its "
            "newest checkpoint by itself, or the one that STOKER_RESUME_FROM names, say so with "
            "--retries 3: after a crash it is tried again, too. If it does not, it would begin "
            "anew: name the arguments that resume it, such as --resume '--resume {checkpoint}'.",
        )
    ]


def preempted_late(spec: ScriptSpec) -> list[Issue]:
    """Whether one that may be preempted goes on afterwards is known once it has saved."""
    if not spec.policy.preemptible or spec.recipe.resume:
        return []
    return [
        Issue(
            code="correctness.preemptible_without_resume",
            severity="warning",
            loc=["policy", "preemptible"],
            message="It may be preempted, but does not say how it resumes.",
            why="So it keeps its slot until it has saved by `run.checkpoint` or a callback of "
            "`stoker`: only then is it known that it goes on. If it saves in another way, name "
            "the arguments, such as --resume '--resume {checkpoint}', and where it saves.",
        )
    ]
