"""Those of cases.py that are of optimizer, schedule and averages."""

from tests.guard.changes import PLATEAU, Example, averaged_from

LEARNING: dict[str, Example] = {
    "learning.no_warmup": Example(
        {"training": {"batch_size": 1024}, "schedule": {"kind": "constant"}},
        {"training": {"batch_size": 1023}, "schedule": {"kind": "constant"}},
    ),
    "learning.rate_beyond_batch": Example(
        {"optimizer": {"lr": 0.011}}, {"optimizer": {"lr": 0.01}}
    ),
    "learning.rate_too_low": Example({"optimizer": {"lr": 9.9e-7}}, {"optimizer": {"lr": 1e-6}}),
    "learning.few_steps": Example(
        {"training": {"batch_size": 1600, "epochs": 16}},
        {"training": {"batch_size": 1600, "epochs": 17}},
    ),
    "learning.warmup_never_ends": Example(
        {"schedule": {"kind": "cosine_warmup", "warmup_steps": 130}},
        {"schedule": {"kind": "cosine_warmup", "warmup_steps": 129}},
    ),
    "learning.adam_weight_decay": Example(
        {"optimizer": {"kind": "adam", "weight_decay": 0.01}}, {"optimizer": {"kind": "adam"}}
    ),
    "learning.never_anneals": Example(
        {"early_stopping": {"patience": 16}, "training": {"epochs": 20}},
        {"early_stopping": {"patience": 17}, "training": {"epochs": 20}},
    ),
    "correctness.plateau_never_acts": Example(
        {**PLATEAU, "data": {"split": {"validation_fraction": 0.0}}}, PLATEAU
    ),
    "learning.stops_before_plateau": Example(
        {**PLATEAU, "early_stopping": {"patience": 3}, "training": {"epochs": 20}},
        {**PLATEAU, "early_stopping": {"patience": 4}, "training": {"epochs": 20}},
    ),
    "learning.averages_nothing": Example(averaged_from(6), averaged_from(4)),
    "learning.stops_before_averaging": Example(
        {**averaged_from(10), "early_stopping": {"patience": 8}, "training": {"epochs": 20}},
        {**averaged_from(10), "early_stopping": {"patience": 9}, "training": {"epochs": 20}},
    ),
    "learning.same_average_again": Example(
        {**averaged_from(2), "evaluation": {"every_steps": 13}},
        {**averaged_from(2), "evaluation": {"every_steps": 26}},
    ),
    "learning.average_of_first_weights": Example(
        {"averaging": {"kind": "ema", "decay": 0.978, "ramp": False}},
        {"averaging": {"kind": "ema", "decay": 0.977, "ramp": False}},
    ),
    "learning.averaging_rate_above_lr": Example(
        averaged_from(4, lr=1.1e-3), averaged_from(4, lr=1e-3)
    ),
}
