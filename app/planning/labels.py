"""Class labels in sentences, which the guard and the trainer share."""

from collections.abc import Sequence

MOST_NAMED = 5


def is_constant(mean: float, std: float) -> bool:
    """True if numbers of this mean and deviation are equal. Rounding may leave a deviation."""
    return std <= 1e-9 * abs(mean)


def lacking_sentence(part: str, labels: Sequence[int], target: str) -> str:
    """Says which classes of the target no sample of the part has; names MOST_NAMED at most."""
    named = [str(label) for label in labels[:MOST_NAMED]]
    if len(labels) > MOST_NAMED:
        named.append(f"{len(labels) - MOST_NAMED:,} more")
    *first, last = named
    which = f"the classes {', '.join(first)} and {last}" if first else f"class {last}"
    return f"No sample of the {part} part has {which} of {target!r}."
