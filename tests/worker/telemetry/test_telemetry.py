"""GPU telemetry through the real probe process, with a fake driver behind it."""

import os
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from tests.worker.eventually import eventually
from worker.telemetry.gpm import Gpm
from worker.telemetry.gpus import RETRY_SECONDS, SILENCE_SECONDS, GpuTelemetry, foreign_work

GIB = 2**30


@pytest.fixture
def telemetry():
    with closing(GpuTelemetry(period_seconds=0.05)) as telemetry:
        yield telemetry


def test_a_gpu_is_told_in_base_units(fake_nvml, telemetry):
    fake_nvml(gpus=[{"unsupported": ["power"]}])
    telemetry.wait_for_first(60)
    (gpu,) = telemetry.gpus
    assert (gpu.index, gpu.uuid, gpu.model, gpu.driver) == ("0", "GPU-0", "Fake H200", "570.00")
    assert gpu.utilization == 0.87
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (GIB, 100 * GIB)
    assert (gpu.temperature_celsius, gpu.energy_joules) == (61, 2000.0)
    assert gpu.capability == (9, 0)
    assert gpu.power_watts is None, "not supported is absent, not 0"


def test_busy_multiprocessors_are_told_where_the_gpu_counts_them(fake_nvml, telemetry):
    fake_nvml(gpus=[{"sm_active": 37.5}, {}])
    telemetry.wait_for_first(60)
    assert [gpu.sm_active for gpu in telemetry.gpus] == [None, None], "one sample is none"
    assert telemetry.gpus[0].sm_clock_hertz == 1.98e9
    assert telemetry.gpus[0].memory_clock_hertz == 2.619e9

    def counted():
        telemetry.read(time.monotonic())
        return telemetry.gpus[0].sm_active is not None

    eventually(counted, "a second sample comes")
    assert [gpu.sm_active for gpu in telemetry.gpus] == [0.375, None]


def test_the_real_binding_has_what_the_probe_asks_with(monkeypatch):
    def answer(asked):
        asked.metrics[0].value = 25.0
        return asked

    sampled = []
    monkeypatch.setattr(pynvml, "nvmlGpmMetricsGet", answer)
    monkeypatch.setattr(pynvml, "nvmlGpmSampleGet", lambda handle, sample: sampled.append(sample))
    monkeypatch.setattr(pynvml, "nvmlGpmSampleFree", lambda sample: None)
    monkeypatch.setattr(pynvml, "nvmlGpmSampleAlloc", pynvml.c_nvmlGpmSample_t)
    support = pynvml.c_nvmlGpmSupport_t(isSupportedDevice=1)
    monkeypatch.setattr(pynvml, "nvmlGpmQueryDeviceSupport", lambda handle: support)
    clock = SimpleNamespace(monotonic=iter([0.0, 2.0, 2.1, 4.0]).__next__)
    monkeypatch.setattr("worker.telemetry.gpm.time", clock)
    gpm = Gpm(1.8)
    assert [gpm.sm_active("GPU-0", None) for _ in range(4)] == [None, 0.25, 0.25, 0.25]
    assert len(sampled) == 3, "one that was asked for in between shortens no period"


def test_samples_keep_coming(fake_nvml, telemetry):
    fake_nvml(gpus=[{}])
    telemetry.wait_for_first(60)
    first = telemetry.gpus

    def another():
        telemetry.read(time.monotonic())
        return telemetry.gpus is not first

    eventually(another, "a second sample comes")


def test_a_sample_is_made_when_one_is_asked_for(fake_nvml):
    fake_nvml(gpus=[{}])
    with closing(GpuTelemetry(period_seconds=600.0)) as telemetry:
        telemetry.wait_for_first(60)
        first = telemetry.gpus
        telemetry.ask()

        def another():
            telemetry.read(time.monotonic())
            return telemetry.gpus is not first

        eventually(another, "a second sample comes")


def test_no_driver_is_absence_and_is_not_asked_again(fake_nvml, telemetry):
    fake_nvml(error="Driver Not Loaded")
    telemetry.wait_for_first(60)
    assert telemetry.gpus is None
    assert telemetry.why_absent == "Driver Not Loaded"
    telemetry.tick(time.monotonic() + 10_000)
    assert telemetry.fileno() is None


def test_a_probe_that_hangs_is_killed_and_tried_again_later(fake_nvml, telemetry):
    fake_nvml(hang=True)
    telemetry.wait_for_first(0.2)
    (hung,) = telemetry.pids()
    now = time.monotonic() + SILENCE_SECONDS + 1
    telemetry.tick(now)
    assert telemetry.gpus is None
    assert "silent" in telemetry.why_absent
    eventually(lambda: telemetry.tick(now) or hung not in telemetry.pids(), "it is reaped")
    telemetry.tick(now + 3600)
    assert telemetry.pids()


def test_other_peoples_work_is_named(fake_nvml, telemetry, on_the_host):
    fake_nvml(gpus=[{"pids": [os.getpid()]}])
    telemetry.wait_for_first(60)
    sentence = foreign_work(telemetry.gpus[0]) or "none"
    assert f"pid {os.getpid()}" in sentence
    assert "3.0 GiB" in sentence
    assert "waits" in sentence


