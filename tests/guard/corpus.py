"""Specs drawn so that every rule finds something in some of them, and specs drawn for no rule."""

from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any

from hypothesis import strategies as st

from app.guard.case import Case
from app.guard.facts import Facts, FieldFacts, PartFacts, UnknownFact
from app.guard.registry import RULES
from app.guard.resolve import resolve
from app.planning.arithmetic import PartSizes
from app.spec.layers import overlay, with_default_kinds
from tests.guard.cases import CASES
from tests.guard.world import (
    CATALOG,
    CPU,
    FIELDS,
    HISTORY,
    HOST,
    REQUEST,
    RTX,
    TURING,
    weather,
    world,
)

BY_CODE = {rule.code: rule for rule in RULES}
Drawn = tuple[dict[str, Any], Facts]

LOG_UNIFORM = st.floats(-5, 0.5).map(lambda power: float(f"{10**power:.2g}"))
POWERS = st.integers(0, 13).map(lambda power: 2**power)

# Values that a user may have chosen, each alone without harm in most places.
ORDINARY = st.fixed_dictionaries(
    {},
    optional={
        "training": st.fixed_dictionaries(
            {},
            optional={
                "epochs": st.integers(1, 60),
                "batch_size": st.one_of(POWERS, st.integers(1, 5000)),
                "gradient_accumulation_steps": st.integers(1, 64),
                "drop_last": st.booleans(),
                "log_every_steps": st.sampled_from(["auto", 1, 10, 100]),
            },
        ),
        "optimizer": st.fixed_dictionaries(
            {"kind": st.sampled_from(["adamw", "adam", "sgd"])},
            optional={"lr": LOG_UNIFORM, "weight_decay": st.sampled_from([0.0, 0.01, 0.1])},
        ),
        "schedule": st.sampled_from(
            [
                {"kind": "onecycle"},
                {"kind": "onecycle", "warmup_steps": 0},
                {"kind": "cosine_warmup"},
                {"kind": "cosine_warmup", "warmup_fraction": 0.0},
                {"kind": "linear_warmup", "warmup_steps": 50},
                {"kind": "constant"},
                {"kind": "plateau"},
                {"kind": "plateau", "patience": 0, "monitor": "val_mae"},
            ]
        ),
        "averaging": st.one_of(
            st.fixed_dictionaries(
                {"kind": st.just("swa"), "start_epoch": st.integers(1, 60), "lr": LOG_UNIFORM}
            ),
            st.fixed_dictionaries(
                {
                    "kind": st.just("ema"),
                    "decay": st.sampled_from([0.9, 0.99, 0.999, 0.9999]),
                    "ramp": st.booleans(),
                }
            ),
        ),
        "evaluation": st.fixed_dictionaries(
            {},
            optional={
                "every_steps": st.one_of(st.none(), st.integers(1, 500)),
                "every_epochs": st.one_of(st.none(), st.integers(1, 10)),
                "metrics": st.sampled_from([["mae"], ["mse"], ["mae", "rmse"], []]),
            },
        ),
        "checkpoint": st.fixed_dictionaries(
            {},
            optional={
                "every_seconds": st.one_of(st.none(), st.floats(1.0, 2000.0)),
                "every_steps": st.one_of(st.none(), st.integers(1, 20_000)),
            },
        ),
        "early_stopping": st.sampled_from([None, {}, {"monitor": "val_mae", "patience": 3}]),
    },
)


def all_found(codes: list[str], request: dict[str, Any], facts: Facts) -> bool:
    """Whether each of the rules finds something in the request."""
    resolved = resolve(request, CATALOG, facts)
    if resolved.spec is None:
        return False
    if resolved.preset is not None:
        facts = replace(facts, preset=resolved.preset.match)
    judged = Case(resolved.spec, facts)
    try:
        return all(any(True for _ in BY_CODE[code](judged)) for code in codes)
    except UnknownFact:
        return False


def joined(main: Any, other: Any, usual: Any) -> Any:
    """`main` with what `other` has otherwise than usual, wherever main itself is as usual."""
    if usual in (main, other):
        return other if main == usual else main
    if is_dataclass(usual) and not isinstance(usual, type):
        names = [field.name for field in fields(usual)]
        parts = {n: joined(*(getattr(one, n) for one in (main, other, usual))) for n in names}
        return replace(main, **parts)
    if isinstance(usual, dict):
        names = list({**main, **other})
        return {n: joined(*(one.get(n) for one in (main, other, usual))) for n in names}
    if isinstance(usual, tuple) and len(main) == len(other) == len(usual):
        return tuple(joined(*each) for each in zip(main, other, usual, strict=True))
    return main


# Beside a rule's own case so many others are tried.
TRIED = 18


@st.composite
def specs_of(draw: st.DrawFn, code: str) -> Drawn:
    """(Request, facts): the case of a rule on ordinary choices, beside others that go with it."""
    main = CASES[code]
    request, facts = deepcopy(REQUEST), main.facts
    if draw(st.booleans()):
        request = overlay(request, with_default_kinds(draw(ORDINARY)))
    request = overlay(request, with_default_kinds(main.found))
    kept = [code]
    for other in draw(st.permutations(sorted(CASES)))[:TRIED]:
        both = overlay(request, with_default_kinds(CASES[other].found))
        where = joined(facts, CASES[other].facts, world())
        if all_found([*kept, other], both, where):
            request, facts, kept = both, where, [*kept, other]
    return request, facts


