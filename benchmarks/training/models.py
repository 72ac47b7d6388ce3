"""The three models that are trained: windows (B, 360, F) to forecasts (B, 36)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.loading.files import HORIZON, WINDOW

PATCH = 6


class Convolution(nn.Module):
    """Two strided layers over time."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(features, 32, kernel_size=5, stride=2),
            nn.ReLU(),
            nn.Conv1d(32, 32, kernel_size=5, stride=2),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, HORIZON)

    def forward(self, windows: Tensor) -> Tensor:
        forecast: Tensor = self.head(self.layers(windows.transpose(1, 2)).mean(2))
        return forecast


class Recurrent(nn.Module):
    """An LSTM over patches, as the recipe `sequence` has it."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features * PATCH, 64, batch_first=True)
        self.head = nn.Linear(64, HORIZON)

    def forward(self, windows: Tensor) -> Tensor:
        patches = windows.reshape(len(windows), WINDOW // PATCH, -1)
        forecast: Tensor = self.head(self.lstm(patches)[0][:, -1])
        return forecast


def flat(features: int) -> nn.Module:
    """Few operations for each byte: what the data takes is most of the time."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(WINDOW * features, 16), nn.ReLU(), nn.Linear(16, HORIZON)
    )


MODELS: Mapping[str, Callable[[int], nn.Module]] = {
    "convolution": Convolution,
    "MLP": flat,
    "LSTM": Recurrent,
}


def build(name: str, features: int) -> nn.Module:
    """The same weights each time."""
    torch.manual_seed(0)
    return MODELS[name](features)


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
        model = build(self.model, features).to(self.device)
        if self.compiled:
            model.compile()
        return model

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.bf16)
