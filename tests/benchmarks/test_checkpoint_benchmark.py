"""The benchmark of checkpoints: every arm saves, and the figures are those of the arms."""

from safetensors.torch import load_file

from benchmarks import checkpoint_figures
from benchmarks.checkpoint_figures import (
    Inline,
    MemoryCopy,
    Nothing,
    Stoker,
    Timing,
    TorchSave,
    measure,
)

SMALL = {"recipe": {"kind": "sequence", "hidden_size": 8, "num_layers": 1, "patch": 120}}


def test_all_arms_keep_the_state(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_figures, "SPEC", {**checkpoint_figures.SPEC, **SMALL})
    step = checkpoint_figures._build()
    copy = MemoryCopy()
    for arm, name in ((Stoker(), "ours"), (TorchSave(), "torch"), (copy, ""), (Inline(), "inline")):
        arm.save(step, tmp_path / name)
        arm.finish()
    weights = step.model.get_parameter("head.weight")
    for name in ("ours", "inline"):
        assert load_file(tmp_path / name / "model.safetensors")["head.weight"].equal(weights)
    assert (tmp_path / "torch").stat().st_size > 0
    assert any(tensor.equal(weights) for tensor in copy._copies)


def test_the_figures(monkeypatch):
    timings = {
        Nothing: Timing(10.0, 0.0, 0.0),
        Stoker: Timing(11.0, 0.75, 0.25),
        TorchSave: Timing(14.0, 3.0, 2.0),
        MemoryCopy: Timing(10.2, 0.5, 0.125),
        Inline: Timing(15.0, 3.5, 2.5),
    }
    monkeypatch.setattr(checkpoint_figures, "_build", lambda: None)
    monkeypatch.setattr(checkpoint_figures, "_train", lambda step, arm: timings[type(arm)])
    found = measure()
    assert [figure.value for figure in found] == [0.25, 0.75, 2.0, 0.125, 2.0, 0.1, 0.5, 2.0]
    assert [figure.holds for figure in found[4:6]] == [False, True]
