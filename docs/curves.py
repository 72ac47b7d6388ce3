"""Draws curves of runs as an SVG, panel beside panel, for the documents.

`python -m docs.curves OUT.svg "TITLE|METRICS.csv|NAME[|NAIVE]" …`: a panel each, with the series
NAME of what `stoker metrics RUN --csv` wrote, over steps, and a dashed line at the best baseline.
"""

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDE, HIGH = 300, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 34, 34
Point = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    title: str
    points: list[Point]
    naive: float | None

    @classmethod
    def read(cls, argument: str) -> "Panel":
        """Raises SystemExit where the file has no such series."""
        title, path, name, *naive = argument.split("|")
        with Path(path).open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["name"] == name]
        if not rows:
            raise SystemExit(f"{path} has no series {name}.")
        points = [(float(row["step"]), float(row["value"])) for row in rows]
        return cls(title, sorted(points), float(naive[0]) if naive else None)

    def draw(self, offset: int) -> Iterator[str]:
        """Elements, moved to the right by `offset`."""
        values = [value for _, value in self.points] + ([] if self.naive is None else [self.naive])
        low, high, last = min(values), max(values), self.points[-1][0]
        room = ((high - low) or 1.0) * 0.08
        low, high = low - room, high + room
        right, bottom = WIDE - RIGHT, HIGH - BOTTOM

        def place(step: float, value: float) -> Point:
            across = LEFT + step / (last or 1.0) * (right - LEFT)
            return across, bottom - (value - low) / (high - low) * (bottom - TOP)

        yield f'<g transform="translate({offset} 0)">'
        yield f'<text x="{LEFT}" y="20" font-weight="bold">{escape(self.title)}</text>'
        yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" stroke="#999" fill="none"/>'
        for value in (values[0], self.points[-1][1]):
            yield f'<text x="{LEFT - 5}" y="{place(0, value)[1] + 4:.1f}" text-anchor="end">{value:.2f}</text>'  # noqa: E501
        yield f'<text x="{right}" y="{HIGH - 14}" text-anchor="end">step {last:,.0f}</text>'
        if self.naive is not None:
            height = place(0, self.naive)[1]
            yield f'<path d="M{LEFT} {height:.1f}H{right}" stroke="#b50" stroke-dasharray="5 4"/>'
            yield f'<text x="{right}" y="{height - 5:.1f}" fill="#b50" text-anchor="end">best baseline {self.naive:.2f}</text>'  # noqa: E501
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in self.points))
        yield f'<polyline points="{line}" stroke="#06c" stroke-width="2" fill="none"/></g>'


def draw(panels: list[Panel]) -> str:
    """The whole picture, on white, so that it can be read on any page."""
    wide = WIDE * len(panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {HIGH}" width="{wide}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{wide}" height="{HIGH}" fill="#fff"/>',
        *(element for n, panel in enumerate(panels) for element in panel.draw(n * WIDE)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text(draw([Panel.read(argument) for argument in sys.argv[2:]]))
