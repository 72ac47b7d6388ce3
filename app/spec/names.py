"""What people write for a field that has another name here: other trainers' names, and typos."""

from app.suggest import SURE, closest

# Names that users of Lightning, Transformers, Keras and PyTorch know, and where they live here.
ALIASES: dict[str, str] = {
    "accelerator": "/runtime/device",
    "accumulate_grad_batches": "/training/gradient_accumulation_steps",
    "batch_size": "/training/batch_size",
    "clip_norm": "/training/clip_grad_norm",
    "d_model": "/recipe/hidden_size",
    "dataset": "/data/dataset",
    "device": "/runtime/device",
    "dtype": "/runtime/precision",
    "early_stopping_patience": "/early_stopping/patience",
    "epoch": "/training/epochs",
    "epochs": "/training/epochs",
    "eval_every": "/evaluation/every_steps",
    "eval_steps": "/evaluation/every_steps",
    "grad_accum": "/training/gradient_accumulation_steps",
    "gradient_accumulation_steps": "/training/gradient_accumulation_steps",
    "gradient_clip_val": "/training/clip_grad_norm",
    "hidden_dim": "/recipe/hidden_size",
    "hidden_size": "/recipe/hidden_size",
    "learning_rate": "/optimizer/lr",
    "logging_steps": "/training/log_every_steps",
    "lr": "/optimizer/lr",
    "max_epoch": "/training/epochs",
    "max_epochs": "/training/epochs",
    "max_grad_norm": "/training/clip_grad_norm",
    "max_steps": "/training/max_steps",
    "n_epochs": "/training/epochs",
    "n_layers": "/recipe/num_layers",
    "num_epochs": "/training/epochs",
    "num_hidden_layers": "/recipe/num_layers",
    "num_layers": "/recipe/num_layers",
    "num_train_epochs": "/training/epochs",
    "num_workers": "/data/loader/num_workers",
    "per_device_eval_batch_size": "/evaluation/batch_size",
    "per_device_train_batch_size": "/training/batch_size",
    "precision": "/runtime/precision",
    "save_every": "/checkpoint/every_steps",
    "save_steps": "/checkpoint/every_steps",
    "save_total_limit": "/checkpoint/keep_last",
    "scheduler": "/schedule",
    "seed": "/training/seed",
    "train_batch_size": "/training/batch_size",
    "units": "/recipe/hidden_size",
    "val_check_interval": "/evaluation/every_steps",
    "val_fraction": "/data/split/validation_fraction",
    "warmup_ratio": "/schedule/warmup_fraction",
    "warmup_steps": "/schedule/warmup_steps",
    "weight_decay": "/optimizer/weight_decay",
}

# Values of other trainers, by the field they stand in.
VALUE_ALIASES: dict[str, dict[str, str]] = {
    "/runtime/precision": {
        "16-mixed": "fp16-mixed",
        "16": "fp16-mixed",
        "fp16": "fp16-mixed",
        "float16": "fp16-mixed",
        "bf16": "bf16-mixed",
        "bfloat16": "bf16-mixed",
        "32": "fp32",
        "32-true": "fp32",
        "float32": "fp32",
    },
    "/runtime/device": {"gpu": "cuda", "cuda:0": "cuda"},
    "/schedule/kind": {
        "cosine": "cosine_warmup",
        "linear": "linear_warmup",
        "one_cycle": "onecycle",
        "reduce_lr_on_plateau": "plateau",
        "reducelronplateau": "plateau",
    },
}


def suggest_field(parent: str, name: str, siblings: list[str]) -> str | None:
    """The pointer that was probably meant by an unknown field `name` under `parent`."""
    sibling = closest(name, siblings, SURE)
    if sibling is not None:
        return f"{parent}/{sibling}"
    alias = ALIASES.get(name.lower())
    if alias is None or alias == f"{parent}/{name}":
        return None
    return alias


def suggest_value(pointer: str, value: object, allowed: list[str]) -> str | None:
    """The value that was probably meant by `value` at `pointer`."""
    text = str(value)
    alias = VALUE_ALIASES.get(pointer, {}).get(text.lower())
    return alias if alias is not None else closest(text, allowed)
