"""The sample datasets that `stoker data sample` makes."""

from collections.abc import Mapping
from typing import NamedTuple


class SampleData(NamedTuple):
    """The module that makes it, the file or folder under DATA_ROOT, and its datasets by name."""

    module: str
    path: str
    datasets: Mapping[str, str]


SAMPLES = {
    "weather": SampleData(
        "worker.trainer.tools.sample_weather", "weather.h5", {"weather": "weather.h5"}
    ),
    "bars": SampleData("worker.trainer.tools.sample_bars", "bars.h5", {"bars": "bars.h5"}),
    "board": SampleData("worker.trainer.tools.sample_board", "board", {"board": "board"}),
    "panel": SampleData(
        "worker.trainer.tools.panel.sample_panel", "panel.h5", {"panel": "panel.h5"}
    ),
    "molecules": SampleData(
        "worker.trainer.tools.molecules.sample",
        "molecules",
        {"molecules": "molecules/nci.h5", "solubility": "molecules/solubility.h5"},
    ),
}


def sample_with(dataset: str) -> str | None:
    """The sample that has a dataset of this name."""
    return next((name for name, sample in SAMPLES.items() if dataset in sample.datasets), None)
