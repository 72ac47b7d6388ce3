"""From a request for a script to a plan and a run.

There are free commands of this host's own user, and commands that the administrator registered.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field, create_model

from app.guard.plan import RunPlan
from app.planning.requirements import Owner, SlotOffer
from app.service.script_checks import (
    DECIDED_BY_SCRIPT,
    decided_by_script,
    gpus_of_shell,
    half_told_resume,
    impossible_gpus,
    impossible_memory,
    preempted_late,
    set_by_stoker,
)
from app.service.script_profile import asks_for_less, needs_of, took_before
from app.settings import Settings
from app.spec.base import SpecModel
from app.spec.issue import Issue, PatchOp, pointer
from app.spec.layers import Document, provenance
from app.spec.parse import parse
from app.spec.registered import RegisteredScript
from app.spec.script import LIKE, PLACEHOLDER, ScriptSpec, like_of
from app.store.offers import offers_in_total, owner_of
from app.store.records import NewRun
from app.store.telemetry.memory_profiles import MemoryProfiles
from app.store.worker_records import WorkerRecord
from app.suggest import closest, did_you_mean

# What a request may say of a registered command; all else is said by its registration.
OF_REGISTERED = ("kind", "command", "params")
FROM_ELSEWHERE = (
    "Whoever reaches this address could start any program as the worker's user. Over HTTP there "
    "are the commands that the administrator has registered in stoker.toml."
)
TURNED_OFF = (
    "Whoever runs this service has decided so. Ask them to register the command in stoker.toml, or "
    "to allow it with STOKER_SCRIPTS."
)


@dataclass(frozen=True)
class Admission:
    """Who asks: over the socket of this host's agent, or a parent that was admitted so; None of
    both: over HTTP.
    """

    owner: Owner | None = None
    parent: Document | None = None
    """The request of the run that is restarted."""
    code: Document | None = None
    """The code as it was, see app.codestate; of a restart, that of its parent."""
    env: Sequence[str] = ()
    """Names of `recipe.env`, whose values are kept beside the run."""
    gpus_of_shell: str | None = None
    """CUDA_VISIBLE_DEVICES of the submitting shell, which the run does not get."""
    most_gpus: int | None = None
    """That one worker has which could run it; None: there is no worker to ask."""
    places: Sequence[SlotOffer] = ()
    """The slots of all workers that could run it, with nothing else on their hosts."""


OVER_HTTP = Admission()


def among(
    admission: Admission, workers: Sequence[WorkerRecord], owner: Owner | None = None
) -> Admission:
    """With what these workers have at most; of those of an owner, if one is given."""
    able = [worker for worker in workers if owner is None or owner.admits(owner_of(worker.facts))]
    each = [sum(slot["device"] != "cpu" for slot in worker.slots) for worker in able]
    places = [offer for worker in able for offer in offers_in_total(worker)]
    return replace(admission, most_gpus=max(each, default=None), places=places)


def plan_script(
    request: Document,
    settings: Settings,
    profiles: MemoryProfiles,
    admission: Admission = OVER_HTTP,
) -> RunPlan:
    """The plan of a request for a script; nothing is stored."""
    issues = [*decided_by_script(request), *_admitted(request, settings, admission)]
    issues += set_by_stoker(admission.env)
    filled, found = _filled(request, settings)
    spec, wrong = _parsed(filled, request)
    issues += [*found, *(issue for issue in wrong if not _is_covered(issue, issues))]
    if spec is None:
        return RunPlan(request, None, {}, issues)
    took = took_before(profiles, spec, admission.code)
    issues += gpus_of_shell(spec, admission.gpus_of_shell)
    issues += impossible_gpus(spec, admission.most_gpus)
    issues += impossible_memory(spec, _device(spec), admission.places)
    issues += [*half_told_resume(spec), *preempted_late(spec), *asks_for_less(spec, took)]
    document = spec.model_dump(mode="json")
    sources = [("script", filled), ("request", request)]
    return RunPlan(
        request,
        document,
        provenance(document, sources),
        issues,
        device=_device(spec),
        requirements=needs_of(spec, took),
        profile=None if took is None else took.as_json(),
    )


def new_script_run(
    plan: RunPlan, created_by: str | None = None, admission: Admission = OVER_HTTP
) -> NewRun:
    """The run as it is stored. SpecRejected."""
    spec = plan.require_ok()
    model = ScriptSpec.model_validate_json(json.dumps(spec))
    return NewRun(
        request=plan.request,
        spec=spec,
        provenance=plan.provenance,
        issues=[issue.model_dump(mode="json") for issue in plan.issues],
        name=model.name or _usual_name(model),
        notes=model.notes,
        labels=dict(model.labels),
        priority=model.priority,
        recipe=model.recipe.kind,
        mode=model.mode,
        dataset=None,
        device=plan.device,
        requirements=plan.requirements,
        gpus=model.gpus,
        max_retries=model.max_retries,
        created_by=created_by,
        owner=admission.owner,
        code=admission.code,
    )


def _usual_name(spec: ScriptSpec) -> str:
    """The registered command, or the script's file."""
    if spec.recipe.command is not None:
        return spec.recipe.command
    files = [part for part in spec.recipe.argv if part.endswith((".py", ".sh"))]
    return (files or list(spec.recipe.argv))[0].rpartition("/")[2][:100]


