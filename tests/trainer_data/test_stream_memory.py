"""What streams takes two chunks of memory, however large its file is."""

import json
import subprocess
import sys

import h5py
import pytest

MIB = 2**20
CHUNK_BYTES = 16 * MIB
MEASURE = """
import json, sys, tempfile
from pathlib import Path

import torch

from tests.trainer_data.factories import entry, make_spec, preparing
from worker.trainer.data.dataset import open_data

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

torch.set_num_threads(2)
path, loader = Path(sys.argv[1]), json.loads(sys.argv[2])
split = {"method": "chronological", "validation_fraction": 0.0}
spec = make_spec({"loader": loader, "split": split}, training={"batch_size": 128})
dataset = {"numbers": entry(path)}
imports = peak()
data = open_data(spec, dataset, torch.device("cpu"), preparing(path.parent))
samples = sum(batch.size for batch in data.train.iterate(0))
direct = data.describe()["read_directly"]
data.close()
print(json.dumps({"above": peak() - imports, "samples": samples, "direct": direct}))
"""


def write_holes(path, mib: int) -> int:
    """So many MiB of zeros, which take no room on the disk; how many samples they are."""
    samples = mib * MIB // (64 * 1024)
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        for name, shape in (("features", (samples, 128, 120)), ("targets", (samples, 1024))):
            space = h5py.h5s.create_simple(shape)
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.NATIVE_FLOAT, space, plan)
    assert path.stat().st_blocks * 512 < MIB < path.stat().st_size
    return samples


@pytest.mark.parametrize("shuffle", ["none", "full"])
def test_a_streams_memory_is_that_of_its_chunks(tmp_path, shuffle):
    samples = write_holes(tmp_path / "holes.h5", 512)
    loader = {"kind": "chunked", "residency": "stream", "shuffle": shuffle}
    loader["chunk_size"] = f"{CHUNK_BYTES // MIB}MiB"
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "holes.h5"), json.dumps(loader)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["samples"] == samples
    assert found["direct"] == ["features", "targets"]
    assert CHUNK_BYTES < found["above"] < 2 * CHUNK_BYTES + 100 * MIB
