"""Rules about the recipe and its loss: what it declares holds for the spec and its data."""

from collections.abc import Iterator

from app.guard.case import Case
from app.guard.rule import Finding, rule
from app.spec.issue import pointer
from app.suggest import closest, did_you_mean

# What tensor cores want of the sizes of matrices in half precision.
MULTIPLE = 8


@rule(
    "correctness.recipe_does_not_fit",
    overridable=False,
    stands_on="What the recipe computes, as it declares it for its own parameters.",
)
def recipe_does_not_fit(case: Case) -> Iterator[Finding]:
    """The recipe's parameters fit each other, the arrays, and what else of the spec is about it."""
    for problem in case.recipe_problems:
        if problem.loc[0] != "data" or problem.loc[1] == "loader":
            yield Finding(problem.loc, problem.message, problem.why, problem.fix)


@rule(
    "speed.slow_recipe",
    stands_on="What the recipe measured of its own parameters, `python -m benchmarks workloads`; "
    "not timed here.",
)
def slow_recipe(case: Case) -> Iterator[Finding]:
    """Nothing is asked of the recipe that it was measured to lose time by."""
    for problem in case.spec.recipe.slowdowns(case.spec.data):
        yield Finding(problem.loc, problem.message, problem.why, problem.fix)


@rule(
    "correctness.unused_weights",
    overridable=False,
    stands_on="What the recipe says that its loss takes.",
)
def unused_weights(case: Case) -> Iterator[Finding]:
    """Labels and classes are weighted where the recipe's loss has them, each class once."""
    for problem in case.spec.weight_problems():
        yield Finding(problem.loc, problem.message, problem.why, problem.fix)


@rule(
    "correctness.unknown_loss_term",
    overridable=False,
    stands_on="A weight of a term that the loss does not have would change nothing.",
)
def unknown_loss_term(case: Case) -> Iterator[Finding]:
    """Each loss weight names a term of the recipe's loss, and one at least is above 0."""
    weights, terms = case.spec.loss_weights, case.spec.recipe.loss_terms
    listed = ", ".join(terms)
    for name, weight in weights.items():
        if name in terms:
            continue
        meant = closest(name, [term for term in terms if term not in weights])
        kept = {term: value for term, value in weights.items() if term != name}
        yield Finding(
            ("loss_weights", name),
            f"The loss of the recipe {case.spec.recipe.kind} has no term {name!r}; it has "
            f"{listed}.{did_you_mean(meant)}",
            "The weight would change nothing.",
            {"/loss_weights": kept | ({meant: weight} if meant else {})},
        )
    if not any(weights.get(term, 1.0) for term in terms):
        yield Finding(
            ("loss_weights",),
            "Every term of the loss has the weight 0.",
            "The loss would be 0 whatever the model does, so nothing would be learned.",
            {"/loss_weights": {}},
        )


@rule(
    "speed.uneven_sizes",
    severity="warning",
    stands_on="NVIDIA, Matrix multiplication background: in half precision tensor cores are used "
    "best where the sizes of matrices are multiples of 8. Timing it needs a GPU; not timed here.",
)
def uneven_sizes(case: Case) -> Iterator[Finding]:
    """On a GPU in half precision the widths of layers are multiples of 8."""
    spec = case.spec
    if case.device.kind != "cuda" or case.precision not in ("bf16-mixed", "fp16-mixed"):
        return
    for field, width in spec.recipe.widths.items():
        if width % MULTIPLE == 0:
            continue
        loc = ("recipe", field)
        wider = -(-width // MULTIPLE) * MULTIPLE
        yield Finding(
            loc,
            f"A width of {width} is no multiple of {MULTIPLE}, and the run computes in "
            f"{case.precision}.",
            "Tensor cores take matrices in pieces of 8 numbers: the last piece would be filled up, "
            "or the product computed without them.",
            {pointer(loc): wider},
        )