def _admitted(request: Document, settings: Settings, admission: Admission) -> list[Issue]:
    """Free commands come over the socket alone, or from a parent, unchanged."""
    recipe = request["recipe"]
    if settings.scripts == "off":
        return [_not_allowed("Scripts are off here (STOKER_SCRIPTS=off).", why=TURNED_OFF)]
    if recipe.get("command") is not None:
        return [_of_registration(name) for name in recipe if name not in OF_REGISTERED]
    if settings.scripts == "registered":
        said = "Only registered commands run here (STOKER_SCRIPTS=registered)."
        return [_not_allowed(said, why=TURNED_OFF)]
    if admission.owner is not None or not set(recipe) - set(OF_REGISTERED):
        return []  # over the socket; or one that names no command at all, which is told elsewhere
    if admission.parent is not None and recipe == admission.parent.get("recipe"):
        return []
    parent = (admission.parent or {}).get("recipe") or {}
    changed = [name for name in recipe if name != "kind" and recipe[name] != parent.get(name)]
    return [
        _not_allowed(
            "A command of your own can only be submitted with `stoker run -- COMMAND`, on the "
            "machine that runs it; a restart can change anything but the recipe.",
            changed[0] if changed else "kind",
            fix=[_as_it_was(name, parent) for name in changed] if parent else [],
        )
    ]


def _as_it_was(name: str, parent: Document) -> PatchOp:
    """Takes a change of the recipe back."""
    path = pointer(["recipe", name])
    if name not in parent:
        return PatchOp(op="remove", path=path)
    return PatchOp(op="replace", path=path, value=parent[name])


def _of_registration(name: str) -> Issue:
    return Issue(
        code="script_not_allowed",
        severity="error",
        loc=["recipe", name],
        message=f"{name} is fixed by the command's registration.",
        why="The administrator has registered what may run here, with the values that may change: "
        "recipe.params.",
        fix=[PatchOp(op="remove", path=pointer(["recipe", name]))],
    )


def _not_allowed(
    message: str,
    field: str = "kind",
    why: str = FROM_ELSEWHERE,
    fix: Sequence[PatchOp] = (),
) -> Issue:
    return Issue(
        code="script_not_allowed",
        severity="error",
        loc=["recipe", field],
        message=message,
        why=why,
        fix=list(fix),
    )


