"""For Hugging Face's Trainer: its numbers, its saves, and an end at a step when asked to stop.

callback = HuggingFaceCallback()
trainer = Trainer(…, callbacks=[callback])
trainer.train(resume_from_checkpoint=callback.resume_from)
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from stoker.script import init


class HuggingFaceCallback(TrainerCallback):  # type: ignore[misc]  # installed where scripts run
    """Outside of Stoker it does nothing. Whatever the Trainer saves becomes a checkpoint of the
    run; asked to stop, it saves at the end of the step.
    """

    def __init__(self) -> None:
        self.run = init()
        self._numbers: dict[str, float] = {}
        """The newest of each name; they are shown beside a checkpoint."""

    @property
    def resume_from(self) -> str | None:
        """For `resume_from_checkpoint`."""
        return None if self.run.resume_from is None else str(self.run.resume_from)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_more: Any) -> None:
        """Numbers alone; the Trainer may log words besides."""
        numbers = {n: v for n, v in (logs or {}).items() if isinstance(v, (int, float))}
        self._numbers.update(numbers)
        if numbers and state.is_world_process_zero:
            self.run.log(numbers, step=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        if self.run.should_stop():
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """By now all processes have written their part."""
        saved = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        with self.run.checkpoint(state.global_step, self._numbers) as folder:
            if self.run.is_inside and state.is_world_process_zero:
                shutil.copytree(saved, folder, dirs_exist_ok=True)
