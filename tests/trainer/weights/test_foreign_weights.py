"""Weights from elsewhere: read by the child of a job as weights alone, or refused in a sentence."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from worker.trainer.checkpoints.format import load
from worker.trainer.weights import foreign, importing

MODEL = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
STATE = MODEL.state_dict()


class Runs:
    """Its pickle calls a function when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def order_for(tmp_path: Path, content: Any, **order: Any) -> dict[str, Any]:
    """As the worker gives it; `content` is saved by torch, or bytes as they are."""
    file = tmp_path / order.pop("name", "weights.pt")
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    root = tmp_path / "root"
    shutil.rmtree(root, ignore_errors=True)
    (root / "runs").mkdir(parents=True, exist_ok=True)
    return {
        "run_id": 7,
        "path": file.name,
        "file": str(file),
        "run_dir": str(root / "runs/7"),
        "out": str(root / "runs/7/attempt-1/checkpoints/step-0"),
        "key": None,
        "rename": {},
        "most_bytes": 2**30,
        **order,
    }


def read(tmp_path: Path, content: Any, **order: Any) -> dict[str, Any]:
    """What the child answers."""
    answer = importing._answer(order_for(tmp_path, content, **order))
    if "error" in answer:
        assert not (tmp_path / "root/runs/7").exists()
    return answer


def imported(tmp_path: Path) -> dict[str, torch.Tensor]:
    return load(tmp_path / "root/runs/7/attempt-1/checkpoints/step-0", ("model",)).parts["model"]


def test_a_state_dict_becomes_a_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "worker.trainer.weights.importing"],
        input=json.dumps(order_for(tmp_path, STATE)),
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    found = imported(tmp_path)
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)
    assert answer["left"] == []
    folder = tmp_path / "root/runs/7/attempt-1/checkpoints/step-0"
    assert answer["checkpoint"]["bytes"] == sum(f.stat().st_size for f in folder.iterdir())
    assert answer["message"] == "It has 9 tensors with 43 numbers."


def test_weights_lie_under_a_key_that_is_named(tmp_path: Path) -> None:
    nested = {"epoch": 3, "optimizer": {"state": {}}, "state_dict": STATE}
    told = read(tmp_path, nested)["error"]
    assert (
        told
        == "The weights in weights.pt are under a key. Say which: --key state_dict (9 tensors)."
    )
    assert read(tmp_path, nested, key="state_dict")["left"] == []
    assert (
        "has no key 'model'; there are: epoch, optimizer"
        in (read(tmp_path, nested, key="model")["error"])
    )
    deep = {"ema": {"model": STATE, "decay": 0.9}, "model": STATE}
    told = read(tmp_path, deep)["error"]
    assert "--key model (9 tensors)" in told
    assert read(tmp_path, deep, key="ema")["error"].endswith("--key ema/model (9 tensors).")
    read(tmp_path, deep, key="ema/model")
    assert len(imported(tmp_path)) == 9


def test_names_begin_with_what_is_asked_for(tmp_path: Path) -> None:
    wrapped = {f"module.{name}": one for name, one in STATE.items()} | {"version": 2}
    answer = read(tmp_path, wrapped, rename={"module.": "", "module.2.": "head."})
    assert {*imported(tmp_path)} >= {"0.weight", "head.weight"}
    assert answer["left"] == ["version"]
    told = read(tmp_path, wrapped, rename={"modul.": ""})["error"]
    assert told == "No tensor has a name that begins with 'modul.'; they begin with module.."
    clash = {"a.w": torch.ones(1), "b.w": torch.ones(1)}
    assert "would be called 'b.w'" in read(tmp_path, clash, rename={"a.": "b."})["error"]