def _filled(request: Document, settings: Settings) -> tuple[Document, list[Issue]]:
    """The request with what `like` and the registered command say, where it does not itself."""
    recipe: Document = dict(request["recipe"])
    issues: list[Issue] = []
    if recipe.get("command") is not None:
        registered, issues = _registered(recipe, settings)
        recipe = {**registered, **recipe}
    elif recipe.get("params"):
        issues = [_params_without_command()]
    if (like := recipe.get("like")) in LIKE:
        resume, checkpoints = like_of(str(like), recipe.get("argv") or ())
        recipe = {"resume": list(resume), "checkpoints": list(checkpoints), **recipe}
    if not recipe.get("argv") and not recipe.get("command"):
        issues.append(_no_command())
    return {**request, "recipe": recipe}, issues


def _params_without_command() -> Issue:
    return Issue(
        code="wrong_value",
        severity="error",
        loc=["recipe", "params"],
        message="Only registered commands have params.",
        why="Put what a command of your own needs into its arguments.",
        fix=[PatchOp(op="remove", path="/recipe/params")],
    )


def _no_command() -> Issue:
    return Issue(
        code="missing_field",
        severity="error",
        loc=["recipe", "command"],
        message="There is no command to run.",
        why="`stoker run -- python train.py` runs your own; over HTTP name a registered one.",
    )


def _registered(recipe: Document, settings: Settings) -> tuple[Document, list[Issue]]:
    name = recipe["command"]
    command = settings.registered_scripts.get(name) if isinstance(name, str) else None
    if command is None:
        known = sorted(settings.registered_scripts)
        meant = closest(str(name), known)
        there = f"; there are {', '.join(known)}" if known else ": none is registered here"
        fix = [PatchOp(op="replace", path="/recipe/command", value=meant)] if meant else []
        return {}, [
            Issue(
                code="unknown_command",
                severity="error",
                loc=["recipe", "command"],
                message=f"No command is registered as {name!r}{there}.{did_you_mean(meant)}",
                why="The administrator registers commands in stoker.toml, as [scripts.NAME].",
                fix=fix,
            )
        ]
    values, issues = _params(command, recipe.get("params") or {})
    if values is None:
        return {}, issues
    named = {f"{{{key}}}": _as_text(value) for key, value in values.items()}
    argv = [PLACEHOLDER.sub(lambda m: named.get(m[0], m[0]), part) for part in command.argv]
    fields = {
        "argv": argv,
        "cwd": command.cwd,
        "params": values,
        "resume": list(command.resume),
        "checkpoints": list(command.checkpoints),
        "launch": command.launch,
        "stop_signal": command.stop_signal,
        "grace_seconds": command.grace_seconds,
        "shim": command.shim,
    }
    return fields, issues


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _params(command: RegisteredScript, given: Any) -> tuple[Document | None, list[Issue]]:
    """The values of all parameters; None where one is wrong."""
    spec, issues = parse(_model_of(command), {"recipe": {"params": given}})
    return None if spec is None else spec.model_dump(mode="json")["recipe"]["params"], issues


def _model_of(command: RegisteredScript) -> type[SpecModel]:
    """A spec in which the parameters have their place."""
    fields: dict[str, Any] = {}
    for name, param in command.params.items():
        kind: Any = param.python_type
        if param.choices:
            kind = Literal[tuple(param.choices)]
        bounds = Field(default=... if param.default is None else param.default,
                       ge=param.ge, le=param.le)  # fmt: skip
        fields[name] = (kind, bounds)
    params: Any = create_model("Params", __base__=SpecModel, **fields)
    recipe: Any = create_model("Recipe", __base__=SpecModel, params=(params, ...))
    return create_model("Registered", __base__=SpecModel, recipe=(recipe, ...))


def _parsed(filled: Document, request: Document) -> tuple[ScriptSpec | None, list[Issue]]:
    given = {name: value for name, value in filled.items() if name not in DECIDED_BY_SCRIPT}
    return parse(ScriptSpec, given, request)


def _is_covered(issue: Issue, issues: list[Issue]) -> bool:
    return any(other.loc == issue.loc for other in issues)


def _device(spec: ScriptSpec) -> Literal["auto", "cpu", "cuda"]:
    if spec.runtime.gpus == 0:
        return "cpu"
    return "auto" if spec.runtime.gpus == "auto" else "cuda"
