"""Rules about init_from: weights that are there, and match."""

from collections.abc import Iterator, Mapping
from typing import Any

from app.guard.case import Case
from app.guard.facts import SourceFacts, known
from app.guard.rule import Finding, rule
from app.planning.carry import arrays_of
from app.spec.run import InitFromCheckpoint, InitFromRun
from app.suggest import closest, did_you_mean

MOST_NAMED = 8
ARRAYS = ("inputs", "targets")


def _asked(case: Case) -> tuple[InitFromCheckpoint | InitFromRun, SourceFacts] | None:
    """What is asked for and what is known of it; None where nothing is begun so. UnknownFact."""
    wanted = case.spec.init_from
    if wanted is None:
        return None
    source = known(case.facts.source, "the run that init_from names")
    return (wanted, source) if source.is_needed else None


@rule(
    "correctness.init_from_missing",
    overridable=False,
    stands_on="Weights that are nowhere cannot be begun with, and no run begins without by itself.",
)
def init_from_missing(case: Case) -> Iterator[Finding]:
    """The run or checkpoint that init_from names is there, and has or will have saved weights."""
    asked = _asked(case)
    if asked is None or asked[1].missing is None:
        return
    wanted, source = asked
    name = "checkpoint" if isinstance(wanted, InitFromCheckpoint) else "run"
    yield Finding(
        ("init_from", name),
        str(source.missing),
        "The run would begin with the weights of that one. `stoker ls` shows the runs, `stoker "
        "checkpoints RUN` what each has saved.",
    )


@rule(
    "correctness.init_from_matches_nothing",
    overridable=False,
    stands_on="The checkpoint lists the names of its weights.",
)
def init_from_matches_nothing(case: Case) -> Iterator[Finding]:
    """The prefix of init_from is that of weights in the checkpoint."""
    asked = _asked(case)
    if asked is None or asked[1].missing is not None:
        return
    wanted, source = asked
    if not wanted.prefix:
        return
    names = known(source.tensors, f"the names of the weights of run {source.run_id}")
    if any(name.startswith(wanted.prefix) for name in names):
        return
    begins = sorted({f"{name.split('.')[0]}." for name in names if "." in name})
    meant = closest(wanted.prefix.rstrip("."), [one.rstrip(".") for one in begins])
    yield Finding(
        ("init_from", "prefix"),
        f"No weight in the checkpoint of run {source.run_id} has a name that begins with "
        f"{wanted.prefix!r}." + did_you_mean(meant and f"{meant}."),
        f"Its {len(names):,} names begin with {', '.join(begins[:MOST_NAMED])}: nothing would be "
        "taken from it.",
        {"/init_from/prefix": f"{meant}." if meant else ""},
    )


@rule(
    "learning.init_from_other_shape",
    severity="warning",
    stands_on="What the recipes of both runs declare as the shape of their models.",
)
def init_from_other_shape(case: Case) -> Iterator[Finding]:
    """All weights are taken from a run whose model has the same shape; of others a prefix is."""
    asked = _asked(case)
    if asked is None or asked[1].missing is not None or asked[0].prefix:
        return
    _, source = asked
    kind = case.spec.recipe.kind
    if known(source.recipe, "the recipe of the run that init_from names") != kind:
        differs = [f"its recipe is {source.recipe}, and this one's {kind}"]
    else:
        there = known(source.shape, f"the shape of the model of run {source.run_id}")
        differs = [*_other_fields(there, case.shape), *_other_arrays(there, case.shape)]
        for part in ARRAYS if not differs else ():
            if arrays_of(case.shape, part):
                which = f"the shapes of the {part} of run {source.run_id}"
                known(arrays_of(there, part) or None, which)
    if differs:
        least = case.spec.init_from.min_matched if case.spec.init_from else 0.0
        yield Finding(
            ("init_from",),
            f"The model of run {source.run_id} has another shape: {'; '.join(differs)}.",
            "Weights are taken where name and shape match. Where fewer than "
            f"{least:.0%} of the parameters do, the run ends as carry_mismatch before its first "
            "step; name a prefix to take a part alone.",
        )


def _other_fields(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """Of the recipe; an earlier version may have had no word for one."""
    one, other = there.get("recipe") or {}, here["recipe"]
    for name in sorted(one.keys() & other.keys()):
        if one[name] != other[name]:
            yield f"{name} is {one[name]} there and {other[name]} here"


def _other_arrays(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """By place, for they may have other names."""
    for part in ARRAYS:
        one, other = arrays_of(there, part), arrays_of(here, part)
        if one and other and len(one) != len(other):
            yield f"it has {len(one)} {part} there and {len(other)} here"
        for (name, was), (called, now) in zip(one.items(), other.items(), strict=False):
            if was != now:
                again = "" if called == name else f"{called} "
                yield f"{name} is {was} there and {again}{now} here"
