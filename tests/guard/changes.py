"""What examples of rules put on top of the good request, and the worlds that they are judged in."""

from dataclasses import dataclass, replace
from typing import Any

from app.guard.facts import (
    ClassFacts,
    DatasetFacts,
    DeviceFacts,
    EdgeFacts,
    Facts,
    FieldFacts,
    LengthFacts,
    PartFacts,
    SourceFacts,
)
from app.planning.arithmetic import PartSizes
from app.planning.shuffle import Neighbours
from tests.guard.world import (
    CPU,
    FIELDS,
    HOST,
    RTX,
    as_measured,
    paced,
    point,
    weather,
    with_field,
    world,
)

Change = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """What is put on top of the good request, and the worlds in which they are judged."""

    found: Change
    missed: Change
    facts: Facts = world()  # noqa: RUF009  facts are frozen
    missed_facts: Facts | None = None


def training(**values: Any) -> Change:
    return {"training": values}


def data(**values: Any) -> Change:
    return {"data": values}


def runtime(**values: Any) -> Change:
    return {"runtime": values}


def averaged_from(epoch: int, lr: float = 5e-4) -> Change:
    """SWA."""
    return {"averaging": {"kind": "swa", "start_epoch": epoch, "lr": lr}}


def on_rtx(**more: Any) -> Facts:
    return world(devices=(RTX,), **more)


def with_host(device: DeviceFacts = CPU, **changes: Any) -> Facts:
    """The world in which the device's host has other facts."""
    return world(devices=(replace(device, host=replace(HOST, **changes)),))


PLATEAU: Change = {"schedule": {"kind": "plateau", "patience": 2}}
PINNED = {"training": {"batch_size": 128}}  # so that no preset brings a batch size
OTHER = replace(weather(), name="winter", samples=900)
SHORT = replace(OTHER, fields={**FIELDS, "targets": replace(FIELDS["targets"], shape=(24,))})
SORTED = with_field("targets", sorted=True)
# 8 neighbours are equal, and those beyond have nothing to do with them.
ALIKE = with_field("targets", neighbours=Neighbours((1, 2, 4, 8, 16), (1.0, 1.0, 1.0, 1.0, 0.5)))
SPLIT_BY_DATASET = {"data": {"split": {"method": "datasets", "validation": "winter"}}}
USUAL = {"batch_size": 128, "gradient_accumulation_steps": 1, "drop_last": False}
ONE_CYCLE: Change = {
    "schedule": {"kind": "onecycle", "warmup_fraction": 0.3, "warmup_steps": None},
    "optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01},
}
WATCHED: Change = {
    "early_stopping": {},
    "schedule": {"kind": "constant"},
    "training": {"epochs": 35},
}
COMPILED = runtime(compile={"mode": "default"})
RESIDENT: Change = data(loader={"residency": "resident"})
STREAMED = {"residency": "stream", "chunk_size": "4MiB"}
CHUNKED = with_field("features", storage="chunked", chunk_rows=64, compression="gzip")


def by_torch(**values: Any) -> Change:
    """The PyTorch loader, with settings of it."""
    return data(loader={"kind": "dataloader", **values})


ATOMS = replace(FIELDS["features"], shape=(41, 4), lengths=LengthFacts(0, 7.5, 41))
EVEN_ATOMS = replace(ATOMS, lengths=LengthFacts(0, 10.25, 41))
GRAPHS = replace(
    FIELDS["features"], shape=(8,), dtype="uint8", lengths=LengthFacts(1, 16.4, 122),
    edges=EdgeFacts(17.5, 130, "uint16", (4,), "uint8"),
)  # fmt: skip
WITH_GRAPHS = world(weather(fields={**FIELDS, "graphs": GRAPHS}))
CONSTANT = {
    "targets": replace(FIELDS["targets"], mean=3.25, std=0.0),
    "others": FIELDS["targets"],
}
# Kinds of molecules, of which class 2 begins behind the training part.
KINDS: Change = {
    "recipe": {"kind": "molecule", "task": "classification", "classes": 3},
    "data": {"inputs": ["graphs"], "targets": ["kinds"]},
}
SORTED_KINDS = weather(
    fields={
        **FIELDS,
        "graphs": GRAPHS,
        "kinds": FieldFacts(
            (), "uint8", nonfinite=0, mean=0.5, std=1.0, sorted=False,
            classes=(
                ClassFacts(0, 2000), ClassFacts(1, 2000), ClassFacts(2, 20, [(0, 4000)]),
            ),
        ),
    }
)  # fmt: skip
TORN = DatasetFacts("new", "invalid", problems=("It is torn.",))
INSPECTING = DatasetFacts("new", "inspecting")
WIDE: Change = {"recipe": {"hidden_size": 512, "patch": 1}}
BY_PART = {"split": {"method": "field", "field": "part"}}