def test_what_shares_memory_is_kept_whole_and_safetensors_are_taken(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    read(tmp_path, {"tied": weight, "head": weight, "turned": weight.T})
    assert torch.equal(imported(tmp_path)["turned"], weight.T)
    data = safetensors.torch.save({"w": weight.bfloat16()})
    read(tmp_path, data, name="w.safetensors")
    assert imported(tmp_path)["w"].dtype is torch.bfloat16
    assert "no whole safetensors file" in (read(tmp_path, data[:-1], name="w.safetensors")["error"])


def test_a_pickle_with_code_is_refused_and_not_executed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    told = read(tmp_path, {"w": torch.ones(2), "x": Runs(made)})["error"]
    assert "holds more than weights: to read it would be to call posix.mkdir" in told
    told = read(tmp_path, pickle.dumps(Runs(made), protocol=2))["error"]
    assert "posix.mkdir" in told
    assert "torch.save(model.state_dict()" in read(tmp_path, MODEL)["error"]
    assert not made.exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is damaged, or cut off"),
        (b"weights", "was not written by torch.save"),
        ({}, "There is no tensor in weights.pt"),
        ({"lr": 0.1}, "There is no tensor in weights.pt"),
        (torch.ones(2), "holds one Tensor, and no dictionary"),
        ({"w": torch.tensor([1.0, float("nan")])}, "'w' in weights.pt has NaN or infinite values"),
        ({"w": torch.ones(1).expand(2**40)}, "take 4,398,046,511,104 bytes, and this worker has"),
        ({"w": torch.ones(2, 2).to_sparse()}, "Convert it, as by .to_dense()"),
        (None, "No such file"),
    ],
)
def test_what_is_no_weights_is_told_with_what_to_do(
    tmp_path: Path, content: Any, told: str
) -> None:
    assert told in read(tmp_path, content)["error"]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64])
def test_rare_numbers_are_kept_and_looked_at(tmp_path: Path, dtype: torch.dtype) -> None:
    plain = torch.tensor([1.0, -2.0]).to(dtype)
    assert "error" not in read(tmp_path, {"w": plain})
    assert imported(tmp_path)["w"].dtype is dtype
    assert torch.equal(imported(tmp_path)["w"].to(torch.complex128), plain.to(torch.complex128))
    told = read(tmp_path, {"w": torch.tensor([1.0, float("nan")]).to(dtype)})["error"]
    assert told.startswith("'w' in weights.pt has NaN or infinite values")
    assert "optimizer.lr" not in told


def test_numbers_that_a_checkpoint_cannot_hold_are_told(tmp_path: Path) -> None:
    wide = torch.ones(2, dtype=torch.complex128)
    told = importing._answer(order_for(tmp_path, {"w": wide}))["error"]
    assert "weights.pt has what this worker cannot keep (" in told
    assert "complex128" in told


@pytest.mark.parametrize(
    ("met", "told"),
    [
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "This worker has not enough memory for weights.pt.",
        ),
        (
            NotImplementedError('"x" not implemented\nfor y'),
            "has what this worker cannot keep (Not",
        ),
    ],
)
def test_what_nobody_foresaw_is_told_too(
    tmp_path: Path, monkeypatch: Any, met: Exception, told: str
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise met

    with monkeypatch.context() as patch:
        patch.setattr(foreign, "_renamed", fails)
        answer = read(tmp_path, STATE)["error"]
    assert told in answer
    assert answer.endswith(foreign.ADVICE)
    if "memory" in told:
        monkeypatch.setattr(torch, "load", fails)
        assert read(tmp_path, STATE)["error"] == answer


def test_what_libraries_print_is_not_in_the_document(tmp_path: Path) -> None:
    noisy = (
        "import os; from worker.trainer.weights.order import answer_order; "
        "answer_order(lambda order: {'left': os.write(1, b'noise')})"
    )
    done = subprocess.run([sys.executable, "-c", noisy], input=b"{}", capture_output=True)
    assert (done.stdout, done.stderr) == (b'{"left": 5}', b"noise")


def test_a_file_that_was_cut_off_or_is_too_large(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    assert "is damaged, or cut off" in read(tmp_path, whole[: len(whole) // 2])["error"]
    told = read(tmp_path, STATE, most_bytes=100)["error"]
    assert "this worker has 100 of memory free" in told
