"""Weights from elsewhere: read without executing what is in the file, and kept as a checkpoint."""

import pickle
import re
import shutil
import time
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from worker.trainer.checkpoints.finite import is_finite
from worker.trainer.checkpoints.format import Snapshot, Tensors, publish
from worker.trainer.checkpoints.snapshot import on_cpu
from worker.trainer.errors import SpecMismatch
from worker.trainer.out_of_memory import which_memory

MOST_NAMED, MOST_LEFT = 8, 100
ADVICE = "Save it by torch.save(model.state_dict(), …), or as safetensors."
# What PyTorch says of the first thing in a file that is no tensor and no plain value.
CODE = re.compile(r"GLOBAL ([\w.]+)")


def import_weights(order: Mapping[str, Any]) -> dict[str, Any]:
    """Write the checkpoint `order["out"]`. SpecMismatch with what to do, OSError."""
    path = order["path"]
    size = Path(order["file"]).stat().st_size
    if size > order["most_bytes"]:
        raise SpecMismatch(
            f"{path} has {size:,} bytes, and this worker has {order['most_bytes']:,} of memory "
            "free. Import it where there is more, or when fewer runs train."
        )
    found = _chosen(_read(order), order["key"], path)
    tensors, left = _tensors(found, path)
    _require_room(tensors, order)
    _require_finite(tensors, path)
    named = _renamed(tensors, order["rename"])
    checkpoint = _publish(order, named)
    many = "1 tensor" if len(named) == 1 else f"{len(named):,} tensors"
    count = f"{many} with {sum(t.numel() for t in named.values()):,} numbers"
    beside = f"; {len(left)} other entries are left out" if left else ""
    return {
        "checkpoint": checkpoint,
        "left": left[:MOST_LEFT],
        "message": f"It has {count}{beside}.",
    }


def _read(order: Mapping[str, Any]) -> Any:
    """What is in the file, as far as it is tensors and plain values."""
    path, file = order["path"], Path(order["file"])
    if file.is_dir():
        raise SpecMismatch(f"{path} is a folder. Name the file with the weights in it.")
    try:
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it then refuses
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise _not_weights(path, str(error)) from error
    except safetensors.SafetensorError as error:
        raise SpecMismatch(f"{path} is no whole safetensors file: {error}. {ADVICE}") from error
    except Exception as error:  # whatever a damaged file leads to
        if which_memory(error) is not None:
            raise
        is_script = zipfile.is_zipfile(file) and "TorchScript" in str(error)
        what = "is a TorchScript program" if is_script else "is damaged, or cut off"
        told = str(error).strip().splitlines()[0][:200] if str(error).strip() else ""
        why = f"{type(error).__name__}{f': {told}' if told else ''}"
        raise SpecMismatch(f"{path} {what} ({why}). {ADVICE}") from error


def _not_weights(path: str, told: str) -> SpecMismatch:
    """Of a pickle that has more in it than weights, or is none."""
    if (code := CODE.search(told)) is None:
        return SpecMismatch(f"{path} was not written by torch.save. {ADVICE}")
    return SpecMismatch(
        f"{path} holds more than weights: to read it would be to call {code[1]}, so nothing of it "
        f"was read or executed. {ADVICE}"
    )


def _chosen(found: Any, key: str | None, path: str) -> Mapping[Any, Any]:
    """The dictionary under the key, or the file's own."""
    for part in [] if key is None else key.split("/"):
        if not isinstance(found, Mapping) or part not in found:
            keys = ", ".join(map(str, list(found)[:MOST_NAMED])) if _is_dict(found) else "none"
            raise SpecMismatch(f"{path} has no key {part!r}; there are: {keys}.")
        found = found[part]
    if not _is_dict(found):
        where = f"Under {key!r} {path}" if key else path
        raise SpecMismatch(
            f"{where} holds one {type(found).__name__}, and no dictionary of tensors by name. "
            f"{ADVICE}"
        )
    inner = {name: _count(value) for name, value in found.items() if _is_dict(value)}
    inner = {str(name): count for name, count in inner.items() if count > _count(found)}
    if inner:
        prefix = f"{key}/" if key else ""
        ways = " or ".join(
            f"--key {prefix}{name} ({count:,} tensors)" for name, count in inner.items()
        )
        raise SpecMismatch(f"The weights in {path} are under a key. Say which: {ways}.")
    return found  # type: ignore[no-any-return]