PART = FieldFacts((), "uint8", parts=PartFacts(PartSizes(3000, 600, 420), (3000, 3600)))
PRETRAINED = SourceFacts(
    run_id=7,
    recipe="sequence",
    shape={"recipe": {"hidden_size": 32}},
    tensors=("encoder.weight_ih_l0", "head.weight", "head.bias"),
)
ENDED = SourceFacts(missing="Run 7 is failed and has saved no checkpoint to begin with.")
BEGIN: Change = {"init_from": {"run": 7}, "optimizer": {"lr": 1e-4}}
PARTED = weather(fields={**FIELDS, "part": PART})
LARGE = weather(samples=2_000_000, size_bytes=43_000_000_000)
CARRIED = {"recipe": {"carry_hidden": True}, "training": {"drop_last": True}}
PRICES = weather(
    name="prices",
    fields={
        name: replace(FIELDS["targets"], shape=shape, dtype=dtype)
        for name, shape, dtype in (
            ("features", (60, 20, 5), "float32"),
            ("present", (60, 20), "uint8"),
            ("date", (), "int32"),
            ("targets", (20, 1), "float32"),
            ("known", (20, 1), "uint8"),
        )
    },
    window_steps={"features": 1, "present": 1},
)
PANEL: Change = {
    "recipe": {"kind": "panel-graph"},
    "data": {
        "dataset": "prices",
        "inputs": ["features", "present", "date"],
        "targets": ["targets", "known"],
    },
}
REBUILT = Example(
    {
        **PANEL,
        "recipe": {"kind": "panel-graph", "graph": {"rebuild_every": "batch", "lookback": 60}},
    },
    {**PANEL, "recipe": {"kind": "panel-graph", "graph": {"rebuild_every": 1, "lookback": 60}}},
    world(PRICES),
)
TRANSFORMER: Change = {"recipe": {"encoder": "transformer"}}
UNEVEN: Change = {"recipe": {"encoder": "transformer", "hidden_size": 60}}


def rolled_back(every_steps: int) -> Change:
    """130 steps with a rollback, and a checkpoint every so many."""
    kept = {"policy": {"on_nonfinite": "rollback"}, "checkpoint": {"every_steps": every_steps}}
    return {**training(epochs=5, **USUAL), **kept}


def with_mib(count: int) -> Facts:
    """The world in which so many MiB of the host are available."""
    return with_host(available_bytes=count * 2**20)


def faster(rate: float) -> Facts:
    """The world in which like runs made so many samples a second with batches of 256, 900 of 32."""
    return as_measured({}, on_rtx(), *paced(32, 900.0), *paced(256, rate))


def measured_host(gib: int) -> Facts:
    """The world in which a GPU's host has so many GiB, and like runs took 1 of it."""
    facts = with_host(RTX, available_bytes=gib * 2**30)
    return as_measured(PINNED, facts, point(128, 300))


STREAMED_PINNED = {**data(loader=STREAMED), **PINNED}
SLOWLY_READ = as_measured(PINNED, world(), *paced(128, 5_000.0))
TOO_WIDE = as_measured(WIDE, with_host(available_bytes=2 * 2**30), point(128, 900), point(16, 200))
