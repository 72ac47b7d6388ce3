"""Curves from plain prints: what is read, what is left alone, and at which cost."""

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from worker.script.grammar import Report, Reports
from worker.script.points import EPOCH, CurvePoint, Places
from worker.script.prints import Prints

LOGS = Path(__file__).parent / "logs"
FOREIGN = sorted((LOGS / "foreign").iterdir())
Curve = dict[int, dict[str, float]]


def prints_of(folder: Path, text: str | bytes, before: int = 0) -> Prints:
    path = folder / "trainer.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Prints(path, before)


def points_of(prints: Prints) -> list[CurvePoint]:
    """All points of a file that nobody writes any more."""
    points = [*prints.read()]
    while prints.is_behind:
        points += prints.read()
    return [*points, *prints.read_rest()]


def curve_of(prints: Prints, before: int = 0) -> Curve:
    """The numbers by their steps, without epochs. No two points are at one step of a name."""
    places, curve = Places(before), Curve()
    for point in points_of(prints):
        values = {name: value for name, value in point.values.items() if name != EPOCH}
        step = places.step_of(point, frozenset(values), None)
        assert not values.keys() & curve.get(step, {}).keys(), "a point is told twice"
        curve.setdefault(step, {}).update(values)
    return curve


def losses(*pairs: tuple[int, float]) -> Curve:
    return {step: {"train_loss": loss} for step, loss in pairs}


