"""The presets there are: the packaged ones and the user's own in HOME/presets."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.spec.installed import ANY_RECIPE
from app.spec.layers import leaves, overlay, with_default_kinds
from app.spec.parse import parse_spec
from app.spec.run import PRESET_NAME

GIB = 2**30
# Drivers report a little less than the name on the box: 24 GB cards show 23.6 GiB.
MEMORY_TOLERANCE = 0.93
# What a run is, reads and dares: a layer that is picked by the device has no say in it.
A_RUNS_OWN = (
    "/name", "/notes", "/labels", "/priority", "/mode", "/preset", "/accept_risks", "/loss_weights",
    "/pos_weight", "/class_weights", "/init_from", "/data/dataset", "/data/split/validation",
    "/data/split/test",
)  # fmt: skip
# What the device may have a say in: how a run computes, reads, logs and saves. Not what it learns,
# which would then hang on the worker that was awake, nor which of its checkpoints is the best.
HOW = (
    "/runtime",
    "/data/loader",
    "/evaluation/batch_size",
    "/training/log_every_steps",
    "/checkpoint",
)
BUT_NOT = (
    "/data/loader/shuffle", "/data/loader/shuffle_group", "/data/loader/shuffle_block",
    "/checkpoint/monitor", "/checkpoint/mode",
)  # fmt: skip
# The others draw their batches in another order than the loader that a run has by default.
LOADER, USUAL_LOADER = "/data/loader/kind", "chunked"


class Match(BaseModel):
    """The devices that `preset: auto` gives this preset to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["cpu", "cuda"] = Field(description="Kind of device.")
    memory_gib: float = Field(default=0.0, ge=0.0, description="Least device memory, in GiB.")

    def fits(self, memory_bytes: int) -> bool:
        """Whether a device with so much memory is of that class, or larger."""
        return self.memory_gib * MEMORY_TOLERANCE <= memory_bytes / GIB


class PresetLayer(BaseModel):
    """A named layer of spec defaults for a class of hardware."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="Name to put into the spec.")
    description: str = Field(description="What it is for.")
    match: Match | None = Field(default=None, description="When auto picks it; null: never.")
    spec: dict[str, Any] = Field(description="The layer: a partial run spec.")
    named: dict[str, Any] = Field(
        default_factory=dict,
        description="A layer on top of it, for requests that name the preset.",
    )
    source: Literal["packaged", "user"] = Field(description="Where it comes from.")

    def as_asked(self, wish: object) -> "PresetLayer":
        """The preset with the layer that a request gets whose `preset` is this: one that names it,
        or one that leaves the choice to the device, which has no say in what is learned.
        """
        if wish == "auto":
            return self
        return self.model_copy(update={"spec": overlay(self.spec, self.named)})


@dataclass(frozen=True)
class Catalog:
    """All presets by name; a user's preset hides a packaged one of the same name.

    `broken` has a sentence for each file that could not be used, by the preset's name: one bad file
    must not keep anybody from the others.
    """

    presets: Mapping[str, PresetLayer]
    broken: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        return sorted(self.presets)

    def get(self, name: str) -> PresetLayer | None:
        return self.presets.get(name)

    def pick(self, device: Literal["cpu", "cuda"], memory_bytes: int | None) -> PresetLayer | None:
        """The preset with the most memory that the device has, of two the user's, then by name;
        None when none matches.
        """
        fitting = [
            preset
            for preset in self.presets.values()
            if preset.match is not None
            and preset.match.device == device
            and preset.match.fits(memory_bytes or 0)
        ]
        return min(fitting, key=_rank, default=None)


def _rank(preset: PresetLayer) -> tuple[float, bool, str]:
    memory_gib = preset.match.memory_gib if preset.match is not None else 0.0
    return -memory_gib, preset.source == "packaged", preset.name


def load_catalog(user_dir: Path) -> Catalog:
    """Read every preset: the packaged ones, then the user's."""
    there = files("app.guard.presets").iterdir()
    packaged = [item for item in there if item.name.endswith(".toml")]
    own = sorted(user_dir.glob("*.toml")) if user_dir.is_dir() else []
    presets: dict[str, PresetLayer] = {}
    broken: dict[str, str] = {}
    for item in [*packaged, *own]:
        source: Literal["packaged", "user"] = "user" if item in own else "packaged"
        name = item.name.removesuffix(".toml")
        presets.pop(name, None)
        try:
            presets[name] = _parse(name, source, item.read_text("utf-8"))
        except (OSError, ValueError, TypeError) as error:
            broken[name] = f"The preset file {item} cannot be used: {_reason(error)}."
    return Catalog(presets, broken)


def _parse(name: str, source: Literal["packaged", "user"], text: str) -> PresetLayer:
    """Raises ValueError, or what it is made of, with what is wrong."""
    if name == "auto" or PRESET_NAME.fullmatch(name) is None:
        raise ValueError(
            "no spec can name it so, for `auto` picks one by the device, and a name has small "
            "letters, digits, '.', '_' and '-', 64 at most; give the file another name"
        )
    preset = PresetLayer(name=name, source=source, **tomllib.loads(text))
    for pointer, _ in [*leaves(preset.spec), *leaves(preset.named)]:
        if _is_under(pointer, A_RUNS_OWN):
            raise ValueError(f"{_field(pointer)} is the run's own, and no preset may set it")
    for pointer, value in leaves(preset.spec):
        if preset.match is not None and value != {} and not is_how(pointer, value):
            raise ValueError(
                f"{_field(pointer)} is not how a run computes, so `auto` may not choose it by the "
                "device; say it in [named], which holds where a request names the preset, or take "
                "[match] out"
            )
    for wish in ("auto", name):
        layer = preset.as_asked(wish).spec
        whole = overlay({"recipe": {"kind": ANY_RECIPE}, "data": {"dataset": "any"}}, layer)
        _, issues = parse_spec(with_default_kinds(whole))
        if issues:
            raise ValueError(issues[0].message.rstrip("."))
    return preset


def is_how(pointer: str, value: object) -> bool:
    """Whether a value of the spec says how a run computes, and nothing of what it learns."""
    if pointer == LOADER and value != USUAL_LOADER:
        return False
    return _is_under(pointer, HOW) and not _is_under(pointer, BUT_NOT)


def _is_under(pointer: str, roots: Sequence[str]) -> bool:
    return any(f"{pointer}/".startswith(f"{root}/") for root in roots)


def _field(pointer: str) -> str:
    return pointer.strip("/").replace("/", ".")


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
