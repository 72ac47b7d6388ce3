"""A small regression by Accelerate, saved as its examples save."""

import argparse
import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default=".")
    parser.add_argument("--max_steps", type=int, default=100)
    parser.add_argument("--save_steps", type=int, default=20)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--resume_from_checkpoint")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    x = torch.randn(640, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step, due = 0, 0.0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        (state,) = optimizer.state_dict()["state"][0]["step"].reshape(1).tolist()
        step = int(state)
    print("start", step, flush=True)
    while step < args.max_steps:
        for inputs, targets in loader:
            loss = (model(inputs) - targets).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            due = max(due, time.time() - 1) + args.pace
            time.sleep(max(0.0, due - time.time()))
            print("loss", step, loss.item().hex(), flush=True)
            print("step", step, "at", time.time(), flush=True)
            if step % args.save_steps == 0:
                accelerator.save_state(os.path.join(args.output_dir, f"step_{step}"))
            if step == args.max_steps:
                break
    print("end", flush=True)


if __name__ == "__main__":
    main()
