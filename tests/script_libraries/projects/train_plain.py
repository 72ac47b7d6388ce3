"""A plain loop in the manner of nanoGPT: one file, which each save writes over."""

import argparse
import os
import time

import torch
from moments import Moments, SlowFile


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out")
    parser.add_argument("--max_steps", type=int, default=100)
    parser.add_argument("--save_steps", type=int, default=20)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--linger", type=float, default=0.0)
    parser.add_argument("--resume")
    args = parser.parse_args()
    torch.manual_seed(0)
    moments = Moments(args.linger)
    text = torch.randint(0, 64, (10_000,), generator=torch.Generator().manual_seed(1))
    model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start, due = 0, 0.0
    if args.resume:
        saved = torch.load(args.resume)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    print("start", start, flush=True)
    os.makedirs(args.out, exist_ok=True)
    for step in range(start + 1, args.max_steps + 1):
        at = torch.randint(0, len(text) - 17, (8,)).tolist()
        x = torch.stack([text[i : i + 16] for i in at])
        y = torch.stack([text[i + 1 : i + 17] for i in at])
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        if step == start + 1:
            moments.come("first step", step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        due = max(due, time.time() - 1) + args.pace
        time.sleep(max(0.0, due - time.time()))
        print("loss", step, loss.item().hex(), flush=True)
        print("step", step, "at", time.time(), flush=True)
        if step % args.save_steps == 0:
            moments.come("evaluation", step)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            path = os.path.join(args.out, "ckpt.pt")
            with SlowFile(path, lambda step=step: moments.come("save", step)) as file:
                torch.save({**state, "step": step}, file)
    print("end", flush=True)


if __name__ == "__main__":
    main()
