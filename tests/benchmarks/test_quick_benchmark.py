"""The quick form of the benchmark: ratios by half of what is asked for, and what is left out."""

import json

import pytest

from benchmarks import run as benchmarks
from benchmarks.effort import QUICK
from benchmarks.figures import Figure


def figure(value, bound, unit="", *, at_least=True, seen=None, name="ours over theirs"):
    return Figure(name, value, unit, bound, 4, "COMMAND", at_least=at_least, seen=seen)


@pytest.mark.parametrize(
    ("full", "bound", "holds"),
    [
        (figure(1.1, 2.0), 1.0, True),
        (figure(0.9, 2.0), 1.0, False),
        (figure(0.4, 0.25, at_least=False), 0.5, True),
        (figure(0.6, 0.25, at_least=False), 0.5, False),
        (figure(0.5, 4.0, seen=1.0), 0.5, True),
        (figure(0.4, 4.0, seen=1.0), 0.5, False),
        (figure(9.0, None), None, None),
        (figure(60.0, 10.0, "ms", at_least=False), None, None),
    ],
)
def test_a_ratio_is_judged_by_half_of_what_is_asked_for_or_was_seen(full, bound, holds):
    quick = full.of_quick_form()
    assert (quick.bound, quick.holds) == (bound, holds)
    assert quick.command == "COMMAND --quick"


@pytest.mark.parametrize(
    ("values", "code", "times"), [((1.1,), 0, 1), ((0.9, 1.1), 0, 2), ((0.9, 0.8), 1, 2)]
)
def test_what_falls_apart_twice_ends_with_1_and_what_is_left_out_is_named(
    tmp_path, monkeypatch, capsys, values, code, times
):
    asked, left = [], list(values)

    def measure(parts, effort, device):
        asked.append((tuple(parts), effort, device))
        return [figure(left.pop(0) if parts == ["loading"] else 2.0, 2.0)]

    monkeypatch.setattr(benchmarks, "measure", measure)
    path = tmp_path / "figures.json"
    monkeypatch.setattr("sys.argv", ["benchmarks", "--quick", "--json", str(path)])
    assert benchmarks.main() == code
    others = [part for part in benchmarks.QUICK_PARTS if part != "loading"]
    assert asked == [((part,), QUICK, "cpu") for part in [*["loading"] * times, *others]]
    said = capsys.readouterr().out
    again = "loading is measured once more, for it missed: ours over theirs"
    assert said.count(again) == times - 1
    left_out = [part for part in benchmarks.PARTS if part not in benchmarks.QUICK_PARTS]
    assert f"Left out: {', '.join(left_out)}" in said
    assert ("Missed: ours over theirs" in said) is (code == 1)
    assert json.loads(path.read_text())["left_out"] == left_out


def test_a_ratio_that_held_once_is_not_judged_again(monkeypatch):
    rounds = [(0.9, 1.1), (1.1, 0.9)]

    def measure(parts, effort, device):
        values = rounds.pop(0)
        return [figure(value, 2.0, name=name) for name, value in zip("ab", values, strict=True)]

    monkeypatch.setattr(benchmarks, "measure", measure)
    found = benchmarks.measure_quickly(["loading"], "cpu")
    assert [(one.name, one.value) for one in found] == [("a", 1.1), ("b", 1.1)]
    assert not benchmarks.missed(found)


@pytest.mark.parametrize(
    ("there", "parts", "code"), [(True, [], 0), (True, ["rules"], 2), (False, [], 2)]
)
def test_a_gpu_is_measured_where_there_is_one(monkeypatch, capsys, there, parts, code):
    asked = []

    def measure(parts, effort, device):
        asked.append((tuple(parts), device))
        return []

    monkeypatch.setattr(benchmarks, "measure", measure)
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("sys.argv", ["benchmarks", "--device", "cuda", *parts])
    if code:
        with pytest.raises(SystemExit, match="2"):
            benchmarks.main()
        said = capsys.readouterr().err
        assert ("not in this form: rules" if there else "PyTorch sees no CUDA device") in said
    else:
        assert benchmarks.main() == 0
        assert asked == [(("loading", "training"), "cuda")]
