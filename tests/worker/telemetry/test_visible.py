"""Which GPUs an agent keeps to when it was started with CUDA_VISIBLE_DEVICES."""

from dataclasses import replace

import pytest

from tests.worker.telemetry.test_exporter import GPU
from worker.telemetry.visible import visible

GPUS = [
    replace(GPU, index=str(index), uuid=uuid)
    for index, uuid in enumerate(("GPU-8932", "GPU-8a01", "GPU-17ff"))
]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("2, 0", [2, 0]),
        ("0,0", [0]),
        ("0,7,1", [0]),  # what follows one that is not there is none either
        ("GPU-8a01", [1]),
        ("GPU-17,GPU-89", [2, 0]),
        ("GPU-8", []),  # two begin so
        ("MIG-1", []),
    ],
)
def test_those_that_cuda_would_show(given, found):
    assert [GPUS.index(gpu) for gpu in visible(GPUS, given)] == found
