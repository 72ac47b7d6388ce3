"""What a script's request asks for that no script can have, or that it tells only half of."""

from collections.abc import Sequence

from app.spec.issue import Issue, PatchOp
from app.spec.layers import Document
from app.spec.script import ScriptSpec

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


def _gpus(number: int) -> str:
    return "GPU" if number == 1 else "GPUs"


def half_told_resume(spec: ScriptSpec) -> list[Issue]:
    recipe = spec.recipe
    if bool(recipe.resume) == bool(recipe.checkpoints):
        return []
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
            message="It says where its checkpoints are, but not how it resumes from one.",
            why="They are kept. But after a pause, a restart or a crash the same command is run "
            "again, which begins anew unless the script itself reads STOKER_RESUME_FROM. Name the "
            "arguments, such as --resume '--resume {checkpoint}'.",
        )
    ]


def cannot_give_way(spec: ScriptSpec) -> list[Issue]:
    """One that may be preempted has to go on afterwards."""
    if not spec.policy.preemptible or spec.recipe.resume:
        return []
    return [
        Issue(
            code="correctness.preemptible_without_resume",
            severity="error",
            loc=["policy", "preemptible"],
            message="It may be preempted, and nothing says how it goes on afterwards.",
            why="Each time a run of higher priority needs its slot, it would begin anew. Name the "
            "arguments, such as --resume '--resume {checkpoint}', and where it saves.",
            fix=[PatchOp(op="remove", path="/policy/preemptible")],
        )
    ]
