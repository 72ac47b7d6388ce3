"""What a user would run without Stoker: the demo's model in a plain script, as short as it can be.

`python benchmarks/service/bare_training.py DATA.h5 STATE.pt THREADS` trains until it is ended, from
STATE.pt if that is there; it saves after its first step. It prints how many steps it has made and
when that was: after the first, and after each epoch.
"""

import sys
import time
from pathlib import Path

import h5py
import torch
from torch import Tensor, nn

BATCH = 128
PATCH = 6


class Forecaster(nn.Module):
    """Windows (B, 360, F) to forecasts (B, 36)."""

    def __init__(self, features: int, horizon: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features * PATCH, 64, batch_first=True)
        self.head = nn.Linear(64, horizon)

    def forward(self, windows: Tensor) -> Tensor:
        steps = windows.reshape(len(windows), -1, windows.shape[-1] * PATCH)
        forecast: Tensor = self.head(self.lstm(steps)[0][:, -1])
        return forecast


def main(data: Path, state: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    with h5py.File(data) as file:
        features = torch.from_numpy(file["features"][:])
        targets = torch.from_numpy(file["targets"][:])
    model = Forecaster(features.shape[-1], targets.shape[-1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if state.exists():
        saved = torch.load(state)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    steps = 0
    while True:
        for batch in torch.split(torch.randperm(len(features)), BATCH):
            loss = nn.functional.mse_loss(model(features[batch]), targets[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # PyTorch has no type for it
            optimizer.step()
            steps += 1
            if steps == 1:
                stepped_at = time.time()
                saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(saved, state)
                print(steps, stepped_at, flush=True)
        print(steps, time.time(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