# Beside the ordinary choices: what users ask for of data, model and device.
WIDER = st.fixed_dictionaries(
    {},
    optional={
        "data": st.fixed_dictionaries(
            {
                "loader": st.one_of(
                    st.fixed_dictionaries(
                        {"residency": st.sampled_from(["auto", "resident", "stream"])},
                        optional={
                            "chunk_size": st.sampled_from(["auto", "1MiB", "64MiB", "9GiB", "75%"]),
                            "shuffle": st.sampled_from(["auto", "full", "block", "none"]),
                        },
                    ),
                    st.fixed_dictionaries(
                        {"kind": st.just("dataloader"), "num_workers": st.sampled_from([1, 2, 16])},
                        optional={
                            "prefetch_factor": st.sampled_from([1, 4, 64]),
                            "persistent_workers": st.booleans(),
                            "pin_memory": st.booleans(),
                            "multiprocessing_context": st.sampled_from(["spawn", "forkserver"]),
                            "shuffle": st.sampled_from(["full", "none"]),
                        },
                    ),
                ),
            },
            optional={
                "split": st.one_of(
                    st.fixed_dictionaries(
                        {"method": st.sampled_from(["chronological", "random"])},
                        optional={
                            "validation_fraction": st.sampled_from([0.0, 1e-4, 0.01, 0.1, 0.3]),
                            "test_fraction": st.sampled_from([0.0, 0.01, 0.2]),
                        },
                    ),
                    st.just({"method": "datasets", "validation": "weather"}),
                    st.just({"method": "field", "field": "part"}),
                ),
                "standardize": st.fixed_dictionaries({"targets": st.booleans()}),
            },
        ),
        "recipe": st.fixed_dictionaries(
            {},
            optional={
                "hidden_size": st.sampled_from([16, 64, 100, 512, 2048]),
                "patch": st.sampled_from([1, 6, 7, 36]),
                "loss": st.sampled_from(["huber", "mse", "mae"]),
            },
        ),
        "runtime": st.fixed_dictionaries(
            {},
            optional={
                "precision": st.sampled_from(["fp32", "tf32", "bf16-mixed", "fp16-mixed"]),
                "deterministic": st.booleans(),
                "device": st.sampled_from(["auto", "cpu", "cuda"]),
            },
        ),
        "policy": st.fixed_dictionaries(
            {},
            optional={
                "max_duration_seconds": st.sampled_from([None, 5.0, 3600.0]),
                "hang_timeout_seconds": st.sampled_from(["auto", 5.0, 60.0]),
            },
        ),
    },
)


@st.composite
def worlds(draw: st.DrawFn) -> Facts:
    """A dataset, a device, a host and a history, each as it comes."""
    chunk_rows = draw(st.sampled_from([None, 64]))
    arrays = {
        name: replace(
            array,
            storage="contiguous" if chunk_rows is None else "chunked",
            chunk_rows=chunk_rows,
            nonfinite=draw(st.sampled_from([0, 0, 0, 2])),
            std=draw(st.sampled_from([1.0, 1.0, 0.01, 70.0])),
            sorted=draw(st.sampled_from([False, False, True])),
        )
        for name, array in FIELDS.items()
    }
    samples = draw(st.sampled_from([40, 4020, 4020, 200_000]))
    held_out = draw(st.sampled_from([None, 0, 10, samples]))
    if held_out is not None:
        parts = PartFacts(PartSizes(samples - held_out, held_out, 0), [samples - held_out])
        arrays["part"] = FieldFacts((), "uint8", nonfinite=0, parts=parts)
    data = weather(
        fields=arrays,
        samples=samples,
        size_bytes=samples * 21_744,
        window_steps=draw(st.sampled_from([{}, {"features": 1}, {"features": 24}])),
        network=draw(st.booleans()),
    )
    host = replace(
        HOST,
        available_bytes=draw(st.sampled_from([20, 20, 2])) * 2**30,
        disk_free_bytes=draw(st.sampled_from([100 * 2**30, 2**21])),
    )
    devices = [(replace(device, host=host),) for device in (CPU, CPU, RTX, TURING)]
    history = replace(
        HISTORY,
        iterations_per_second=draw(st.sampled_from([0.5, 20.0, 400.0])),
        checkpoint_seconds=draw(st.sampled_from([0.05, 2.0, 15.0])),
        evaluation_seconds=draw(st.sampled_from([None, 1e-4, 1e-2])),
    )
    return world(
        data,
        devices=draw(st.sampled_from([*devices, ()])),
        history=draw(st.sampled_from([None, history, history])),
    )


@st.composite
def any_specs(draw: st.DrawFn) -> Drawn:
    """(Request, facts) that no rule was thought of for."""
    request = overlay(REQUEST, with_default_kinds(draw(ORDINARY)))
    return overlay(request, with_default_kinds(draw(WIDER))), draw(worlds())