def _is_dict(found: Any) -> bool:
    return isinstance(found, Mapping)


def _count(found: Mapping[Any, Any]) -> int:
    return sum(isinstance(one, torch.Tensor) for one in found.values())


def _tensors(found: Mapping[Any, Any], path: str) -> tuple[Tensors, list[str]]:
    """Those that a checkpoint can hold; and the names of what else there is."""
    tensors = {
        name: one
        for name, one in found.items()
        if isinstance(name, str) and isinstance(one, torch.Tensor)
    }
    if not tensors:
        raise SpecMismatch(f"There is no tensor in {path}. {ADVICE}")
    for name, one in tensors.items():
        if one.layout is not torch.strided or one.is_quantized or one.is_meta:
            raise SpecMismatch(
                f"{name!r} in {path} is a tensor without plain numbers ({one.layout}, {one.dtype})."
                " Convert it, as by .to_dense() or .dequantize(), and save it again."
            )
    return tensors, sorted(str(name) for name in found if name not in tensors)


def _require_room(tensors: Tensors, order: Mapping[str, Any]) -> None:
    """A small file may name huge tensors: one number, many times."""
    size = sum(one.numel() * one.element_size() for one in tensors.values())
    if size > order["most_bytes"]:
        raise SpecMismatch(
            f"The tensors in {order['path']} take {size:,} bytes, and this worker has "
            f"{order['most_bytes']:,} of memory free. Import them where there is more."
        )


def _require_finite(tensors: Tensors, path: str) -> None:
    for name, one in tensors.items():
        if not is_finite(one):
            raise SpecMismatch(
                f"{name!r} in {path} has NaN or infinite values, and training from them would "
                "fail. Save weights from before they became so."
            )


def _renamed(tensors: Tensors, rename: Mapping[str, str]) -> Tensors:
    """By the longest beginning that fits; each has to fit some."""
    unused = [old for old in rename if not any(name.startswith(old) for name in tensors)]
    if unused:
        begins = sorted({f"{name.split('.')[0]}." for name in tensors if "." in name})
        raise SpecMismatch(
            f"No tensor has a name that begins with {unused[0]!r}; they begin with "
            f"{', '.join(begins[:MOST_NAMED]) or ', '.join(list(tensors)[:MOST_NAMED])}."
        )
    named: Tensors = {}
    for name, one in tensors.items():
        old = max((old for old in rename if name.startswith(old)), key=len, default=None)
        new = name if old is None else rename[old] + name.removeprefix(old)
        if new in named or not new or new == "__metadata__":
            raise SpecMismatch(
                f"Renamed so, {name!r} would be called {new!r}, which is no name or that of "
                "another. Choose other names in --rename."
            )
        named[new] = one
    return named


def _publish(order: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    """Write the folder by the protocol of checkpoints; its row."""
    run_dir, folder = Path(order["run_dir"]), Path(order["out"])
    if run_dir.exists():  # of a process that was killed; the run's id is nobody else's
        shutil.rmtree(run_dir)
    folder.parent.parent.mkdir(parents=True)
    body = {
        "run_id": order["run_id"],
        "attempt": 1,
        "step": 0,
        "epoch": 0,
        "metrics": {},
        "imported": {name: order[name] for name in ("path", "key", "rename")},
    }
    size = publish(Snapshot({"model": on_cpu(tensors)}, body), folder)
    return {"step": 0, "epoch": 0, "bytes": size, "metrics": {}, "created_at": time.time()}
