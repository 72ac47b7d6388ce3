"""A small regression by Lightning, as one writes it for oneself."""

import argparse
import time

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from moments import Moments
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    """A line through points."""

    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_index):
        x, y = batch
        loss = (self.line(x) - y).square().mean()
        self.log("train_loss", loss)
        print("loss", self.global_step + 1, loss.item().hex(), flush=True)
        return loss

    def validation_step(self, batch, batch_index):
        x, y = batch
        self.log("val_loss", (self.line(x) - y).square().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Tells(Callback):
    """Prints where it begins, and each step with its time."""

    def __init__(self, pace, linger):
        self.pace, self.moments, self.start, self.due = pace, Moments(linger), 0, 0.0

    def on_train_start(self, trainer, module):
        self.start = trainer.global_step
        print("start", trainer.global_step, flush=True)

    def on_train_batch_start(self, trainer, module, batch, batch_index):
        if trainer.global_step == self.start:
            self.moments.come("first step", trainer.global_step)

    def on_validation_batch_start(self, trainer, module, batch, batch_index, dataloader_index=0):
        if not trainer.sanity_checking:
            self.moments.come("evaluation", trainer.global_step)

    def on_save_checkpoint(self, trainer, module, checkpoint):
        self.moments.come("save", trainer.global_step)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        self.due = max(self.due, time.time() - 1) + self.pace
        time.sleep(max(0.0, self.due - time.time()))
        print("step", trainer.global_step, "at", time.time(), flush=True)


def read_options():
    """Of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_steps", type=int, default=100)
    parser.add_argument("--save_steps", type=int, default=20)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--linger", type=float, default=0.0)
    parser.add_argument("--csv", action="store_true", help="log to metrics.csv")
    parser.add_argument("--save_on_exception", action="store_true")
    parser.add_argument("--ckpt_path")
    return parser.parse_args()


def fit(args, ckpt_path, *callbacks):
    """Train, from a checkpoint on if there is one."""
    lightning.seed_everything(0)
    x = torch.randn(640, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    saves = ModelCheckpoint(
        every_n_train_steps=args.save_steps,
        save_top_k=-1,
        save_on_exception=args.save_on_exception,
    )
    trainer = lightning.Trainer(
        max_steps=args.max_steps,
        accelerator="cpu",
        logger=CSVLogger(".") if args.csv else True,
        log_every_n_steps=5,
        callbacks=[Tells(args.pace, args.linger), saves, *callbacks],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Line(),
        DataLoader(data, batch_size=16, shuffle=True),
        DataLoader(data, batch_size=320),
        ckpt_path=ckpt_path,
    )
    print("end", flush=True)


if __name__ == "__main__":
    options = read_options()
    fit(options, options.ckpt_path)