PLAIN: dict[str, tuple[str, Curve]] = {
    "step and loss": ("step 51 loss 0.9\nstep 52 loss 0.8\n", losses((51, 0.9), (52, 0.8))),
    "commas and colons": ("Step: 3, Loss: 0.5, lr: 1e-4\n", {3: {"train_loss": 0.5, "lr": 1e-4}}),
    "a last line without an end": ("iter 7 loss=0.5", losses((7, 0.5))),
    "iteration of scikit-learn": ("Iteration 1, loss = 0.5\n", losses((1, 0.5))),
    "epochs": (
        "Epoch 1/3 - loss: 1.0 - val_loss: 1.2\nEpoch 2/3 - loss: 0.9 - val_loss: 1.1\n",
        {1: {"train_loss": 1.0, "val_loss": 1.2}, 2: {"train_loss": 0.9, "val_loss": 1.1}},
    ),
    "epoch with two losses": (
        "Epoch 3 | Train Loss: 0.5 | Val Loss: 0.6 | Val Acc: 91.5%\n",
        {3: {"train_loss": 0.5, "val_loss": 0.6, "val_acc": 91.5}},
    ),
    "loss alone, repeated": (
        "loss=0.9\nloss=0.9\nloss=0.7\n", losses((1, 0.9), (2, 0.9), (3, 0.7)),
    ),
    "loss alone, once": ("loss=0.9\n", {}),
    "loss alone, echoed": ("loss: 1.0\nloss: 1.0\n", {}),
    "loss alone, of a rank": ("[rank1]: loss=0.9\n[rank1]: loss=0.8\n", {}),
    "one line an epoch, from two ranks": (
        "Epoch 1 loss 0.9\nEpoch 1 loss 0.8\nEpoch 2 loss 0.7\nEpoch 2 loss 0.6\n",
        losses((1, 0.9), (2, 0.7)),
    ),
    "percent and time": (
        "Epoch: 1 | Loss: 0.5 | Accuracy: 85.2% | Time: 12.3s\n",
        {1: {"train_loss": 0.5, "accuracy": 85.2}},
    ),
    "tensors": (
        "step=10 loss=tensor(0.5000, device='cuda:0', grad_fn=<NllLossBackward0>)\n",
        losses((10, 0.5)),
    ),
    "after": (
        "Loss after epoch 1: 0.5\nVal loss after epoch 1: 0.75\nLoss after epoch 2: 0.4\n",
        {1: {"train_loss": 0.5, "val_loss": 0.75}, 2: {"train_loss": 0.4}},
    ),
    "batches of unknown number": (
        "Epoch 1, Batch 10, Loss: 0.5\nEpoch 1, Batch 20, Loss: 0.4\n", losses((1, 0.5), (2, 0.4)),
    ),
    "steps of an evaluation": ("eval step 10 loss 0.5\nVal iter 10/90 loss 0.5\n", {}),
    "an unknown count": ("t=10 loss=0.5\nt=20 loss=0.4\n", {}),
    "thousands and decimal commas": (
        "step 1,000 loss 0.5\nstep 7 loss 1,234.5\nstep 8 loss 0,9\nstep 1.5k loss 0.5\n", {},
    ),
    "dictionary": (
        "{'loss': 0.5, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.3}\n"
        "{'loss': '0.4', 'grad_norm': '1.2', 'learning_rate': '4e-05', 'epoch': '0.6'}\n"
        "{'eval_loss': 0.45, 'epoch': 1.0}\n"
        "{'train_runtime': 10.1, 'train_steps_per_second': 2.0, 'train_loss': 0.6, 'epoch': 1.0}\n",
        {
            1: {"train_loss": 0.5, "grad_norm": 1.5, "lr": 5e-05},
            2: {"train_loss": 0.4, "grad_norm": 1.2, "lr": 4e-05},
            3: {"val_loss": 0.45},
        },
    ),
    "a dictionary of a split": ('{"split": "val", "step": 10, "loss": 0.3}\n', {}),
    "a dictionary of settings": ("{'loss': 0.5, 'epoch': 3, 'batch_size': 32}\n", {}),
    "ImageNet": (
        "Epoch: [0][  10/5005]\tTime  0.337 ( 1.234)\tLoss 6.9e+00 (6.9e+00)\tAcc@1   0.00 ( 0.1)\n"
        "Test: [ 10/196]\tTime 0.5 ( 0.7)\tLoss 5.1 (5.2)\tAcc@1 1.0 ( 1.1)\n"
        "Epoch: 0 Acc@1 1.300 Acc@5 4.400\n",
        {10: {"train_loss": 6.9, "acc@1": 0.0}},
    ),
    "JSON": ('{"step": 10, "loss": 0.3}\n', losses((10, 0.3))),
    "colors": ("\x1b[1mstep\x1b[0m \x1b[32m5\x1b[0m loss \x1b[1;31m0.9\x1b[0m\n", losses((5, 0.9))),
    "loggers": (
        "2026-01-15 10:00:00,123 - INFO - root - step 1 loss 0.9\n"
        "INFO:root:step 2 loss 0.8\n"
        "2026-01-15 10:00:00,123 - __main__ - INFO - step 3, loss 0.7\n"
        "[2026-01-15 10:00:00][INFO][train.py:55] step 4 loss=0.6\n"
        "I0115 10:00:00.123456 12345 train.py:55] step 5 loss 0.5\n"
        "[10:00:00] step 6 loss 0.4\nINFO: step 7 loss: 0.3\n",
        losses((1, 0.9), (2, 0.8), (3, 0.7), (4, 0.6), (5, 0.5), (6, 0.4), (7, 0.3)),
    ),
    "nanoGPT": (
        "step 0: train loss 4.2, val loss 4.3\n"
        "iter 10: loss 3.9, time 30.12ms, mfu 1.20%\n",
        {0: {"train_loss": 4.2, "val_loss": 4.3}, 10: {"train_loss": 3.9}},
    ),
    "a step that begins again": (
        "".join(
            f"Epoch [{epoch}/2], Step [{step}/600], Loss: {epoch}.{step}\n"
            for epoch in (1, 2)
            for step in (200, 400)
        ),
        losses((200, 1.2), (400, 1.4), (800, 2.2), (1000, 2.4)),
    ),
    "a step of the whole run": (
        "epoch 1 step 300/900 loss 0.9\nepoch 2 step 600/900 loss 0.8\n",
        losses((300, 0.9), (600, 0.8)),
    ),
    "batches": (
        "| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 35.16 | loss  7.63 | ppl  99.5\n"
        "| end of epoch   1 | time: 60.1s | valid loss  5.1 | valid ppl 12.5\n"
        "| epoch   2 |   200/ 2983 batches | lr 20.00 | ms/batch 35.16 | loss  6.63 | ppl  88.5\n",
        {
            200: {"train_loss": 7.63, "ppl": 99.5, "lr": 20, "val_loss": 5.1, "val_ppl": 12.5},
            3183: {"train_loss": 6.63, "ppl": 88.5, "lr": 20},
        },
    ),
    "headings": (
        "Epoch 0/24\n----------\ntrain Loss: 0.5 Acc: 0.8\nval Loss: 0.6 Acc: 0.7\n\n"
        "Epoch 1/24\n----------\ntrain Loss: 0.4 Acc: 0.9\nval Loss: 0.5 Acc: 0.8\n\n"
        "Training complete in 1m 3s\nBest val Acc: 0.8\n",
        {
            0: {"train_loss": 0.5, "train_acc": 0.8, "val_loss": 0.6, "val_acc": 0.7},
            1: {"train_loss": 0.4, "train_acc": 0.9, "val_loss": 0.5, "val_acc": 0.8},
        },
    ),
    "Megatron": (
        " iteration      100/  500000 | consumed samples:         800 | elapsed time per iteration "
        "(ms): 1234.5 | learning rate: 1.500E-04 | global batch size:     8 | lm loss: 9.5E+00 | "
        "loss scale: 1.0 | grad norm: 1.25 | number of skipped iterations:   0 |\n",
        {100: {"lr": 1.5e-4, "lm_loss": 9.5, "grad_norm": 1.25}},
    ),
    "fairseq": (
        "2026-01-01 10:00:00 | INFO | train_inner | epoch 001:    100 / 1500 loss=12.5, ppl=2200, "
        "wps=12000, ups=2.1, num_updates=100, lr=1e-05, gnorm=2.5, train_wall=50, wall=100\n",
        {100: {"train_loss": 12.5, "ppl": 2200, "lr": 1e-05, "grad_norm": 2.5}},
    ),
    "detectron2": (
        "[01/01 10:00:00 d2.utils.events]:  eta: 1:23:45  iter: 19  total_loss: 1.5  loss_cls: 0.5"
        "  time: 0.5  data_time: 0.01  lr: 0.0005  max_mem: 5000M\n",
        {19: {"total_loss": 1.5, "loss_cls": 0.5, "lr": 0.0005}},
    ),
    "ranks": (
        "[rank0]: step 1 loss 0.9\n[rank1]: step 1 loss 0.1\n"
        "rank 1 step 2 loss 0.1\nrank 0 step 2 loss 0.8\n"
        "[1]: step 3 loss 0.1\n[0]: step 3 loss 0.7\n"
        "[default1]:step 4 loss 0.1\n[default0]:step 4 loss 0.6\n1: step 5 loss 0.1\n"
        "0: step 5 loss 0.5\n[1,1]<stdout>:step 6 loss 0.1\n[1,0]<stdout>:step 6 loss 0.4\n"
        "step 7 loss 0.3 (rank 2)\n",
        losses((1, 0.9), (2, 0.8), (3, 0.7), (4, 0.6), (5, 0.5), (6, 0.4)),
    ),
    "ranks without a name": (
        "step 1 loss 0.9\nstep 1 loss 0.8\nstep 2 loss 0.7\nstep 2 loss 0.6\n",
        losses((1, 0.9), (2, 0.7)),
    ),
    "folds": (
        "fold 1 epoch 1 loss 0.9\nfold 1 epoch 2 loss 0.8\nfold 2 epoch 1 loss 0.7\n",
        losses((1, 0.9), (2, 0.8)),
    ),
    "a summary of each epoch": (
        "step 100 loss 0.9\nEpoch 1: loss 0.95 val_loss 0.7\nstep 200 loss 0.8\n",
        {100: {"train_loss": 0.9, "val_loss": 0.7}, 200: {"train_loss": 0.8}},
    ),
    "words that are not known": ("step 5 restored, old loss 0.9\nBest loss 0.3 at step 7\n", {}),
}  # fmt: skip


