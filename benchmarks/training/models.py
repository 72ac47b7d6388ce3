"""The models that are trained: windows (B, 360, F) to forecasts (B, 36)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.loading.files import HORIZON, WINDOW

PATCH = 6


class Convolution(nn.Module):
    """Strided layers over time."""

    def __init__(self, features: int, channels: int, layers: int) -> None:
        super().__init__()
        widths = [features, *[channels] * layers]
        convolutions = [nn.Conv1d(*pair, kernel_size=5, stride=2) for pair in pairwise(widths)]
        self.layers = nn.Sequential(*(part for one in convolutions for part in (one, nn.ReLU())))
        self.head = nn.Linear(channels, HORIZON)

    def forward(self, windows: Tensor) -> Tensor:
        forecast: Tensor = self.head(self.layers(windows.transpose(1, 2)).mean(2))
        return forecast


class Recurrent(nn.Module):
    """An LSTM over patches, as the recipe `sequence` has it."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features * PATCH, hidden, batch_first=True)
        self.head = nn.Linear(hidden, HORIZON)

    def forward(self, windows: Tensor) -> Tensor:
        patches = windows.reshape(len(windows), WINDOW // PATCH, -1)
        forecast: Tensor = self.head(self.lstm(patches)[0][:, -1])
        return forecast


def flat(features: int, widths: Sequence[int]) -> nn.Module:
    """All numbers of a window at once."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise([WINDOW * features, *widths]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], HORIZON))


MODELS: Mapping[str, Mapping[str, Callable[[int], nn.Module]]] = {
    # So large that a step takes some fifty times as long as to copy its batch, but for the MLP.
    "cpu": {
        "convolution": partial(Convolution, channels=64, layers=2),
        # Few operations for each byte: what the data takes is most of the time.
        "MLP": partial(flat, widths=(16,)),
        "LSTM": partial(Recurrent, hidden=128),
        # What a loader costs is the same for each batch: less of the longer step of this one.
        "larger convolution": partial(Convolution, channels=128, layers=3),
    },
    # So large that a GPU's work takes longer than to launch it.
    "cuda": {
        "convolution": partial(Convolution, channels=1024, layers=4),
        "MLP": partial(flat, widths=(8192, 8192, 8192)),
        "LSTM": partial(Recurrent, hidden=2048),
    },
}


def build(name: str, features: int, device: str = "cpu") -> nn.Module:
    """The same weights each time."""
    torch.manual_seed(0)
    return MODELS[device][name](features).to(device)


@dataclass(frozen=True)
class Subject:
    """A model, and how and where it is trained."""

    model: str
    device: str = "cpu"
    bf16: bool = False
    compiled: bool = False

    @property
    def name(self) -> str:
        how = {"bf16": self.bf16, "compiled": self.compiled}
        return ", ".join([self.model, *(word for word, so in how.items() if so)])

    def build(self, features: int) -> nn.Module:
        model = build(self.model, features, self.device)
        if self.compiled:
            model.compile()
        return model

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.bf16)
