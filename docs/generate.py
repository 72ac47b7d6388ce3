"""Draws the two pictures of docs/architecture.md from the truth: `python -m docs.generate`.

The floors come from the import contracts in pyproject.toml, the life of a run from
`app.lifecycle.TRANSITIONS`. A test fails when the document holds older pictures.
"""

import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

from app.lifecycle import TERMINAL, TRANSITIONS, RunState

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "architecture.md"


def draw_floors(contracts: list[dict[str, Any]]) -> str:
    """The layers of `app` from top to bottom, what all stand on, and the worker's two sides."""
    by_id = {contract["id"]: contract for contract in contracts}
    floors = [re.findall(r"\w+", layer) for layer in by_id["floors"]["layers"] if "(" not in layer]
    forbidden_to_agent = {name.split(".")[-1] for name in by_id["agent-side"]["forbidden_modules"]}
    forbidden_to_trainer = {
        name.split(".")[-1] for name in by_id["trainer-knows-little"]["forbidden_modules"]
    }
    lines = ["flowchart TB", "  subgraph app"]
    for number, names in enumerate(floors):
        lines.append(f'    floor{number}["{" · ".join(names)}"]')
    lines += [f"    floor{number} --> floor{number + 1}" for number in range(len(floors) - 1)]
    lines += [
        "  end",
        '  stoker["stoker: what people import"]',
        f"  floor{len(floors) - 1} --> stoker",
    ]
    lines += ["  subgraph worker", '    agent["agent, launcher, exporter"]']
    lines += ['    trainer["trainer: torch, h5py, numpy"]', "  end"]
    lines.append("  agent -. starts as a process .-> trainer")
    for source, forbidden in (("agent", forbidden_to_agent), ("trainer", forbidden_to_trainer)):
        top = next(n for n, names in enumerate(floors) if set(names) - forbidden)
        lines.append(f"  {source} --> floor{top}")
    return "\n".join(lines)


def draw_lifecycle() -> str:
    """Every transition; those between the same states share an arrow."""
    arrows: dict[tuple[RunState, RunState], list[str]] = defaultdict(list)
    for transition in TRANSITIONS:
        arrows[transition.source, transition.target].append(f"{transition.when} ({transition.by})")
    lines = ["stateDiagram-v2", "  [*] --> queued: POST /runs or restart (API)"]
    for (source, target), labels in arrows.items():
        lines.append(f"  {source} --> {target}: {'<br/>'.join(labels)}")
    lines += [f"  {state} --> [*]" for state in RunState if state in TERMINAL]
    return "\n".join(lines)


def redraw(document: str) -> str:
    """The document with each picture between its markers drawn anew."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pictures = {
        "floors": draw_floors(project["tool"]["importlinter"]["contracts"]),
        "lifecycle": draw_lifecycle(),
    }
    for name, picture in pictures.items():
        before, mark, rest = document.partition(f"<!-- picture: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise SystemExit(
                f"{DOCUMENT} needs a place from <!-- picture: {name} --> to <!-- end -->"
            )
        document = f"{before}{mark}```mermaid\n{picture}\n```\n{end}{after}"
    return document


if __name__ == "__main__":
    DOCUMENT.write_text(redraw(DOCUMENT.read_text()))
