"""The benchmark of checkpoints: every arm saves, and the figures are those of the arms."""

from benchmarks import checkpoint_figures
from benchmarks.checkpoint_figures import Nothing, Stoker, Timing, TorchSave, measure
from worker.trainer.checkpoint import load

SMALL = {"recipe": {"kind": "sequence", "hidden_size": 8, "num_layers": 1, "patch": 120}}


def test_both_arms_keep_the_state(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_figures, "SPEC", {**checkpoint_figures.SPEC, **SMALL})
    step = checkpoint_figures._build()
    for arm, name in ((Stoker(), "ours"), (TorchSave(), "torch")):
        arm.save(step, tmp_path / name)
        arm.finish()
    weights = load(tmp_path / "ours").parts["model"]["head.weight"]
    assert weights.equal(step.model.get_parameter("head.weight"))
    assert (tmp_path / "torch").stat().st_size > 0


def test_the_figures(monkeypatch):
    timings = {Nothing: Timing(10.0, 0.0), Stoker: Timing(11.0, 0.25), TorchSave: Timing(14.0, 2.0)}
    monkeypatch.setattr(checkpoint_figures, "_build", lambda: None)
    monkeypatch.setattr(checkpoint_figures, "_train", lambda step, arm: timings[type(arm)])
    assert [figure.value for figure in measure()] == [0.25, 2.0, 0.125, 0.5, 2.0]
