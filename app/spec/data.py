"""Which data a run trains on, how it is split, and how it reaches the device."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from app.spec.base import FieldName, OpenFraction, SpecModel, disagreement
from stoker.models.base import NameOfDataset

CHUNK_SIZE = re.compile(
    r"^(auto|[1-9][0-9]{0,5}(\.[0-9]{1,3})?(KiB|MiB|GiB|TiB)|[1-9][0-9]?%|100%)$"
)


def _is_chunk_size(value: str) -> str:
    if CHUNK_SIZE.fullmatch(value) is None:
        raise ValueError('give bytes such as "12GiB", a share of device memory ("75%"), or "auto"')
    return value


ChunkSize = Annotated[
    str, AfterValidator(_is_chunk_size), Field(json_schema_extra={"pattern": CHUNK_SIZE.pattern})
]


class _FractionSplit(SpecModel):
    validation_fraction: OpenFraction = 0.2
    """Share of the samples held out for validation, 0 to below 1; default 0.2."""
    test_fraction: OpenFraction = 0.0
    """Share of the samples held out for the test at the end, 0 to below 1; default 0."""

    @model_validator(mode="after")
    def _leaves_something_to_train_on(self) -> Self:
        held_out = self.validation_fraction + self.test_fraction
        if held_out >= 1.0:
            usual: float = type(self).model_fields["validation_fraction"].default
            fix = {"validation_fraction": usual}
            if usual + self.test_fraction >= 1.0:
                fix |= {"test_fraction": usual}
            raise disagreement(
                "validation_fraction",
                "validation_fraction + test_fraction must be below 1",
                f"Together they hold out {held_out:.0%} of the samples: nothing is left to train "
                "on.",
                fix,
            )
        return self


class ChronologicalSplit(_FractionSplit):
    """Training first, then validation, then test, in the order of the file."""

    method: Literal["chronological"] = "chronological"
    """Cut the file in order."""
    gap: Literal["auto"] | Annotated[int, Field(ge=0, le=2**40)] = "auto"
    """Samples left out between two parts; default auto: as many as share steps, 0 for others."""


class RandomSplit(_FractionSplit):
    """Samples drawn at random. Runs with the same seed here hold out the same samples, so their
    scores can be compared whatever `training.seed` is.
    """

    method: Literal["random"]
    """Draw samples at random."""
    seed: Annotated[int, Field(ge=0, le=2**53 - 1)] = 0
    """Seed of the draw; default 0."""


class DatasetsSplit(SpecModel):
    """Validation and test are datasets of their own, with the same fields."""

    method: Literal["datasets"]
    """Use separate datasets."""
    validation: NameOfDataset
    """Name of the validation dataset."""
    test: NameOfDataset | None = None
    """Name of the test dataset; default none."""


class FieldSplit(SpecModel):
    """A field of the dataset says which part each sample belongs to; in a part, samples stay in the
    order of the file.
    """

    method: Literal["field"]
    """Let a field decide."""
    field: FieldName
    """Name of that field: one whole number a sample, 0 training, 1 validation, 2 test."""


class GroupSplit(_FractionSplit):
    """Samples of one group, such as a game, a patient or a molecule's scaffold, are in one part. A
    group's part follows from its name alone, so shares of samples are about those asked for.
    """

    method: Literal["groups"]
    """Keep the samples of a group together."""
    field: FieldName
    """Name of the field that says each sample's group: text, or one whole number a sample."""


Split = Annotated[
    ChronologicalSplit | RandomSplit | DatasetsSplit | FieldSplit | GroupSplit,
    Field(discriminator="method"),
]


class Standardize(SpecModel):
    """Standardization is part of the model and fitted on the training part."""

    inputs: bool | Literal["auto"] = "auto"
    """Shift and scale each input feature to mean 0 and deviation 1; auto: true if the recipe takes
    quantities, false for bits and kinds. Default auto."""
    targets: bool | Literal["auto"] = "auto"
    """Train on standardized targets, auto as for inputs; metrics stay in the target's units.
    Default auto."""


