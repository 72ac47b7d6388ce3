"""Compiled steps: the same training, compiled before it and never in it, and kept for the next."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from app.lifecycle import Reason
from app.spec.optimization import AdamW
from tests.trainer.lab import Lab, Outcome, StopAtPoll, read_events, start_trainer, unstopped
from tests.trainer.test_numerics import spec_of
from worker.trainer.checkpoints.exactness import resumes_exactly
from worker.trainer.data.batch import ONE_SHAPE, Batch, BatchPlan
from worker.trainer.data.source import Field
from worker.trainer.data.tensors import made_up
from worker.trainer.failure import explain
from worker.trainer.optimizers import build_optimizer
from worker.trainer.recipes.base import Statistics, Tables
from worker.trainer.recipes.sequence import SequenceTask
from worker.trainer.speed import compiled as compilation
from worker.trainer.speed import compiler
from worker.trainer.speed.compiled import Compilation, CompilePlan, compile_step
from worker.trainer.speed.compiler import Counts, count, quiet
from worker.trainer.step import Precision, TrainingStep

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
]
CPU = torch.device("cpu")
COMPILE = {"compile": {"mode": "default"}}
# 48 training samples in batches of 20, 20 and 8, two to a step; 12 to evaluate in one batch.
COMPILED: dict[str, Any] = {
    "data": {"split": {"test_fraction": 0.0}},
    "training": {"batch_size": 20},
    "evaluation": {"batch_size": 12},
    "runtime": COMPILE,
}
# Polls of the stop flag before the first step: after restoring, two parts, their statistics, and
# the three shapes.
POLLS = 7


class Flat(nn.Module):
    """As small as a forecaster can be; a graph of its own, and random numbers in it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, 4))
        self.register_buffer("target_std", torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        forecast: Tensor = self.head(inputs)
        return forecast


class FlatTask(SequenceTask):
    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        return Flat()


def forget() -> None:
    """As a new process begins."""
    with quiet():
        torch.compiler.reset()
        from torch._dynamo.utils import counters
    counters.clear()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all tests here: what one has compiled, the next finds."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(autouse=True)
def _new_process(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: FlatTask)
    forget()
    yield
    forget()


def applied(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = outcome.of_kind("applied")[0]["applied"]
    return found


def compiling(outcome: Outcome) -> dict[str, Any]:
    """The event of its phase."""
    (found,) = [event for event in outcome.of_kind("phase") if event["phase"] == "compiling"]
    return found


@pytest.mark.minutes
def test_all_is_compiled_before_the_first_step_and_a_resume_ends_with_the_same_bits(
    lab: Lab,
) -> None:
    """Its random numbers, of dropout, are drawn by what was compiled."""
    straight = lab.run(patch=COMPILED)
    phases = [event["phase"] for event in straight.of_kind("phase")]
    assert phases[:4] == ["restoring", "building", "compiling", "training"]
    told = applied(straight)["compile"]
    assert (told["mode"], told["cache"]) == ("default", "miss")
    assert told["graphs"] == count().graphs == 3
    assert 0 < told["seconds"] <= straight.of_kind("progress")[-1]["phase_seconds"]["graph_build"]
    assert straight.of_kind("warning") == []
    shapes = {"training step": 1, "smaller last batch": 1, "evaluation": 1}
    begun = compiling(straight)
    assert (begun["shapes"], begun["earlier"]) == (shapes, None)
    run_dir, before = lab.new_run(), told
    for stop in (StopAtPoll(POLLS + 6), StopAtPoll()):
        forget()
        outcome = lab.run(run_dir, COMPILED, stop=stop)
        assert applied(outcome)["compile"]["cache"] == "hit"
        assert compiling(outcome)["earlier"] == {
            name: before[name] for name in ("seconds", "cache", "graphs")
        }
        before = applied(outcome)["compile"]
        assert applied(outcome)["exact_resume"] is True
    assert outcome.of_kind("restored")[0]["step"] > 0
    assert (outcome.weights, outcome.losses) == (straight.weights, straight.losses)


@pytest.mark.minutes
def test_an_lstm_too_and_the_cache_outlives_the_process_and_serves_a_standby(
    lab: Lab, cache: Path
) -> None:
    """A process that fails at a warning; PyTorch cuts its graph at the LSTM."""
    patch = {
        "recipe": {"num_layers": 1},
        "data": {"split": {"validation_fraction": 0.0, "test_fraction": 0.0}},
        "training": {"batch_size": 30},
        "early_stopping": None,
        "runtime": COMPILE,
    }
    ended = []
    for standby, found in ((False, "miss"), (True, "hit")):
        folder = lab.prepare(patch=patch)
        process = start_trainer(folder, standby=standby, TORCHINDUCTOR_CACHE_DIR=str(cache))
        assert process.wait(timeout=200) == 0, (folder / "trainer.log").read_text()
        ended.append(Outcome(folder, folder.parent, events=read_events(folder)))
        assert applied(ended[-1])["compile"]["cache"] == found
    assert ended[0].weights == ended[1].weights


@pytest.mark.minutes
def test_a_stop_is_heard_between_two_shapes(lab: Lab) -> None:
    outcome = lab.run(patch=COMPILED, stop=StopAtPoll(POLLS - 1))
    assert outcome.end is not None
    assert (outcome.end.reason, outcome.end.step) == (Reason.interrupted, None)
    assert "Stopped while compiling, before a step was made" in outcome.end.message


@pytest.mark.minutes
def test_more_graphs_than_were_foreseen_are_told_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "FEW_GRAPHS", -1)
    (warning,) = lab.run(patch=COMPILED).of_kind("warning")
    assert warning["code"] == "recompiled"
    assert warning["message"].startswith("0 graphs were compiled after the first step")


@pytest.mark.parametrize(("graphs", "is_told"), [(12, False), (15, False), (16, True)])
def test_a_few_graphs_more_are_no_trouble(
    monkeypatch: pytest.MonkeyPatch, graphs: int, is_told: bool
) -> None:
    monkeypatch.setattr(compilation, "count", lambda: Counts(graphs, 0, 0))
    assert (Compilation("default", "miss", 1.0, 12).excess() is not None) is is_told
    assert Compilation("none").excess() is None


@pytest.mark.parametrize(
    ("counts", "told"),
    [((3, 0, 5), "miss"), ((3, 3, 0), "hit"), ((3, 1, 2), "partial"), ((0, 0, 0), None)],
)
def test_what_the_cache_had_is_told(counts: tuple[int, int, int], told: str | None) -> None:
    assert compilation._cache(Counts(*counts)) == told


class Normalized:
    """A small task whose model keeps statistics of what it sees; it draws numbers in vain."""

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def carried(self, model: nn.Module) -> dict[str, Tensor]:
        return {}

    def begin(self, kind: str, model: nn.Module) -> None:
        """Nothing is carried."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        assert not state

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        first = nn.Linear(4, 8, bias=False)  # of which the next would take all effect
        return nn.Sequential(first, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def made_up(self, size: int, device: torch.device) -> Batch:
        return Batch(made_up(FIELDS, size, device), size)

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        error: Tensor = model(batch.arrays["x"]) - batch.arrays["y"]
        return {"loss": error.abs().mean() + 0.0 * torch.rand_like(error).mean()}

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.loss(model, batch)["loss"].double()}


FIELDS = {name: Field((size,), np.dtype("float32")) for name, size in (("x", 4), ("y", 1))}


def part(samples: int, batch_size: int, most_at_once: int | None = None) -> Any:
    plan = BatchPlan(samples, batch_size, False, most_at_once)
    return SimpleNamespace(plan=plan, shapes=ONE_SHAPE)


def small_step() -> TrainingStep:
    task: Any = Normalized()
    model = task.build()
    optimizer = build_optimizer(AdamW(), {"model": model.parameters()})
    return TrainingStep(model, task, optimizer, Precision("fp32", CPU), 1.0)


def compile_small(step: TrainingStep, lab: Lab, **parts: Any) -> Compilation:
    missing = {"validation": None, "test": None}
    data: Any = SimpleNamespace(fields=FIELDS, **{**missing, **parts})
    return compile_step(step, spec_of(COMPILED), data, unstopped(lab.root))


def test_a_compiled_step_begins_as_an_eager_one_and_computes_the_same(lab: Lab) -> None:
    eager, step = small_step(), small_step()
    for one in (eager, step):
        one.loss_sums += 3.0
    random_before = torch.get_rng_state()
    compile_small(step, lab, train=part(16, 8))
    assert torch.equal(torch.get_rng_state(), random_before)
    for name, value in eager.model.state_dict().items():
        assert torch.equal(step.model.state_dict()[name], value), name
    assert step.loss_sums.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert all(parameter.grad is None for parameter in step.model.parameters())
    for number in range(1, 7):
        torch.manual_seed(number)
        batch = Batch({"x": torch.randn(8, 4), "y": torch.randn(8, 1)}, 8)
        for one in (eager, step):
            for share in (0.25, 0.75):
                one.accumulate(batch, share)
            one.apply(0.05)
    torch.testing.assert_close(step.loss_sums, eager.loss_sums, rtol=1e-5, atol=0.0)
    for name, value in eager.model.state_dict().items():
        torch.testing.assert_close(step.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_what_compiling_took_is_known_to_the_next_like_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    data: Any = SimpleNamespace(
        fields=FIELDS, train=part(42, 8), validation=part(30, 8), test=part(30, 8)
    )

    def plan(size: int = 8, **runtime: Any) -> CompilePlan:
        recipe = {"hidden_size": size}
        return CompilePlan.of(small_step(), spec_of({"recipe": recipe, "runtime": runtime}), data)

    first = plan()
    assert first.shapes == {"training step": 1, "smaller last batch": 1, "evaluation": 2}
    assert first.earlier is None
    first.keep(Compilation("default", "miss", 41.2, 5))
    assert plan().earlier == {"seconds": 41.2, "cache": "miss", "graphs": 5}
    assert plan(size=16).earlier is None
    assert plan(compile={"mode": "max-autotune"}).earlier is None
    assert first.record is not None
    first.record.write_text("cut sh")
    assert plan().earlier is None
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    assert plan().record is None
    plan().keep(Compilation("default", "miss", 1.0, 5))


class Carrying(Normalized):
    """Weighs its loss by a table, and by what it has seen so far, in a buffer."""

    def build(self) -> nn.Module:
        model = super().build()
        model.register_buffer("seen", torch.zeros(()), persistent=False)
        return model

    def carried(self, model: nn.Module) -> dict[str, Tensor]:
        return {"seen": model.get_buffer("seen")}

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        seen = self.carried(model)["seen"]
        seen.add_(batch.arrays["x"].mean())
        return {"loss": super().loss(model, batch)["loss"] * batch.tables["weight"] * (1 + seen)}


def test_tables_and_what_is_carried_are_compiled_with_the_step_and_once(lab: Lab) -> None:
    steps = []
    for _ in range(2):
        task: Any = Carrying()
        model, tables = task.build(), {"weight": torch.tensor(2.0)}
        optimizer = build_optimizer(AdamW(), {"model": model.parameters()})
        precision = Precision("fp32", CPU)
        steps.append(TrainingStep(model, task, optimizer, precision, 1.0, tables=tables))
    compile_small(steps[1], lab, train=part(16, 8))
    graphs = count().graphs
    assert not bool(task.carried(model)["seen"])  # compiling left no trace
    for number in range(4):
        torch.manual_seed(number)
        batch = Batch({"x": torch.randn(8, 4), "y": torch.randn(8, 1)}, 8)
        for one in steps:
            one.accumulate(batch, 1.0)
            one.apply(0.05)
    assert count().graphs == graphs
    eager, step = (one.task.carried(one.model)["seen"] for one in steps)
    assert bool(eager)
    torch.testing.assert_close(step, eager)
    torch.testing.assert_close(steps[1].loss_sums, steps[0].loss_sums, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize(
    ("validation", "test", "sizes"),
    [
        (None, None, []),
        ((30, 8), None, [8, 6]),
        ((24, 8), None, [8]),
        ((5, 8), None, [5]),
        ((8, 8), (14, 8), [8, 6]),
        ((28, 8, 3), None, [3, 2, 1]),
        ((16, 8, 3), None, [3, 2]),
    ],
)
def test_each_size_of_an_evaluated_batch_is_compiled_once(
    validation: Any, test: Any, sizes: list[int]
) -> None:
    parts = {"validation": validation, "test": test}
    data: Any = SimpleNamespace(**{k: part(*v) if v else None for k, v in parts.items()})
    shapes = compilation._evaluated_shapes(data)
    assert shapes == [(size, {}) for size in sizes]


def test_a_host_without_a_compiler_ends_the_run_with_what_to_install(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "empty"))
    with config.patch({"cpp.cxx": (None, "no-such-compiler")}), pytest.raises(RuntimeError) as met:
        compile_small(small_step(), lab, train=part(16, 8))
    reason, message = explain(met.value, "compiling")
    assert reason is Reason.spec_error
    assert message.startswith("The steps could not be compiled: InvalidCxxCompiler: ")
    assert "install a C++ compiler (Debian: apt-get install g++)" in message
    assert "or set runtime.compile.mode to none" in message
    assert "\n" not in message


@pytest.mark.parametrize("mode", compiler.MODES)
def test_no_mode_records_cuda_graphs_which_have_a_switch_of_their_own(mode: str) -> None:
    from torch._inductor import list_mode_options

    assert "triton.cudagraphs" not in list_mode_options(compiler.MODES[mode])


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_compiler_is_told_whether_results_may_vary(deterministic: bool) -> None:
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    compiler.compiled(torch.sin, "default")
    from torch._inductor import config

    assert config.deterministic is deterministic


@pytest.mark.parametrize(
    ("device", "mode", "exact"),
    [("cpu", "none", True), ("cpu", "default", True), ("cpu", "max-autotune", False),
     ("cuda", "default", False)],
)  # fmt: skip
def test_kernels_that_are_chosen_by_speed_make_a_resume_inexact(
    device: str, mode: str, exact: bool
) -> None:
    assert resumes_exactly(nn.Linear(1, 1), torch.device(device), mode) is exact
