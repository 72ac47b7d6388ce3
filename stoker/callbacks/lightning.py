"""For Lightning's Trainer: its numbers, saves, and an end at a step when asked to stop.

callback = LightningCallback(every_n_steps=1000)
trainer = lightning.Trainer(…, callbacks=[callback])
trainer.fit(model, data, ckpt_path=callback.ckpt_path)
"""

from __future__ import annotations

from typing import Any

from stoker.script import init

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities.exceptions import SIGTERMException
except ImportError:  # its older name
    from pytorch_lightning import Callback
    from pytorch_lightning.utilities.exceptions import SIGTERMException

FILE = "lightning.ckpt"


class LightningCallback(Callback):  # type: ignore[misc]  # it is installed where scripts run
    """Outside of Stoker it does nothing. It saves every so many steps, and when asked to stop."""

    def __init__(self, every_n_steps: int | None = None) -> None:
        self.run = init()
        self._every, self._saved, self._logged = every_n_steps, 0, 0

    @property
    def ckpt_path(self) -> str | None:
        """For `fit`."""
        return None if self.run.resume_from is None else str(self.run.resume_from / FILE)

    def on_train_start(self, trainer: Any, *_more: Any) -> None:
        """Of several processes each would be ended by Lightning at a batch of its own, and wait for
        the others there. They agree on a step instead, by `should_stop`.
        """
        self._logged = trainer.global_step
        if trainer.world_size > 1:
            self.run.leave_signal_to_asking(whoever_has_it=True)

    def on_train_batch_end(self, trainer: Any, *_more: Any) -> None:
        """A step has as many batches as gradients are accumulated over; it is logged once."""
        step, stops = trainer.global_step, self.run.should_stop()
        every = trainer.log_every_n_steps  # 0: never
        if every and step % every == 0 and step != self._logged:
            self._logged = step
            self._log(trainer)
        if stops or (self._every and step % self._every == 0):
            self._save(trainer)
        if stops:  # now, whatever is the least that it was told to train
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
            trainer.should_stop = True

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """So Lightning ends one process by itself at the signal, in an evaluation as well. Of
        several none can tell where the others are, so that they save nothing here.
        """
        if isinstance(exception, SIGTERMException) and trainer.world_size == 1:
            self._save(trainer)

    def _save(self, trainer: Any) -> None:
        step = trainer.global_step
        if self.run.is_inside and step > self._saved:
            self._saved = step
            with self.run.checkpoint(step, _numbers(trainer)) as folder:
                trainer.save_checkpoint(folder / FILE)

    def on_validation_end(self, trainer: Any, *_more: Any) -> None:
        if not trainer.sanity_checking:
            self._log(trainer)

    def _log(self, trainer: Any) -> None:
        if numbers := _numbers(trainer):
            self.run.log(numbers, step=trainer.global_step)


def _numbers(trainer: Any) -> dict[str, float]:
    """What the module has logged last."""
    return {name: float(value) for name, value in trainer.callback_metrics.items()}