@pytest.mark.parametrize(("text", "curve"), PLAIN.values(), ids=PLAIN)
def test_lines_are_read(tmp_path: Path, text: str, curve: Curve):
    assert curve_of(prints_of(tmp_path, text)) == curve


def bar(count: int, total: int, after: str, before: str = "") -> str:
    percent = 100 * count // total
    filled = "█" * (percent // 10)
    times = f"[00:0{count % 10}<00:05, 9.50it/s{after}]"
    return f"\r{before}{percent:3d}%|{filled:<10}| {count}/{total} {times}"


def looks(folder: Path, *pieces: str) -> Curve:
    """The curve of an output that grows from look to look."""
    prints, places, curve = prints_of(folder, ""), Places(0), Curve()
    for piece in pieces:
        with prints._lines.path.open("a", encoding="utf-8", newline="") as file:
            file.write(piece)
        for point in prints.read():
            values = {name: value for name, value in point.values.items() if name != EPOCH}
            curve.setdefault(places.step_of(point, frozenset(values), None), {}).update(values)
    return curve


class TestBars:
    def test_the_last_state_of_each_look_counts(self, tmp_path: Path):
        states = [bar(n, 100, f", loss=0.{n}") for n in range(11, 15)]
        curve = looks(tmp_path, states[0] + states[1], states[2] + states[3] + "\n")
        assert curve == losses((11, 0.11), (14, 0.14))

    def test_a_bar_of_each_epoch_goes_on(self, tmp_path: Path):
        epoch = bar(1, 3, ", loss=0.5") + bar(3, 3, ", loss=0.4") + "\n"
        assert looks(tmp_path, epoch, epoch, epoch) == losses((3, 0.4), (6, 0.4), (9, 0.4))

    def test_a_bar_that_is_removed_at_its_end_goes_on(self, tmp_path: Path):
        text = "".join(bar(n, 3, f", loss=0.{n}") for n in (1, 2, 3, 1, 2, 3)) + "\r"
        assert looks(tmp_path, text) == losses((3, 0.3), (6, 0.3))

    def test_bars_below_each_other_that_show_a_state_again_do_not_go_on(self, tmp_path: Path):
        pair = bar(9, 9, ", loss=0.5") + "\n" + bar(5, 50, "") + "\x1b[A"
        assert looks(tmp_path, pair, pair, pair) == losses((9, 0.5))

    def test_the_bar_of_lightning(self, tmp_path: Path):
        before = ", v_num=0, train_loss_step=0.400"
        after = f"{before}, val_loss=0.6"
        curve = looks(
            tmp_path,
            bar(50, 100, ", v_num=0, train_loss_step=0.500", "Epoch 0: ") + "\r",
            bar(100, 100, before, "Epoch 0: ") + bar(100, 100, after, "Epoch 0: ") + "\n",
            bar(20, 100, ", v_num=0, train_loss_step=0.300, val_loss=0.6", "Epoch 1: ") + "\r",
        )
        assert curve == {
            50: {"train_loss": 0.5},
            100: {"train_loss": 0.4, "val_loss": 0.6},
            120: {"train_loss": 0.3},
        }

    def test_the_bar_of_keras(self, tmp_path: Path):
        glyphs = "\x1b[32m━━━━━━\x1b[0m\x1b[37m━━━━\x1b[0m \x1b[1m1s\x1b[0m 3ms/step"
        text = "".join(
            f"Epoch {epoch}/2\n"
            f"\x1b[1m 5/10\x1b[0m {glyphs} - accuracy: 0.{epoch} - loss: {epoch}.5\n"
            f"\x1b[1m10/10\x1b[0m {glyphs} - accuracy: 0.{epoch} - loss: {epoch}.25"
            f" - val_loss: {epoch}.75\n"
            for epoch in (1, 2)
        )
        assert curve_of(prints_of(tmp_path, text)) == {
            5: {"accuracy": 0.1, "train_loss": 1.5},
            10: {"accuracy": 0.1, "train_loss": 1.25, "val_loss": 1.75},
            15: {"accuracy": 0.2, "train_loss": 2.5},
            20: {"accuracy": 0.2, "train_loss": 2.25, "val_loss": 2.75},
        }

    def test_keras_with_a_line_an_epoch(self, tmp_path: Path):
        text = "".join(f"Epoch {n}/2\n75/75 - 4s - 2ms/step - loss: 0.{n}\n" for n in (1, 2))
        assert curve_of(prints_of(tmp_path, text)) == losses((75, 0.1), (150, 0.2))

    def test_two_bars_are_not_mixed(self, tmp_path: Path):
        text = "".join(
            bar(n, 90, f", loss=0.{n}", "Train: ")
            + "\n" + bar(n // 10, 9, f", loss=9.{n}", "Val: ") + "\x1b[A"
            for n in (10, 20, 30)
        )  # fmt: skip
        assert looks(tmp_path, text) == losses((10, 0.1), (20, 0.2), (30, 0.3))

    def test_a_bar_within_a_bar_is_not_mixed(self, tmp_path: Path):
        text = "".join(
            bar(n, 50, f", loss=0.{n}") + "\n" + bar(1, 4, ", loss=9.5") + "\x1b[A"
            for n in (11, 22, 33)
        )
        assert looks(tmp_path, text) == losses((11, 0.11), (22, 0.22), (33, 0.33))

    def test_a_bar_of_epochs(self, tmp_path: Path):
        states = [bar(n, 3, f", loss=0.{n}", "Epochs: ") for n in (1, 2, 3)]
        assert looks(tmp_path, *states, "\n") == losses((1, 0.1), (2, 0.2), (3, 0.3))


class TestOfLibraries:
    """Outputs of transformers 5.24, lightning 2.6 and keras 3.15 as they were written to a file."""

    def of(self, folder: Path, name: str) -> dict[str, dict[int, float]]:
        series = dict[str, dict[int, float]]()
        for step, values in curve_of(
            prints_of(folder, (LOGS / "real" / name).read_bytes())
        ).items():
            for metric, value in values.items():
                series.setdefault(metric, {})[step] = value
        return series

    @pytest.mark.parametrize(
        ("name", "first", "last"),
        [("hugging_face.log", 0.839, 1.139), ("hugging_face_without_bars.log", 1.48, 1.066)],
    )
    def test_hugging_face(self, tmp_path: Path, name: str, first: float, last: float):
        series = self.of(tmp_path, name)
        losses = series["train_loss"]
        assert list(losses) == [1, 2, 4, 5, 7, 8]
        assert (losses[1], losses[8]) == (first, last)
        assert list(series["val_loss"]) == [3, 6, 9]
        assert "train_runtime" not in series

    def test_lightning(self, tmp_path: Path):
        series = self.of(tmp_path, "lightning.log")
        assert series["train_loss"] == {40: 6.58e-06, 80: 4.23e-10, 120: 4.75e-14}
        assert series["val_loss"] == {40: 4.41e-06, 80: 2.18e-10, 120: 2.47e-14}
        assert series["train_loss_epoch"] == {40: 0.0421, 80: 5.18e-07, 120: 2.5e-11}

    @pytest.mark.parametrize(
        ("name", "curve"),
        [
            ("keras.log", {8: 3.1302, 16: 2.4736}),
            ("keras_with_a_line_an_epoch.log", {8: 2.4317, 16: 1.9935}),
        ],
    )
    def test_keras(self, tmp_path: Path, name: str, curve: dict[int, float]):
        series = self.of(tmp_path, name)
        assert series["val_loss"] == curve
        assert series.keys() == {"train_loss", "mae", "val_loss", "val_mae"}


class TestAfterAResume:
    def test_a_step_is_taken_as_it_is(self, tmp_path: Path):
        prints = prints_of(tmp_path, "step 501 loss 0.9\n", before=500)
        assert [point.step for point in points_of(prints)] == [501]

    def test_a_bar_that_begins_anew_is_counted_from_the_checkpoint(self, tmp_path: Path):
        text = "".join(bar(n, 600, ", loss=0.5") + "\n" for n in (100, 200))
        (first, second) = points_of(prints_of(tmp_path, text, before=500))
        assert (first.step, second.step) == (None, None)
        assert first.origin is not None
        assert first.origin.offset < len(text.encode())

    def test_a_bar_of_a_later_epoch_is_counted(self, tmp_path: Path):
        text = "Epoch [3/5], Step [100/600], Loss: 0.2\n"
        assert [point.step for point in points_of(prints_of(tmp_path, text))] == [None]


class TestOfOtherPrograms:
    @pytest.mark.parametrize("path", FOREIGN, ids=lambda path: path.stem)
    @pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
    def test_their_output_gives_no_point(self, tmp_path: Path, path: Path, times: int):
        assert points_of(prints_of(tmp_path, times * path.read_bytes())) == []

    def test_there_are_enough_of_them(self):
        assert len(FOREIGN) >= 30


class TestOffers:
    @pytest.mark.parametrize(
        ("line", "pattern"),
        [
            ("[1, {step:5d}] loss: {loss}", r"loss:\s+(?P<loss>[-+.0-9eE]+)"),
            (
                "Did step {step}, and found a loss {loss}",
                r"step\s+(?P<step>[-+.0-9eE]+).*?loss\s+(?P<loss>[-+.0-9eE]+)",
            ),
        ],
    )
    def test_a_line_that_comes_again_is_offered(self, tmp_path: Path, line: str, pattern: str):
        text = "".join(line.format(step=n, loss=1 / n) + "\n" for n in range(1, 9))
        prints = prints_of(tmp_path, text)
        assert points_of(prints) == []
        assert prints.offer is not None
        assert prints.offer[1] == pattern

    def test_a_line_that_is_read_is_not_offered(self, tmp_path: Path):
        prints = prints_of(tmp_path, "".join(f"step {n} loss {1 / n}\n" for n in range(1, 9)))
        assert len(points_of(prints)) == 8
        assert prints.offer is None


LONG: dict[str, Any] = {
    "digits and spaces": "12 " * 21_000 + "loss 1",
    "digits": "1" * 65_000 + " loss",
    "names": "loss " * 13_000,
    "spaces": "loss" + " " * 60_000 + "1",
    "numbers": "loss 1 " * 580,
    "slashes": "1/" * 2_000 + " loss",
    "quotes": "{" + "'loss': " * 500 + "}",
    "escapes": "\x1b[" * 2_000 + "loss",
    "brackets": "[" * 4_000 + " rank loss",
}  # fmt: skip


@pytest.mark.parametrize("line", LONG.values(), ids=LONG)
def test_a_long_line_costs_no_more_than_others(tmp_path: Path, line: str):
    prints = prints_of(tmp_path, 5 * f"{line}\n")
    began = time.process_time()
    points_of(prints)
    assert time.process_time() - began < 0.5


FORMS = (
    "step {} loss 0.{}",
    "Epoch {}/{} - loss: 1.{} - val_loss: {}e-3",
    "{}%|███| {}/{} [00:01<00:09, 9.5it/s, loss=0.{}]",
    "[{}/{}] loss 0.{}",
    "Epochs: 9%|█| {}/{} [2.5s/epoch, loss={}]",
    "Epoch [{}/{}], Step [{}/{}], Loss: 0.{}",
    "rank {} step {} loss {}",
    "{}: step {} loss {}",
    "train acc: {}/{} loss {} step {}",
    "fold {} epoch {} loss {}",
    "{{'loss': {}, 'epoch': {}, 'step': {}}}",
    "Loss after epoch {}: 0.{}",
)


@pytest.mark.parametrize("form", FORMS)
def test_a_line_is_read_alike_after_others_of_its_form(form: str):
    random = Random(form)
    reports = Reports()
    for _ in range(500):
        digits = [str(random.randrange(10 ** random.randrange(1, 17))) for _ in range(9)]
        line = form.format(*digits)
        known, new = reports.of(line), Reports().of(line)
        assert (known is None) == (new is None), line
        if known is not None and new is not None:
            assert told_by(known) == told_by(new), line


def told_by(report: Report) -> tuple[object, ...]:
    told = (report.values, report.epoch, report.count, report.total, report.labels)
    return *told, report.is_clean, report.is_bar, report.has_whole_epoch, report.has_other_count


PIECES = (
    *("loss", "epoch", "step", "INFO", "rank", "{", "}", "'loss':", "'epoch':", ":", "=", "[", "]"),
    *("(", "|", "%", "█", "1", "-1", "nan", "inf", "1e999", 30 * "9", "5/10", "5/0", "0/10", "é"),
    *("\r", "\x1b[A", "it/s", "tensor(", "at", "after", "²", "٣", "--", "fold", "s/epoch", "best"),
)


def test_no_line_is_an_error(tmp_path: Path):
    random = Random(7)
    lines = [
        random.choice(("", " ")).join(random.choices(PIECES, k=random.randrange(1, 15)))
        for _ in range(20_000)
    ]
    points_of(prints_of(tmp_path, "\n".join(["INFO accelerate:", "epoch nan loss 0.5", *lines])))
