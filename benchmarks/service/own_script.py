"""A user's script to measure: it says when it began, trains so many steps, and what they took.

`python benchmarks/service/own_script.py STEPS` prints its Unix time at its first line, and at the
end seconds of processor time and of the clock for the steps after the first tenth.
"""

import sys
import time

print("began", time.time(), flush=True)

import torch  # noqa: E402 - it is not to count for the beginning
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

BATCH = 64


def main(steps: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(steps * BATCH, 64), torch.randn(steps * BATCH, 1))
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    cpu = wall = 0.0
    for step, (x, y) in enumerate(DataLoader(data, batch_size=BATCH, shuffle=True)):
        if step == steps // 10:
            cpu, wall = time.process_time(), time.perf_counter()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("took", time.process_time() - cpu, time.perf_counter() - wall, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
