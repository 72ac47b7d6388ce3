"""A user's script to measure: it says when it began, trains so many steps, and what they took.

`python benchmarks/service/own_script.py STEPS HIDDEN…`, with the sizes of the hidden layers, prints
its Unix time at its first line, and at the end seconds of processor time and of the clock for the
steps after the first tenth, and glibc's settings.
"""

import os
import sys
import time

print("began", time.time(), flush=True)

import torch  # noqa: E402 - it is not to count for the beginning
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

BATCH = 64


def model_of(hidden: list[int]) -> torch.nn.Sequential:
    """From 64 numbers to one."""
    layers: list[torch.nn.Module] = []
    for width, after in zip([64, *hidden], [*hidden, 1], strict=True):
        layers += [torch.nn.Linear(width, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def main(steps: int, hidden: list[int]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(steps * BATCH, 64), torch.randn(steps * BATCH, 1))
    model = model_of(hidden)
    optimizer = torch.optim.AdamW(model.parameters())
    cpu = wall = 0.0
    for step, (x, y) in enumerate(DataLoader(data, batch_size=BATCH, shuffle=True)):
        if step == steps // 10:
            cpu, wall = time.process_time(), time.perf_counter()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    took = time.process_time() - cpu, time.perf_counter() - wall
    print("took", *took, os.environ.get("GLIBC_TUNABLES", "default"), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(word) for word in sys.argv[2:]])
