"""Rules about the recipe: its model fits the data."""

from collections.abc import Iterator

from app.guard.case import Case
from app.guard.rule import Finding, rule


@rule(
    "correctness.patch_size",
    overridable=False,
    stands_on="Patches fold whole time steps; the rest would be dropped unseen.",
)
def patch_size(case: Case) -> Iterator[Finding]:
    """recipe.patch divides the window's length."""
    spec = case.spec
    window = case.dataset.fields.get(spec.data.inputs[0])
    if window is None or len(window.shape) != 2 or window.shape[0] % spec.recipe.patch == 0:
        return
    if window.lengths is not None:
        return  # each sample has a last patch of its own
    steps = window.shape[0]
    best = max(p for p in range(1, min(spec.recipe.patch, steps) + 1) if steps % p == 0)
    yield Finding(
        ("recipe", "patch"),
        f"A patch of {spec.recipe.patch} does not divide the window of {steps} time steps.",
        f"{steps % spec.recipe.patch} time steps would be left over.",
        {"/recipe/patch": best},
    )
