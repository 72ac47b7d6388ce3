"""What the guard is told of the world as it is when a request comes."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from app.errors import NotFound
from app.guard.case import Case
from app.guard.facts import (
    AncestorFacts,
    Carried,
    Facts,
    ParentFacts,
    SourceFacts,
    UnknownFact,
)
from app.guard.inheritance import Inherited
from app.guard.plan import gap_was_settled, settle
from app.guard.resolve import Resolved, resolve
from app.lifecycle import RunState
from app.planning.carry import carry_between
from app.planning.pace import Pace
from app.service.data_root import files_called
from app.service.first_weights import source_facts
from app.service.inventory import changed_since, dataset_facts, worker_devices
from app.service.profiles import with_profiles
from app.service.services import Services
from app.spec.imported import is_imported
from app.spec.run import RunSpec
from app.spec.stored import read_stored

Document = dict[str, Any]


@dataclass(frozen=True)
class Parent:
    """The run that is restarted, and which of its checkpoints is asked for."""

    run_id: int
    spec: Document
    provenance: Document
    wish: Literal["latest", "best", "scratch"] | int
    inherited: Inherited | None
    """The values that the restart takes over besides its request; None for a script."""
    other_data: frozenset[str] = frozenset()
    """Its datasets that have another file by now than it trained on."""
    shape: Document | None = None
    """What gave its model the shape; None: it was not known then."""
    request: Document | None = None
    code: Document | None = None
    """Of a script, as it was when it was submitted."""


def facts_for(
    services: Services, request: Document, parent: Parent | None = None
) -> tuple[Facts, Resolved]:
    """The facts as of now, and what the request comes to under them, settled.

    What was learned from runs that are like it can be asked for only once it is resolved.
    """
    names = _named_datasets(request)
    named = services.store.datasets.named(names) if names else {}
    others = {name: known for name, known in services.datasets.get().items() if name not in names}
    root = services.settings.data_root
    wanted = {
        name: replace(dataset_facts(record), changed=changed_since(record, root))
        for name, record in named.items()
    }
    facts = Facts(
        datasets={**others, **wanted},
        files=files_called(names - named.keys(), root),
        devices=tuple(one for worker in services.workers.get() for one in worker_devices(worker)),
    )
    inherited = None if parent is None else parent.inherited
    before = None if parent is None else _parent(parent)
    resolved = resolve(request, services.catalog.get(), facts, inherited)
    source = _source(services, parent, resolved.document)
    settled = settle(resolved, replace(facts, parent=before, source=source))
    if settled.spec is not None:
        facts = with_profiles(services.store.profiles, settled.spec, facts)
    if facts.profiles:  # they say how much memory is left for data, which settles the order
        settled = settle(resolved, replace(facts, parent=before, source=source))
    carried = _carried(services, parent, settled.document, facts)
    learned = replace(
        facts,
        history=_history(services, settled, facts),
        history_looked_for=True,
        source=source,
        ancestors=_ancestors(services, parent, source),
        parent=before and replace(before, carried=carried),
    )
    return learned, settled


def _source(
    services: Services, parent: Parent | None, resolved: Document | None
) -> SourceFacts | None:
    """Of the run whose weights this one would begin with."""
    init_from = None if resolved is None else resolved["init_from"]
    if init_from is None:
        return None
    if parent is not None and parent.wish != "scratch":
        return SourceFacts(is_needed=False)
    return source_facts(services, init_from, None if parent is None else parent.run_id)


def _ancestors(
    services: Services, parent: Parent | None, source: SourceFacts | None
) -> list[AncestorFacts]:
    """The runs that trained the weights which this one begins with."""
    begins_with = source.run_id if source is not None and source.is_needed else None
    if parent is not None and parent.wish != "scratch":
        begins_with = _run_of(services, parent)
    if begins_with is None:
        return []
    return [
        AncestorFacts(
            run_id, _readable(spec), services.store.datasets.others_since(run_id) if spec else ()
        )
        for run_id, spec in services.store.runs.lineage(begins_with).items()
    ]


def _run_of(services: Services, parent: Parent) -> int:
    """The run whose checkpoint the restart begins with: a named one may be of an ancestor."""
    if isinstance(parent.wish, int):
        with suppress(NotFound):  # which the restart refuses
            return services.store.checkpoints.get(parent.wish).run_id
    return parent.run_id


def _readable(spec: Document | None) -> RunSpec | None:
    """The spec, where there is one of a training that this version can read."""
    if spec is None or is_imported(spec):
        return None
    try:
        return read_stored(spec)
    except ValueError:
        return None


def _history(services: Services, settled: Resolved, facts: Facts) -> Pace | None:
    """How fast like runs were on the device that this one would get."""
    if settled.spec is None or settled.document is None:
        return None
    try:
        device = Case(settled.spec, facts).device
    except UnknownFact:
        return None
    return services.store.history.like(settled.document, device.kind, device.name)


def _parent(parent: Parent) -> ParentFacts | None:
    """The parent's spec; what is carried of it depends on what the child's comes to. None where
    this version cannot read it.
    """
    spec = _readable(parent.spec)
    if spec is None:
        return None
    return ParentFacts(spec, gap_was_settled=gap_was_settled(parent.provenance))


def _carried(
    services: Services, parent: Parent | None, settled: Document | None, facts: Facts
) -> Carried | None:
    """The checkpoint whose whole state would be carried."""
    if parent is None or settled is None:
        return None
    if carry_between(parent.spec, settled, parent.other_data).kind != "full":
        return None
    source = services.store.runs.whole_state_of(parent.run_id, parent.wish)
    if source is None:
        return None
    try:
        saved_by = read_stored(services.store.runs.documents(source.run_id).spec)
        steps = Case(saved_by, facts).steps
    except (ValueError, UnknownFact):
        return None
    state = services.store.runs.get(source.run_id).state
    return Carried(source.step, steps, succeeded=state is RunState.succeeded)


def _named_datasets(request: Document) -> set[str]:
    data = request.get("data")
    if not isinstance(data, dict):
        return set()
    split = data.get("split")
    named = [data.get("dataset")]
    if isinstance(split, dict):
        named += [split.get("validation"), split.get("test")]
    return {name for name in named if isinstance(name, str)}
