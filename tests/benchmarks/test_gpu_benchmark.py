"""`python -m benchmarks.gpu` without a GPU: its refusal, its report, its limits of time."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import Bench, device_faults, in_a_process, main, measure_all

ON_CPU = Bench("cpu", quick=True)
FAKE_HOST = str(Path(__file__).parents[1] / "worker" / "fake_nvml")
SERVER, CLIENT = 4_100_001, 4_100_002


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device")
def test_without_a_gpu_it_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu.json"
    with pytest.raises(SystemExit) as ended:
        main(["--json", str(out)])
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "PyTorch sees no CUDA device here" in said
    assert "`python -m benchmarks.gpu --device cpu --quick`" in said
    assert not out.exists()


@pytest.mark.slow
def test_its_report_has_each_part_and_the_machine(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    asked = ["--device", "cpu", "--quick", "--json", str(out), "weather-gru", "pinned"]
    assert main(asked) == 0
    report = json.loads(out.read_text())
    assert report["environment"]["device"] == "cpu"
    assert report["environment"]["packages"]["torch"] == torch.__version__
    assert (report["quick"], report["left_out"]) == (True, [])
    trained, copied = report["parts"]["weather-gru"], report["parts"]["pinned"]
    assert trained["iterations_per_second"] > 0
    assert trained["share_of_memory_speed"] > 0
    assert trained["cuda_graphs"]["captured"] is False
    assert "on the CPU" in trained["cuda_graphs"]["why_not"]
    assert copied["equal"] is True
    assert copied["buffered_seconds"] > 0


def test_a_part_that_takes_too_long_or_fails_says_so_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gpu.MOST_SECONDS, "pinned", 0.01)
    out = tmp_path / "gpu.json"
    assert measure_all(["pinned"], ON_CPU, out, 100.0) == 1
    report = json.loads(out.read_text())
    assert report["parts"]["pinned"]["error"].startswith("It was ended after")
    assert report["left_out"] == []
    failed = in_a_process("no-such-part", ON_CPU, 100.0)
    assert failed["error"].startswith("It ended with exit code 2.")
    assert "no-such-part" in failed["error"]


def test_when_the_time_is_up_the_rest_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    assert measure_all(["pinned", "recomputed"], ON_CPU, out, 0.0) == 1
    report = json.loads(out.read_text())
    assert (report["parts"], report["left_out"]) == ({}, ["pinned", "recomputed"])
    assert report["budget_seconds"] == 0.0


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device")
def test_the_tests_that_need_a_gpu_are_counted_as_far_as_they_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU each is skipped; where time is up, that is said."""
    folder = tmp_path / "tests"
    folder.mkdir()
    lines = ["import pytest, time", "pytestmark = pytest.mark.gpu", "def test_good(): pass",
             "def test_bad(): assert False", "def test_skipped(): pytest.skip('none')",
             "def test_endless(): time.sleep(600)"]  # fmt: skip
    (folder / "test_some.py").write_text("\n".join(lines))
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    found = gpu.gpu_tests(Bench("cpu", quick=True, limit_seconds=60.0))
    assert (found["timed_out"], found["exit_code"]) == (True, None)
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 1, 1)
    assert found["bad"] == ["tests/test_some.py::test_bad"]


def test_cards_and_slots_are_those_that_the_agent_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """One card is divided by MIG, one has an MPS server with a client, and one the server alone."""
    alone = {"pids": [SERVER], "held": 30 * 2**30}
    world = {
        "gpus": [{"mig": 1}, {"mig": 0, "pids": [SERVER], "mps": [CLIENT]}, alone],
        "programs": {str(SERVER): "/usr/bin/nvidia-cuda-mps-server"},
    }
    monkeypatch.setenv("PYTHONPATH", FAKE_HOST)
    monkeypatch.setenv("FAKE_NVML", json.dumps(world))
    found = in_a_process("devices", ON_CPU, 100.0)
    assert "error" not in found, found
    divided, served, idle = found["cards"]
    assert [card["is_divided_by_mig"] for card in found["cards"]] == [True, False, False]
    assert (divided["mps_servers"], divided["computing"]) == ([], [])
    assert (idle["mps_servers"], idle["computing"]) == ([SERVER], [])
    assert (served["mps_servers"], served["computing"]) == ([SERVER], [CLIENT])
    assert [slot["device"] for slot in found["slots"]] == ["cuda:0", "cuda:1", "cuda:2", "cpu"]
    assert "GPU 0 is divided by MIG" in found["slots"][0]["waiting"]
    assert [found["slots"][number]["waiting"] for number in (2, 3)] == [None, None]


def test_without_a_driver_the_cards_are_none_and_it_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", FAKE_HOST)
    monkeypatch.setenv("FAKE_NVML", json.dumps({"error": "NVML Shared Library Not Found"}))
    found = in_a_process("devices", ON_CPU, 100.0)
    assert (found["cards"], found["why_none"]) == ([], "NVML Shared Library Not Found")
    assert [slot["device"] for slot in found["slots"]] == ["cpu"]


def test_an_mps_server_that_counts_or_a_divided_card_that_is_offered_is_an_error() -> None:
    card = {"index": "0", "uuid": "GPU-0", "is_divided_by_mig": False}
    served = card | {"mps_servers": [7], "computing": [7, 8]}
    divided = card | {"mps_servers": [], "computing": [], "is_divided_by_mig": True}
    free = [{"device": "cuda:0", "uuid": "GPU-0", "waiting": None}]
    refused = [free[0] | {"waiting": "GPU 0 is divided by MIG."}]
    assert device_faults([served], free) == ["GPU 0: the MPS server (7) counts as foreign work."]
    assert device_faults([divided], free) == ["GPU 0 is divided by MIG, and its slot takes runs."]
    assert device_faults([divided], refused) == device_faults([divided], []) == []
