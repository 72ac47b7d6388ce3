"""Specs drawn so that every rule finds something in some of them, alone and beside others."""

from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

from app.guard.facts import Facts
from app.spec.layers import leaves, overlay, with_default_kinds
from tests.guard.cases import CASES
from tests.guard.world import REQUEST, world

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
            ]
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


def companions(code: str) -> list[str]:
    """Rules whose cases need no world of their own and touch no value of this rule's case."""
    main, anywhere = dict(leaves(CASES[code].found)), world()
    return [
        other
        for other, case in sorted(CASES.items())
        if case.facts == anywhere and not main.keys() & dict(leaves(case.found)).keys()
    ]


@st.composite
def specs_of(draw: st.DrawFn, code: str) -> Drawn:
    """(Request, facts): the case of a rule, with other cases and ordinary choices below it."""
    main = CASES[code]
    request = deepcopy(REQUEST)
    if draw(st.booleans()):
        request = overlay(request, with_default_kinds(draw(ORDINARY)))
    for other in draw(st.lists(st.sampled_from(companions(code)), max_size=4, unique=True)):
        request = overlay(request, with_default_kinds(CASES[other].found))
    return overlay(request, with_default_kinds(main.found)), main.facts
