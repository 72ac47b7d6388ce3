"""A language model of random weights by Hugging Face's Trainer, as one writes it for oneself."""

import time
from dataclasses import dataclass

import torch
from moments import Moments
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


@dataclass
class Own:
    """Options beside the Trainer's."""

    pace: float = 0.0
    """Seconds that each step takes at least."""
    linger: float = 0.0
    """Seconds to rest in the first step, each evaluation and each save."""


class Tokens(Dataset):
    """512 texts of 16 tokens, from a seed."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, 64, (512, 16), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Tells(TrainerCallback):
    """Prints where it begins, each step with its time, and what is logged."""

    def __init__(self, pace, moments):
        self.pace, self.moments, self.start, self.due = pace, moments, 0, 0.0

    def on_train_begin(self, args, state, control, **more):
        self.start = state.global_step
        print("start", state.global_step, flush=True)

    def on_step_begin(self, args, state, control, **more):
        if state.global_step == self.start:
            self.moments.come("first step", state.global_step)

    def on_prediction_step(self, args, state, control, **more):
        self.moments.come("evaluation", state.global_step)

    def on_step_end(self, args, state, control, **more):
        self.due = max(self.due, time.time() - 1) + self.pace
        time.sleep(max(0.0, self.due - time.time()))
        print("step", state.global_step, "at", time.time(), flush=True)

    def on_log(self, args, state, control, logs, **more):
        if "loss" in logs:
            print("loss", state.global_step, repr(logs["loss"]), flush=True)


class SlowTrainer(Trainer):
    """Rests in each save when the model is written, and nothing else yet."""

    moments = Moments(0.0)

    def save_model(self, *args, **more):
        super().save_model(*args, **more)
        self.moments.come("save", self.state.global_step)


def make_trainer(*callbacks):
    """By the options of the command line."""
    args, own = HfArgumentParser((TrainingArguments, Own)).parse_args_into_dataclasses()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1)
    moments = Moments(own.linger)
    model, tells = GPT2LMHeadModel(config), Tells(own.pace, moments)
    trainer = SlowTrainer(
        model, args, train_dataset=Tokens(), eval_dataset=Tokens(), callbacks=[tells, *callbacks]
    )
    trainer.moments = moments
    return trainer


if __name__ == "__main__":
    trainer = make_trainer()
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    print("end", flush=True)
