"""Default ← preset ← request, joined once; every value remembers its source."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from jsonpointer import JsonPointer

from app.errors import InvalidRequest
from app.guard.facts import Facts
from app.guard.fixes import keeping_preset, patch_for
from app.guard.inheritance import Inherited
from app.guard.patching import apply_json_patch
from app.guard.presets.catalog import Catalog, PresetLayer, is_how
from app.spec.availability import unavailable_issues
from app.spec.issue import MOST_ISSUES, Issue, PatchOp, pointer
from app.spec.layers import Document, overlay, provenance, with_default_kinds
from app.spec.parse import parse_spec
from app.spec.run import RunSpec
from app.suggest import closest, did_you_mean

# How alike two names are of which one may be a slip of the pen: h200 is none for h100.
SLIP = 0.8


@dataclass(frozen=True)
class Resolved:
    """The complete spec, where each of its values comes from, and what was wrong on the way."""

    spec: RunSpec | None
    document: Document | None
    provenance: Document
    issues: list[Issue]
    preset: PresetLayer | None = None
    inherited: Inherited | None = None
    """Of a restart: what it takes over of its parent's preset."""


def resolve(
    request: Document, catalog: Catalog, facts: Facts, inherited: Inherited | None = None
) -> Resolved:
    """Join the layers; `document` is the JSON of the complete spec, None when it has errors."""
    preset, issues = choose_preset(request, catalog, facts, inherited)
    layer = with_default_kinds(preset.spec) if preset is not None else {}
    joined = overlay(layer, with_default_kinds(request))
    kept: Document = {}
    if inherited is not None:
        joined, kept = inherited.complete(joined)
    issues += unavailable_issues(joined)
    spec, wrong = parse_spec(joined, request)
    if len(wrong) > MOST_ISSUES:  # a patch would leave most of it wrong, and each would be tried
        wrong = [issue.model_copy(update={"fix": []}) for issue in wrong]
    issues += [issue for issue in wrong if not _covered(issue, issues, wrong)]
    issues = [_with_fix_that_helps(issue, request, layer) for issue in issues]
    issues = [with_preset_kept(issue, request, preset) for issue in issues]
    if spec is None:
        return Resolved(None, None, {}, issues, inherited=inherited)
    document = spec.model_dump(mode="json")
    if preset is not None:
        document["preset"] = preset.name
    sources = [(f"preset:{preset.name}", preset.spec)] if preset is not None else []
    origin = provenance(document, [*sources, ("request", request)]) | kept
    if preset is not None:
        said = _said_aloud(preset, request, origin)
        issues += [with_preset_kept(issue, request, preset) for issue in said]
        if request.get("preset", "auto") == "auto":
            origin["/preset"]["source"] = "guard"
    spec = spec.model_copy(update={"preset": document["preset"]})
    return Resolved(spec, document, origin, issues, preset, inherited)


def _with_fix_that_helps(issue: Issue, request: Document, layer: Document) -> Issue:
    """The issue without a fix that changes what stands in the preset, not in the request, or that
    puts a value where it cannot be.
    """
    if not issue.fix:
        return issue
    without = issue.model_copy(update={"fix": []})
    try:
        patched = apply_json_patch(request, [op.model_dump(mode="json") for op in issue.fix])
    except InvalidRequest:
        return without
    _, still = parse_spec(overlay(layer, with_default_kinds(patched)), patched)
    written = {op.path for op in issue.fix if op.op != "remove"}
    wrong = [other for other in still if pointer(other.loc) in written and not other.fix]
    if wrong and issue.code == "unknown_field":  # that the name is right does not help yet
        said = f"{issue.message} With that, {wrong[0].message}"
        return without.model_copy(update={"message": said})
    return without if wrong else issue


def with_preset_kept(issue: Issue, request: Document, preset: PresetLayer | None) -> Issue:
    """The issue with a fix that changes nothing of what the preset says but what it names."""
    if preset is None or not issue.fix:
        return issue
    return issue.model_copy(update={"fix": keeping_preset(issue.fix, request, preset.spec)})


def choose_preset(
    request: Document, catalog: Catalog, facts: Facts, inherited: Inherited | None
) -> tuple[PresetLayer | None, list[Issue]]:
    """The preset that a restart inherits, that the request names, or that fits the device."""
    if inherited is not None and inherited.holds_for(request):
        return inherited.preset, []
    name = request.get("preset", "auto")
    if name == "auto":
        return _preset_of_device(request, catalog, facts), []
    if not isinstance(name, str):
        return None, []  # the schema says what is wrong with it
    preset = catalog.get(name)
    if preset is not None:
        return preset.as_asked(name), []
    return None, [_without_preset(name, catalog)]


def _without_preset(name: str, catalog: Catalog) -> Issue:
    """A preset that is not there or cannot be read; only a slip of the pen has a fix."""
    broken = catalog.broken.get(name)
    meant = None if broken else closest(name, catalog.names, SLIP)
    there = f"There is no preset {name!r}; there are {', '.join(catalog.names)}."
    return Issue(
        code="correctness.unknown_preset" if broken is None else "correctness.broken_preset",
        severity="error",
        loc=["preset"],
        message=broken or there + did_you_mean(meant),
        why="Without it the run would have other settings than those that were asked for. `stoker "
        "presets` lists them, and `auto` takes the one for the device.",
        fix=[PatchOp(op="replace", path="/preset", value=meant)] if meant is not None else [],
    )


def _preset_of_device(request: Document, catalog: Catalog, facts: Facts) -> PresetLayer | None:
    """None also where no worker has the device: a guess would be fixed for whoever claims it."""
    runtime = request.get("runtime")
    wanted = runtime if isinstance(runtime, dict) else {}
    kind, precision = (str(wanted.get(name, "auto")) for name in ("device", "precision"))
    if kind == "cpu":
        return catalog.pick("cpu", None)  # every host has one
    device = facts.best_device(kind, precision)
    return None if device is None else catalog.pick(device.kind, device.total_memory_bytes)


def _covered(issue: Issue, issues: list[Issue], wrong: list[Issue]) -> bool:
    """Whether a schema error only repeats what `not_available_yet` already says better: of the same
    value, or of the fields of a kind that the schema does not know yet.
    """
    places = [other.loc for other in issues if other.code == "not_available_yet"]
    unknown = [other.loc[:-1] for other in wrong if other.loc in places]
    return issue.loc in places or issue.loc[:-1] in unknown


def _said_aloud(preset: PresetLayer, request: Document, origin: Document) -> Iterator[Issue]:
    """A preset is for how a run computes: what it brings beside that is said, not slipped in."""
    for place, entry in origin.items():
        if is_how(place, entry["value"]) or entry["source"] != f"preset:{preset.name}":
            continue
        loc, value = JsonPointer(place).parts, entry["value"]
        is_batch = place == "/training/batch_size"
        yield Issue(
            code="learning.preset_batch_size" if is_batch else "learning.preset_setting",
            severity="warning",
            loc=loc,
            message=f"The preset {preset.name} sets {'.'.join(loc)} to {json.dumps(value)}.",
            why=(
                "The batch size changes what is learned"
                if is_batch
                else "It changes what the run does"
            )
            + "; it is now fixed for this run.",
            fix=patch_for(request, {place: value}),
        )
