"""Whatever ends an attempt, a person gets a reason and a sentence, and never a traceback."""

import errno
import json
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch

from app.lifecycle import Reason
from tests.trainer.lab import Lab, read_events, read_pulse, start_trainer
from worker.trainer.device import choose_precision, open_device
from worker.trainer.errors import DataError, SpecMismatch, TrainerError
from worker.trainer.failure import explain
from worker.trainer.out_of_memory import out_of_memory


def cpu_allocation_error() -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    return caught.value


def of_the_compiler(met: Exception) -> Exception:
    """As PyTorch's compiler passes on what it met."""
    kind = type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})
    error: Any = kind(f"{type(met).__name__}: {met}")
    error.inner_exception = met
    return cast("Exception", error)


@pytest.mark.parametrize(
    ("error", "reason", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), Reason.device_oom, "GPU ran out of memory"),
        (torch.AcceleratorError("CUDA error: out of memory"), Reason.device_oom, "while training."),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
            Reason.device_oom,
            "GPU ran out",
        ),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), Reason.device_oom, "GPU ran out"),
        (
            RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
            Reason.device_oom,
            "GPU ran out",
        ),
        (
            RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
            Reason.host_oom,
            "host ran out",
        ),
        (MemoryError(), Reason.host_oom, "host ran out of memory while training"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Reason.host_oom, "host ran out"),
        (torch.AcceleratorError("CUDA error: an illegal address"), Reason.gpu_fault, "dmesg"),
        (RuntimeError("cuDNN error: EXECUTION_FAILED\nmore"), Reason.gpu_fault, "cuDNN error"),
        (
            torch.AcceleratorError("CUDA error: no kernel image is available for execution"),
            Reason.trainer_error,
            "has no kernels for this attempt's GPU",
        ),
        (OSError(errno.ENOSPC, "No space", "/a"), Reason.disk_full, "Free space"),
        (DataError("Row 3 is torn."), Reason.data_error, "Row 3 is torn."),
        (ValueError("odd\nsecond line"), Reason.trainer_error, "ValueError.* odd. trainer.log"),
        (OSError(errno.EIO, "I/O error", "/a"), Reason.trainer_error, "I/O error"),
        (of_the_compiler(torch.OutOfMemoryError("CUDA out")), Reason.device_oom, "The GPU ran"),
        (of_the_compiler(OSError(errno.ENOSPC, "No", "/a")), Reason.disk_full, "Free space"),
        (
            of_the_compiler(RuntimeError("C++ compile error\nPython.h: No such file")),
            Reason.spec_error,
            "RuntimeError: C\\+\\+ compile error. To go on, install Python's headers .*or set",
        ),
        (
            of_the_compiler(AssertionError()),
            Reason.spec_error,
            r"AssertionError\. To go on, set runtime.compile.mode to none",
        ),
    ],
)
def test_errors_become_reasons(error: Exception, reason: Reason, told: str) -> None:
    found, message = explain(error, "training")
    assert found is reason
    assert re.search(told, message)
    assert "\n" not in message


def test_whatever_else_fails_while_compiling_has_the_way_around_it() -> None:
    reason, message = explain(FileNotFoundError(2, "No such file", "/cache"), "compiling")
    assert reason is Reason.spec_error
    assert "No such file" in message
    assert "set runtime.compile.mode to none" in message


def test_a_failed_allocation_on_the_host_is_told_from_other_errors() -> None:
    reason, message = explain(cpu_allocation_error(), "building")
    assert reason is Reason.host_oom
    assert "while building" in message


CUDA_TOLD = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 1.25 GiB is free. Including non-PyTorch memory, this process has 77.8 GiB memory in use."
)


def numpy_error() -> MemoryError:
    with pytest.raises(MemoryError) as caught:
        np.empty(2**60, dtype=np.uint8)
    return caught.value


@pytest.mark.parametrize(
    ("make", "wanted", "free"),
    [
        (lambda: torch.OutOfMemoryError(CUDA_TOLD), 5 * 2**29, 5 * 2**28),
        (cpu_allocation_error, 2**60, None),
        (numpy_error, 2**60, None),
        (MemoryError, None, None),
    ],
)
def test_how_much_was_wanted_and_how_much_was_free_is_told(
    make: Callable[[], Exception], wanted: int | None, free: int | None
) -> None:
    found = out_of_memory(make(), "training")
    assert found is not None
    assert found.wanted_bytes == wanted
    if free is not None:
        assert found.free_bytes == free
        assert found.message.endswith(": 2.50 GiB were asked for, 1.25 GiB were free.")
    else:
        assert found.free_bytes is not None  # the host's


