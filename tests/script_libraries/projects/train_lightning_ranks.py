"""Two processes of Lightning that get the stop signal at different steps, as they may."""

import os
import signal
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset
from train_lightning import Line

from stoker.callbacks.lightning import LightningCallback


class Stops(lightning.Callback):
    """The first process has the signal at step 20, with the stop file; the second later."""

    def __init__(self, rank):
        self.at = 23 if rank else 20

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        if trainer.global_step == self.at:
            Path(os.environ["STOKER_STOP_FILE"]).touch()
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    x = torch.randn(640, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    trainer = lightning.Trainer(
        max_steps=100,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        callbacks=[LightningCallback(), Stops(int(os.environ["RANK"]))],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(), DataLoader(data, batch_size=16))
    print("end", trainer.global_step, flush=True)
