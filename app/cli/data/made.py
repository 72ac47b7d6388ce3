"""What a conversion made, in lines for a person."""

from typing import Any

from app.cli.output import number, size

Document = dict[str, Any]
# Of what times are read as, those that may name a time zone.
WITH_ZONES = ("ISO 8601", "timestamps")


def converted(made: Document) -> list[str]:
    smaller = made["bytes_before"] / made["bytes"]
    return [
        *(
            f"{name}: {number(one['samples'])} windows of {number(one['window_length'])} steps are "
            f"a series of {number(one['steps'])}."
            for name, one in made["series"].items()
        ),
        f"{made['path']}: {size(made['bytes'])} in place of {size(made['bytes_before'])}, "
        f"1/{smaller:,.0f} of it.",
    ]


def written(made: Document) -> list[str]:
    shapes = (f"{name} {' × '.join(map(str, shape))}" for name, shape in made["arrays"].items())
    return [
        f"{made['path']}: {', '.join(shapes)}; {size(made['bytes'])}.",
        *([f"Target: {made['classes']}."] if made.get("classes") else []),
    ]


def cut(made: Document) -> list[str]:
    features, in_stretches = len(made["features"]), made["stretches"]
    over = f" in {number(in_stretches)} stretches" if in_stretches > 1 else ""
    of = f"{number(made['steps'])} rows{over}"
    return [
        f"{number(made['samples'])} samples of {number(features)} features, cut out of {of}.",
        *([f"Target: {made['classes']}."] if made.get("classes") else []),
        *_skipped(made),
        *_separated(made),
        *(_read_times(made) or ["No column of times: gaps between rows cannot be seen."]),
        f"{made['path']}: {size(made['bytes'])}.",
    ]


def rows_of(made: Document) -> list[str]:
    what = made["classes"] or "numbers"
    return [
        f"{number(made['samples'])} rows of {number(len(made['features']))} features. Target: "
        f"{made['target']}, {what}.",
        *_skipped(made),
        *_separated(made),
        f"{made['path']}: {size(made['bytes'])}.",
    ]


def _separated(made: Document) -> list[str]:
    by = made.get("separated_by")
    return [f"Columns are separated by {by}."] if by else []


def cut_bars(made: Document) -> list[str]:
    bars = ", ".join(f"{number(count)} of {label}" for label, count in made["timeframes"].items())
    in_stretches = made["stretches"]
    over = f" in {number(in_stretches)} stretches" if in_stretches > 1 else ""
    return [
        f"{number(made['samples'])} samples of {number(len(made['features']))} features: "
        f"bars {bars}{over}. Target: {made['target']}.",
        *_skipped(made),
        *_separated(made),
        *_read_times(made),
        f"{made['path']}: {size(made['bytes'])}.",
    ]


def _read_times(made: Document) -> list[str]:
    """As what the times of rows were read, where there are any."""
    read_as = made.get("times_read_as")
    if read_as is None:
        return []
    zone = "; those without a time zone are taken as UTC" if read_as in WITH_ZONES else ", in UTC"
    return [f"Times were read as {read_as}{zone}."]


def cut_panel(made: Document) -> list[str]:
    missing: dict[str, int] = made["missing_dates"]
    return [
        f"{number(made['samples'])} samples of {number(made['entities'])} entities and "
        f"{number(len(made['features']))} features, cut out of {number(made['dates'])} dates; "
        f"{made['present']:.1%} of them are there. Target: {made['target']} over "
        f"{', '.join(map(str, made['horizons']))} dates.",
        *([f"Missing between their first and last date: {_counts(missing)}."] if missing else []),
        *_skipped(made),
        *_separated(made),
        *_read_times(made),
        f"{made['path']}: {size(made['bytes'])}.",
    ]


def _counts(missing: dict[str, int], most: int = 5) -> str:
    """Those that miss the most first."""
    ordered = sorted(missing.items(), key=lambda one: -one[1])
    shown = ", ".join(f"{name} {count:,}" for name, count in ordered[:most])
    more = len(ordered) - most
    return f"{shown} and {more:,} entities more" if more > 0 else shown


def as_graphs(made: Document) -> list[str]:
    parts = ", ".join(f"{number(count)} {name}" for name, count in made["parts"].items())
    learned = "" if made["target"] is None else f" Target: {made['target']}."
    if missing := made["missing_targets"]:
        learned += f" {number(missing)} labels are missing."
    return [
        f"{number(made['samples'])} molecules of {number(made['atoms']['total'])} atoms, up to "
        f"{number(made['atoms']['most'])} each, and {number(made['bonds'])} bonds.{learned}",
        f"{number(made['scaffolds'])} scaffolds; by these {parts} (scaffold_part).",
        *_skipped(made),
        f"{made['path']}: {size(made['bytes'])}.",
    ]


def _skipped(made: Document) -> list[str]:
    """What could not be used, by kind."""
    kinds = ", ".join(f"{kind.replace('_', ' ')} {n:,}" for kind, n in made["bad"].items())
    return [f"Skipped: {kinds}."] if kinds else []