@pytest.mark.parametrize(
    "told", ["could not execute a primitive", "could not create a primitive", "start new thread"]
)
def test_what_may_have_other_causes_is_memory_only_where_little_is_left(told: str) -> None:
    error = RuntimeError(f"{told}")
    with host_memory_left(2**40):
        assert out_of_memory(error, "training") is None
    with host_memory_left(2**28):
        found = out_of_memory(error, "training")
    assert found is not None
    assert found.free_bytes is not None
    assert found.free_bytes <= 2**28


@contextmanager
def host_memory_left(most: int) -> Iterator[None]:
    """As `ulimit -d` in the shell that started this process."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = psutil.Process().memory_info().data + most
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_a_checkpoint_that_cannot_be_written_is_its_own_reason() -> None:
    reason, message = explain(OSError(errno.EROFS, "Read-only file system"), "checkpointing")
    assert reason is Reason.checkpoint_write_error
    assert "Earlier checkpoints are intact" in message


@pytest.mark.parametrize("precision", ["fp16-mixed", "tf32"])
def test_precisions_of_gpus_are_refused_on_the_cpu(precision: str) -> None:
    with pytest.raises(SpecMismatch, match=f"{precision} needs a GPU"):
        choose_precision(precision, torch.device("cpu"))


def test_auto_precision_on_the_cpu_is_fp32() -> None:
    assert choose_precision("auto", torch.device("cpu")) == "fp32"


@pytest.mark.parametrize("precision", ["tf32", "bf16-mixed"])
def test_a_gpu_older_than_ampere_refuses_what_it_would_leave_out(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    with pytest.raises(SpecMismatch, match="Ampere or newer"):
        choose_precision(precision, torch.device("cuda"))
    assert choose_precision("auto", torch.device("cuda")) == "fp32"
    assert choose_precision("fp16-mixed", torch.device("cuda")) == "fp16-mixed"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_said_plainly() -> None:
    with pytest.raises(TrainerError, match="sees no CUDA device"):
        open_device("cuda:0")


def test_a_spec_that_is_not_valid_names_the_place(lab: Lab) -> None:
    folder = lab.prepare(patch={"training": {"epochs": 0}})
    with pytest.raises(TrainerError, match=r"training\.epochs: Input should be") as caught:
        lab.execute(folder)
    assert caught.value.reason is Reason.spec_error


def test_a_spec_file_of_another_version_is_said_plainly(lab: Lab) -> None:
    folder = lab.prepare()
    (folder / "spec.json").write_text('{"spec": {}}')
    with pytest.raises(TrainerError, match="different versions"):
        lab.execute(folder)


def test_a_changed_dataset_ends_the_attempt(lab: Lab) -> None:
    folder = lab.prepare()
    with lab.data.open("ab") as file:
        file.write(b"more")
    with pytest.raises(TrainerError) as caught:
        lab.execute(folder)
    assert caught.value.reason is Reason.dataset_changed


def run_process(folder: Path, *, standby: bool = False, **environment: str) -> tuple[int, str]:
    code = start_trainer(folder, standby=standby, **environment).wait(timeout=100)
    return code, (folder / "trainer.log").read_text()


@pytest.mark.slow
def test_a_failed_process_tells_the_reason_and_logs_the_traceback(lab: Lab) -> None:
    folder = lab.prepare(patch={"recipe": {"patch": 7}})
    code, log = run_process(folder)
    end = read_events(folder)[-1]
    assert code == 1
    assert (end["kind"], end["reason"]) == ("end", "spec_error")
    assert "A patch of 7 does not divide" in end["message"]
    assert "Traceback" not in json.dumps(read_events(folder))
    assert "Traceback" in log
    assert read_pulse(folder / "pulse")[0] == "building"


@pytest.mark.parametrize("standby", [False, True])
def test_a_missing_torch_ends_the_attempt_with_a_sentence(lab: Lab, standby: bool) -> None:
    broken = lab.root / "site"
    broken.mkdir()
    (broken / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open')")
    folder = lab.prepare()
    code, log = run_process(folder, standby=standby, PYTHONPATH=str(broken))
    end = read_events(folder)[-1]
    assert code == 1, log
    assert (end["kind"], end["reason"]) == ("end", "trainer_error")
    assert "cannot start on this worker: ImportError: libcudart.so.13" in end["message"]


@pytest.mark.slow
def test_a_successful_process_ends_clean_even_with_warnings_as_errors(lab: Lab) -> None:
    folder = lab.prepare()
    code, log = run_process(folder)
    events = read_events(folder)
    assert code == 0, log
    assert [e["phase"] for e in events if e["kind"] == "phase"][:4] == [
        "starting",
        "restoring",
        "building",
        "training",
    ]
    assert (events[-1]["kind"], events[-1]["reason"]) == ("end", "completed")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert "step 9" in log
    applied = json.loads((folder / "applied.json").read_text())
    assert applied["environment"]["torch"] == torch.__version__
    assert applied["applied"]["precision"] == "fp32"
