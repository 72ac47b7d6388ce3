"""The shim counts steps and the wait for data, changes no result, and never gets in the way."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.spec.script import ScriptSpec
from tests.script.stage import Stage
from worker.agent.beat_report import BeatReport
from worker.script import shim
from worker.script.work import SHIM
from worker.telemetry.exporter import TelemetrySnapshot, WorkerCollector

TRAINS = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 4), torch.randn(256, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
other = torch.optim.SGD(model.parameters(), lr=0.0)
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        other.step()
        optimizer.zero_grad()
print("loss", loss.item().hex())
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_steps_are_counted_and_the_result_is_the_same(stage: Stage):
    stage.write(TRAINS)
    stage.run()
    steps, waited, pid, others, _ = SHIM.unpack((stage.attempt() / "shim").read_bytes())
    assert (steps, others) == (48, 48), "they take turns"
    assert 0 < waited < 60
    assert pid
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=stage.cwd, capture_output=True, text=True, check=True
    )
    assert plain.stdout.strip() in stage.log()
    assert stage.events("progress")[-1]["step"] == 48


SAVES = """
import os, torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], 0.1)
os.makedirs("proj")
for step in range(1, 131):
    optimizer.step()
    if step % 50 == 0:
        torch.save(step, f"proj/checkpoint_{step // 50}.pt")
        while step == 50 and not os.listdir(os.environ["STOKER_CHECKPOINT_DIR"]):
            pass
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_save_lies_at_the_step_at_which_torch_saved_it(stage: Stage):
    stage.write(SAVES)
    stage.run(checkpoints=["proj/checkpoint_*.pt"])
    assert [event["step"] for event in stage.events("checkpoint")] == [50, 100]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_script_that_cuts_its_mapped_files_short_does_not_end_its_runner(stage: Stage):
    stage.write(
        "import os, time\n"
        "for name in ('shim', 'pulse'):\n"
        "    os.truncate(os.environ['STOKER_RUN_DIR'] + '/' + name, 0)\n"
        "time.sleep(3)\n"
        "print('goes on')\n"
    )
    assert stage.run()["reason"] == "completed"
    assert "goes on" in stage.log()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_turned_off_it_counts_nothing(stage: Stage):
    stage.write(TRAINS)
    assert stage.run(shim=False)["reason"] == "completed"
    assert not (stage.attempt() / "shim").exists()
    assert not stage.curve("iterations_per_second")
    assert {event["step"] for event in stage.events("progress")} <= {0, None}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_is_counted_reaches_curves_and_prometheus(stage: Stage):
    slow = "other.step(); time.sleep(0.1); run.log({'loss': 1, 'grad_norm': 2}, step=epoch)"
    begin = "import stoker, time\nrun = stoker.init()\n"
    stage.write(begin + TRAINS.replace("other.step()", slow))
    stage.run()
    rates = stage.curve("iterations_per_second").values()
    assert 0 < max(rates) <= 10.5, "each step sleeps a tenth of a second"

    report = BeatReport(stage.run_folder, stage.attempt())
    report.take([event for event in stage.events() if event["kind"] != "end"])
    collector = WorkerCollector()
    spec = ScriptSpec.model_validate({"recipe": {"kind": "script", "argv": ("a.py",), "cwd": "/"}})
    run = report.view(1, 1, spec, gpus=())
    collector.publish(TelemetrySnapshot(runs=(run,)))
    found = {
        (sample.name.removeprefix("stoker_train_"), sample.labels.get("phase")): sample.value
        for family in collector.collect()
        for sample in family.samples
        if "run_id" in sample.labels
    }
    assert 0 < found["iterations_per_second", "train"] <= 10.5
    assert found["iterations_total", "train"] == 48
    assert (found["loss", None], found["grad_norm", None]) == (1, 2)
    assert found["stoker_run_progress_timeout_seconds", None] == 3600
    mean = stage.events("progress")[-1]["mean_iterations_per_second"]
    assert 0 < mean <= 10.5
    waited, rest = (found["phase_seconds_total", part] for part in ("data_wait", "other"))
    assert 0 < waited < 1 < rest < 20


