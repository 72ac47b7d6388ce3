"""The presets there are: the packaged ones and the user's own in HOME/presets."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.errors import InvalidRequest

GIB = 2**30
# Drivers report a little less than the name on the box: 24 GB cards show 23.6 GiB.
MEMORY_TOLERANCE = 0.93


class Match(BaseModel):
    """The devices that `preset: auto` gives this preset to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["cpu", "cuda"] = Field(description="Kind of device.")
    memory_gib: float = Field(default=0.0, ge=0.0, description="Least device memory, in GiB.")


class Preset(BaseModel):
    """A named layer of spec defaults for a class of hardware."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="Name to put into the spec.")
    description: str = Field(description="What it is for.")
    match: Match | None = Field(default=None, description="When auto picks it; null: never.")
    spec: dict[str, Any] = Field(description="The layer: a partial run spec.")
    source: Literal["packaged", "user"] = Field(description="Where it comes from.")


class PresetError(InvalidRequest):
    code, title = "invalid_preset", "A preset file is not valid"


@dataclass(frozen=True)
class Catalog:
    """All presets by name; a user's preset hides a packaged one of the same name."""

    presets: Mapping[str, Preset]

    @property
    def names(self) -> list[str]:
        return sorted(self.presets)

    def get(self, name: str) -> Preset | None:
        return self.presets.get(name)

    def pick(self, device: Literal["cpu", "cuda"], memory_bytes: int | None) -> Preset | None:
        """The preset with the most memory that the device has; None when none matches."""
        have = (memory_bytes or 0) / GIB
        fitting = [
            preset
            for preset in self.presets.values()
            if preset.match is not None
            and preset.match.device == device
            and preset.match.memory_gib * MEMORY_TOLERANCE <= have
        ]
        return max(fitting, key=_memory, default=None)


def _memory(preset: Preset) -> float:
    return preset.match.memory_gib if preset.match is not None else 0.0


def load_catalog(user_dir: Path) -> Catalog:
    """Read every preset; a broken file raises PresetError with its name and what is wrong."""
    packaged = (item for item in files("app.presets").iterdir() if item.name.endswith(".toml"))
    texts = [(item.name, item.read_text("utf-8"), "packaged") for item in packaged]
    if user_dir.is_dir():
        texts += [(str(p), p.read_text("utf-8"), "user") for p in sorted(user_dir.glob("*.toml"))]
    return Catalog({preset.name: preset for preset in _parse_all(texts)})


def _parse_all(texts: Iterable[tuple[str, str, str]]) -> Iterable[Preset]:
    for path, text, source in texts:
        try:
            yield Preset(name=Path(path).stem, source=source, **tomllib.loads(text))
        except (tomllib.TOMLDecodeError, ValidationError, TypeError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise PresetError(f"The preset file {path} cannot be used: {reason}.") from None
