"""The Dockerfile and the Compose files as data, for the tests of this folder."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]


@dataclass
class Stage:
    """One FROM and what follows: instructions as (name, arguments) in order."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str | None:
        return next(
            (text for name, text in reversed(self.instructions) if name == instruction), None
        )

    def copied(self) -> list[str]:
        return [
            source
            for name, text in self.instructions
            if name == "COPY"
            for source in shlex.split(text)[:-1]
        ]


def parse_dockerfile(text: str) -> dict[str, Stage]:
    """Stages by name; line continuations joined, comments left out."""
    stages: dict[str, Stage] = {}
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        instruction, _, arguments = line.partition(" ")
        if instruction == "FROM":
            base, _, name = arguments.partition(" AS ")
            stages[name] = current = Stage(name, base)
        else:
            current.instructions.append((instruction, arguments.strip()))
    return stages


def health_command(stage: Stage) -> list[str]:
    """The exec form of a stage's health check."""
    text = stage.last("HEALTHCHECK")
    assert text is not None
    command = json.loads(text.partition(" CMD ")[2])
    assert isinstance(command, list)
    return command


@pytest.fixture(scope="session")
def stages() -> dict[str, Stage]:
    return parse_dockerfile((ROOT / "Dockerfile").read_text())


@pytest.fixture(scope="session")
def health_commands(stages: dict[str, Stage]) -> dict[str, list[str]]:
    return {name: health_command(stages[name]) for name in ("api", "worker")}


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load((ROOT / "compose.yaml").read_text())
    return document


@pytest.fixture(scope="session")
def compose_gpu() -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load((ROOT / "docs/compose.gpu.yaml").read_text())
    return document