@pytest.fixture
def in_a_container(monkeypatch):
    monkeypatch.setattr("worker.telemetry.gpus.HOST_PID_NAMESPACE", 1)


@pytest.fixture
def on_the_host(monkeypatch):
    here = Path("/proc/self/ns/pid").stat().st_ino
    monkeypatch.setattr("worker.telemetry.gpus.HOST_PID_NAMESPACE", here)


def test_in_a_container_the_number_of_another_process_names_nobody(
    fake_nvml, telemetry, in_a_container
):
    fake_nvml(gpus=[{"pids": [os.getpid()]}, {"pids": [os.getpid()], "held": 30 * GIB}])
    telemetry.wait_for_first(60)
    unknown, large = (foreign_work(gpu) for gpu in telemetry.gpus)
    assert unknown is None, "by its memory it disturbs nobody"
    assert "30.0 GiB" in (large or "none")
    assert "cannot be seen" in (large or "none")


def test_in_a_container_a_process_with_a_gpu_open_is_named(
    fake_nvml, telemetry, in_a_container, tmp_path, monkeypatch
):
    opened = (tmp_path / "nvidia0").open("w")
    monkeypatch.setattr("worker.telemetry.gpus.DEVICE_FILES", str(tmp_path / "nvidia"))
    fake_nvml(gpus=[{"pids": [os.getpid()]}])
    with opened:
        telemetry.wait_for_first(60)
        assert f"pid {os.getpid()}" in (foreign_work(telemetry.gpus[0]) or "none")


def test_memory_of_processes_that_cannot_be_seen_is_waited_for(fake_nvml, telemetry):
    fake_nvml(gpus=[{"used": 40 * GIB}])
    telemetry.wait_for_first(60)
    assert "40.0 GiB" in (foreign_work(telemetry.gpus[0]) or "none")


def test_a_free_gpu_and_a_process_that_has_ended_are_no_reason_to_wait(fake_nvml, telemetry):
    fake_nvml(gpus=[{}, {"pids": [2**22 + 1]}])
    telemetry.wait_for_first(60)
    assert [foreign_work(gpu) for gpu in telemetry.gpus] == [None, None]


NOBODY = 2**22 + 1  # above the highest pid of Linux


def test_a_desktop_is_no_reason_to_wait(fake_nvml, telemetry):
    """Some drivers list a browser as both; its memory may be unknown, and more than a tenth."""
    fake_nvml(gpus=[{"graphics": [os.getpid()], "pids": [os.getpid()], "used": 40 * GIB}])
    telemetry.wait_for_first(60)
    assert foreign_work(telemetry.gpus[0]) is None


def test_what_a_desktop_does_not_hold_is_still_waited_for(fake_nvml, telemetry):
    fake_nvml(gpus=[{"graphics": [os.getpid()], "used": 40 * GIB}], drawn=2 * GIB)
    telemetry.wait_for_first(60)
    assert "38.0 GiB" in (foreign_work(telemetry.gpus[0]) or "none")


def test_the_server_of_mps_is_nobodys_work_and_its_programs_are(fake_nvml, telemetry, on_the_host):
    """NVML may list a program of MPS in either list, or in both."""
    server, program = os.getpid(), os.getppid()
    fake_nvml(
        gpus=[
            {"pids": [server]},
            {"pids": [server, program], "mps": [program]},
            {"mps": [program]},
        ],
        programs={str(server): "/usr/bin/nvidia-cuda-mps-server -f", str(program): "python"},
    )
    telemetry.wait_for_first(60)
    alone, *served = telemetry.gpus
    assert alone.processes == ()
    assert foreign_work(alone) is None
    for gpu in served:
        assert [pid for pid, _ in gpu.processes] == [program]
        assert f"pid {program}" in (foreign_work(gpu) or "none")


def test_a_gpu_tells_whether_mig_divides_it(fake_nvml, telemetry):
    fake_nvml(gpus=[{}, {"mig": 0}, {"mig": 1}])
    telemetry.wait_for_first(60)
    assert [gpu.is_divided for gpu in telemetry.gpus] == [False, False, True]
    named = ("nvmlDeviceGetMigMode", "nvmlDeviceGetMPSComputeRunningProcesses",
             "nvmlSystemGetProcessName", "NVML_DEVICE_MIG_ENABLE")  # fmt: skip
    assert all(hasattr(pynvml, name) for name in named), "the real binding has them too"


def test_a_host_process_listed_in_a_container_counts_by_its_memory(fake_nvml, telemetry):
    fake_nvml(gpus=[{"pids": [NOBODY], "held": 30 * GIB}])
    telemetry.wait_for_first(60)
    assert "30.0 GiB" in (foreign_work(telemetry.gpus[0]) or "none")
    assert foreign_work(telemetry.gpus[0], is_fresh=False) is None, "it may be the run just ended"


def test_a_driver_that_is_there_is_asked_again(fake_nvml, telemetry, monkeypatch, tmp_path):
    monkeypatch.setattr("worker.telemetry.gpus.DRIVER_SIGNS", (tmp_path,))
    fake_nvml(error="Driver/library version mismatch")
    telemetry.wait_for_first(60)
    assert telemetry.has_answered
    telemetry.tick(time.monotonic() + RETRY_SECONDS + 1)
    assert telemetry.fileno() is not None