class ChunkedLoader(SpecModel):
    """Big blocks of the file go to device memory; batches are sliced there."""

    kind: Literal["chunked"] = "chunked"
    """The chunked loader."""
    residency: Literal["auto", "resident", "stream"] = "auto"
    """All data on the device, or chunks in turn; auto: resident if it fits. Default auto."""
    chunk_size: ChunkSize = "auto"
    """While streaming, bytes of a chunk ("12GiB") or share of memory ("75%"); default auto."""
    shuffle: Literal["auto", "full", "block", "none", "lanes"] = "auto"
    """Shuffle all samples, blocks and samples within groups of them, or nothing; lanes: each place
    in the batch goes through a stretch of its own in order. auto is settled at submission: full
    where all data stays on the device, else block. Default auto."""
    shuffle_group: Literal["auto"] | Annotated[int, Field(ge=1, le=2**40)] = "auto"
    """Samples shuffled together under block; auto is settled at submission, as many as a chunk
    holds. Default auto."""
    shuffle_block: Literal["auto"] | Annotated[int, Field(ge=1, le=2**40)] = "auto"
    """Neighbours that stay together until their group is shuffled; auto is settled at submission,
    about 64 KiB. Default auto."""

    @model_validator(mode="after")
    def _sizes_are_for_blocks(self) -> Self:
        for name in ("shuffle_group", "shuffle_block"):
            if getattr(self, name) != "auto" and self.shuffle in ("full", "none", "lanes"):
                shuffled = "all" if self.shuffle == "full" else "none"
                raise disagreement(
                    name,
                    f"{name} needs shuffle: block",
                    "It is how many neighbours are shuffled together, block by block; "
                    f"{self.shuffle} shuffles {shuffled} of them.",
                    {name: "auto"},
                )
        return self

    @model_validator(mode="after")
    def _a_group_holds_a_block(self) -> Self:
        group, block = self.shuffle_group, self.shuffle_block
        if group != "auto" and block != "auto" and block > group:
            raise disagreement(
                "shuffle_block",
                "shuffle_block must be no larger than shuffle_group",
                f"A group of {group:,} samples is made of whole blocks, and a block has {block:,}.",
                {"shuffle_block": "auto"},
            )
        return self


class DataLoaderLoader(SpecModel):
    """torch.utils.data.DataLoader: batches are read one by one, here or by processes of its own."""

    kind: Literal["dataloader"]
    """The PyTorch loader."""
    num_workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes that read each part; 0: the trainer reads by itself. Default 0."""
    prefetch_factor: Annotated[int, Field(ge=1, le=64)] | None = None
    """Batches that each worker is ahead; default none (2 with workers)."""
    persistent_workers: bool = False
    """Keep workers between epochs and between evaluations; default false."""
    pin_memory: bool = False
    """Page-locked batches for faster copies to a GPU; default false."""
    multiprocessing_context: Literal["spawn", "forkserver"] = "spawn"
    """How workers start: each anew, or copied from one that has imported; default spawn."""
    shuffle: Literal["full", "none", "lanes"] = "full"
    """Shuffle all samples or none, or go through them in lanes; default full."""

    @model_validator(mode="after")
    def _these_are_for_workers(self) -> Self:
        unset = {"prefetch_factor": None, "persistent_workers": False}
        idle = {name: unset[name] for name in unset if getattr(self, name) and not self.num_workers}
        if idle:
            name, *_ = idle
            raise disagreement(
                name,
                f"{name} needs num_workers of 1 or more",
                "It is about the processes that read ahead, and with num_workers 0 the trainer "
                "reads by itself.",
                idle,
            )
        return self


Loader = Annotated[ChunkedLoader | DataLoaderLoader, Field(discriminator="kind")]


class Data(SpecModel):
    """The data of a run."""

    dataset: NameOfDataset
    """A registered dataset's name."""
    inputs: Annotated[tuple[FieldName, ...], Field(min_length=1, max_length=16)] = ("features",)
    """Names of the input arrays; default as the file or the recipe says, else [features]."""
    targets: Annotated[tuple[FieldName, ...], Field(min_length=1, max_length=16)] = ("targets",)
    """Names of the target arrays; default as the file or the recipe says, else [targets]."""
    split: Split = ChronologicalSplit()
    """How samples are divided into training, validation and test."""
    standardize: Standardize = Standardize()
    """What is standardized."""
    loader: Loader = ChunkedLoader()
    """How samples reach the device."""

    @model_validator(mode="after")
    def _names_each_array_once(self) -> Self:
        for part in ("inputs", "targets"):
            names: tuple[str, ...] = getattr(self, part)
            once = list(dict.fromkeys(names))
            if len(once) < len(names):
                repeated = next(name for name in names if names.count(name) > 1)
                raise disagreement(
                    part,
                    f"{part} has {repeated!r} {names.count(repeated)} times",
                    "The same array again tells the model nothing new, and costs memory and time.",
                    {part: once},
                )
        return self