def test_rates_are_over_the_time_since_the_first_step(tmp_path: Path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(shim, "time", SimpleNamespace(monotonic=lambda: now[0]))
    path = tmp_path / "shim"
    counted = shim.Shim(path)

    def told(steps: int, waited: float) -> tuple[float | None, float | None]:
        now[0] += 1.0
        with path.open("r+b") as file:
            file.write(SHIM.pack(steps, waited, 1, 0, 0))
        counted.read()
        rates = counted.rates()
        return rates["iterations_per_second"], rates["data_wait_ratio"]

    for _ in range(8):
        assert told(0, 0.0) == (None, None), "it imports PyTorch, and reads its data"
    assert told(4, 3.0) == (None, None)
    assert told(14, 3.25) == (10.0, 0.25)
    for second in range(1, 12):
        assert told(14 + 10 * second, 3.25 + 0.25 * second) == (10.0, 0.25)
    assert told(2, 0.5) == (None, None), "another process of it counts anew"
    assert told(5, 1.0) == (3.0, 0.5)


def run_with_shim(tmp_path: Path, code: str, *before: str) -> str:
    stage = Stage(tmp_path)
    figures = tmp_path / "shim"
    figures.write_bytes(bytes(SHIM.size))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(stage.path_folder), *before]),
        "STOKER_SHIM_FILE": str(figures),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


def test_a_sitecustomize_of_the_users_own_runs_too(tmp_path: Path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('mine ran')")
    assert run_with_shim(tmp_path, "print('end')", str(own)) == "mine ran\nend\n"


def test_one_that_raises_is_told_as_python_does(tmp_path: Path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise KeyError('broken')")
    said = run_with_shim(tmp_path, "print('end')", str(own))
    assert re.search(r"KeyError.*broken", said)
    assert "end" in said


def test_without_torch_nothing_is_imported(tmp_path: Path):
    code = "import sys; print(sorted({'torch', 'typing', 'numpy'} & set(sys.modules)))"
    assert run_with_shim(tmp_path, code) == "[]\n"


def test_a_torch_that_is_unlike_any_other_is_left_alone(tmp_path: Path):
    fake = tmp_path / "fake" / "torch" / "optim"
    fake.mkdir(parents=True)
    (fake.parent / "__init__.py").write_text("")
    (fake / "__init__.py").write_text("")
    (fake / "optimizer.py").write_text("value = 7\n")
    code = "import torch.optim.optimizer as o; print(o.value)"
    assert run_with_shim(tmp_path, code, str(tmp_path / "fake")) == "7\n"


COUNTS = """
import os, sitecustomize
counter = sitecustomize.Counter(os.environ["STOKER_SHIM_FILE"])
class Optimizer:
    pass
optimizer = Optimizer()
def make(steps, by=None):
    for _ in range(steps):
        counter.step(by or optimizer, (), {})
make(3)
"""
FORKS = f"""{COUNTS}
if os.fork() == 0:
    make(50)
    os._exit(0)
os.wait()
make(2)
"""


def counted_in(tmp_path: Path, code: str) -> tuple[int, int]:
    """Steps that were counted, and others."""
    assert run_with_shim(tmp_path, code) == ""
    steps, _, _, others, _ = SHIM.unpack((tmp_path / "shim").read_bytes())
    return steps, others


def test_of_several_processes_the_first_one_counts(tmp_path: Path):
    assert counted_in(tmp_path, FORKS) == (5, 50), "the others show that the script lives"


@pytest.mark.parametrize(
    ("code", "counted"),
    [
        ("make(2, second); make(1)", (4, 2)),
        ("make(2, second); del optimizer; make(4, second)", (7, 2)),
        ("make(150, second)", (153, 99)),
    ],
    ids=["in turns", "when the first is gone", "when the first is done"],
)
def test_a_second_optimizer_is_counted_after_the_first(tmp_path: Path, code: str, counted):
    assert counted_in(tmp_path, f"{COUNTS}second = Optimizer(); {code}") == counted


def test_a_file_that_is_gone_stops_no_training(tmp_path: Path):
    gone = "import os; os.remove(os.environ['STOKER_SHIM_FILE'])\n"
    assert run_with_shim(tmp_path, gone + FORKS + "print('end')") == "end\n"
