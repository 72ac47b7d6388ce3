"""Numbers in the words of findings: bytes, seconds, shares."""

from app.guard.memory.budget import Budget

KIB, MIB, GIB = 2**10, 2**20, 2**30


def size(count: float) -> str:
    """Bytes in the largest unit that gives at least 1."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count:,.0f} bytes"


def duration(seconds: float) -> str:
    """Seconds in the unit that people would use."""
    for unit, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:,.1f} seconds" if seconds >= 1 else f"{seconds:.2g} seconds"


def share(part: float) -> str:
    """A ratio as a percentage."""
    return f"{part:.1%}" if part < 0.1 else f"{part:.0%}"


def one_of(parts: int) -> str:
    """One part of so many, two or more."""
    return {2: "half", 3: "a third"}.get(parts, f"1/{parts}")


def two_digits(number: float) -> float:
    """A setting as one would write it: rounded to two significant digits."""
    return float(f"{number:.1e}")


def largest_items(budget: Budget) -> str:
    """What takes most of the peak."""
    phase = max(budget.peaks, key=lambda name: budget.peaks[name])
    items = [item for item in budget.items if phase in item.phases]
    most = sorted(items, key=lambda item: item.bytes, reverse=True)[:3]
    told = ", ".join(f"{item.name.replace('_', ' ')} {size(item.bytes)}" for item in most)
    return f"While {phase} the largest are {told}."
