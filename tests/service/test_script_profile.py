"""What runs of a command took of memory, and what the next one of it needs."""

from typing import Any

import pytest

from app.errors import NotFound
from app.lifecycle import Reason
from app.planning.profile import KEPT_POINTS
from app.service.script_profile import (
    asks_for_less,
    measured_script,
    needs_of,
    took_before,
    what_runs,
)
from app.spec.script import ScriptSpec
from app.store.telemetry.memory_profiles import add_measured
from tests.store.conftest import World

GIB = 2**30
CODE = {"repository": "/home/me/project/.git", "folder": "train/"}
PEAK: dict[str, int | None] = {"device_bytes": 21 * GIB, "host_bytes": 6 * GIB}


def spec(*argv: str, runtime: dict[str, Any] | None = None, **recipe: Any) -> ScriptSpec:
    given = {"argv": argv or ("/opt/a/bin/python", "train.py"), "cwd": "/home/me", **recipe}
    return ScriptSpec.model_validate(
        {"recipe": {"kind": "script", **given}, "runtime": runtime or {}}, strict=False
    )


def keep(
    world: World,
    of: ScriptSpec,
    peak: dict[str, int | None] = PEAK,
    *,
    reason: Reason = Reason.completed,
    seconds: float = 5.0,
    on_gpu: bool = True,
    code: dict[str, Any] | None = CODE,
    run_id: int = 1,
) -> bool:
    measured = measured_script(of, code, peak, reason, seconds, on_gpu=on_gpu)
    if measured is not None:
        with world.database.write() as connection:
            add_measured(connection, measured, run_id, "agent", world.clock())
    return measured is not None


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (("/a/python", "train.py", "--lr", "3"), ["python", "train.py"]),
        (("/b/python", "-u", "train.py", "x.py"), ["python", "-u", "train.py", "x.py"]),
        (("/a/python", "main.py", "train", "--lr", "3"), ["python", "main.py", "train"]),
        (("/a/python", "-m", "mine.train", "--lr", "3"), ["python", "-m", "mine.train"]),
        (("/a/torchrun", "--nproc-per-node", "2", "train.py", "1"),
         ["torchrun", "--nproc-per-node", "2", "train.py", "1"]),
        (("/a/python", "-m", "torch.distributed.run", "train.py"),
         ["python", "-m", "torch.distributed.run", "train.py"]),
        (("/a/yolo", "detect", "train", "data=x.yaml"), ["yolo", "detect", "train"]),
        (("/a/train", "--lr", "3"), ["train"]),
        (("/a/train",), ["train"]),
        (("/bin/bash", "-c", "python train", "x"), ["bash", "-c", "python train", "x"]),
    ],
)  # fmt: skip
def test_what_a_command_runs_is_told_apart_from_its_options(argv, found):
    assert what_runs(argv) == found


def test_a_like_run_needs_what_was_measured(world: World):
    keep(world, spec(), run_id=7)
    again = spec("/opt/b/bin/python", "train.py", "--lr", "1e-4")
    took = took_before(world.store.profiles, again, {**CODE, "git_sha": "another"})
    assert took is not None
    assert took.as_json()["message"] == (
        "Runs like this took 21.00 GiB of GPU memory and 6.00 GiB of the host's (run 7)."
    )
    needs = needs_of(again, took)
    assert (needs.device_bytes, needs.host_bytes, needs.cpu_bytes) == (21 * GIB, 6 * GIB, None)


@pytest.mark.parametrize(
    ("other", "code"),
    [
        (spec("/opt/a/bin/python", "other.py"), CODE),
        (spec(), {**CODE, "folder": "other/"}),
        (spec(), {**CODE, "repository": "/home/you/project/.git"}),
        (spec(), None),
        (spec(runtime={"gpus": 0}), CODE),
        (spec(command="train"), None),
    ],
)
def test_another_command_is_unknown(world: World, other: ScriptSpec, code: dict[str, Any] | None):
    keep(world, spec())
    assert took_before(world.store.profiles, other, code) is None
    needs = needs_of(other, None)
    assert (needs.device_bytes, needs.host_bytes, needs.cpu_bytes) == (None, None, None)


def test_without_a_repository_the_folder_counts(world: World):
    keep(world, spec(), code=None)
    assert took_before(world.store.profiles, spec(), {"repository": None}) is not None
    assert took_before(world.store.profiles, spec(cwd="/home/you"), None) is None


def test_a_registered_command_is_the_same_whatever_its_parameters(world: World):
    keep(world, spec("/a/x", "1", command="tune", params={"lr": 1}), code=None)
    assert took_before(world.store.profiles, spec("/a/x", "2", command="tune"), None) is not None
    assert took_before(world.store.profiles, spec("/a/x", "2", command="tine"), None) is None


def test_the_most_of_the_newest_three_counts(world: World):
    for number, size in enumerate((40, 20, 22, 21), start=1):
        keep(world, spec(), {"device_bytes": size * GIB, "host_bytes": GIB}, run_id=number)
    took = took_before(world.store.profiles, spec(), CODE)
    assert took is not None
    assert (took.device_bytes, took.runs) == (22 * GIB, (4, 3, 2))
    for number in range(KEPT_POINTS + 5):
        keep(world, spec(), {"device_bytes": GIB, "host_bytes": GIB}, run_id=number)
    took = took_before(world.store.profiles, spec(), CODE)
    assert took is not None
    assert took.device_bytes == GIB


def test_a_run_is_not_like_itself(world: World):
    keep(world, spec(), {"device_bytes": 9 * GIB, "host_bytes": GIB // 2}, run_id=3)
    assert took_before(world.store.profiles, spec(), CODE, 3) is None
    keep(world, spec(), run_id=4)
    took = took_before(world.store.profiles, spec(), CODE, 4)
    assert took is not None
    assert took.as_json()["message"] == (
        "Runs like this took 9.00 GiB of GPU memory and 0.50 GiB of the host's (run 3)."
    )
    keep(world, spec(), {"device_bytes": 8 * GIB, "host_bytes": 4 * 2**20}, run_id=5)
    took = took_before(world.store.profiles, spec(), CODE)
    assert took is not None
    assert took.runs == (5, 4, 3)


def test_devices_are_told_apart(world: World):
    keep(world, spec(), {"device_bytes": None, "host_bytes": 3 * GIB}, on_gpu=False)
    took = took_before(world.store.profiles, spec(), CODE)
    assert took is not None
    assert took.as_json()["message"].startswith("Runs like this took 3.00 GiB of the host's memory")
    assert (took.device_bytes, took.host_bytes, took.cpu_bytes) == (None, None, 3 * GIB)
    assert took_before(world.store.profiles, spec(runtime={"gpus": 1}), CODE) is None


@pytest.mark.parametrize(
    ("reason", "seconds", "tells"),
    [
        (Reason.completed, 1.0, True),
        (Reason.crashed, 1.0, False),
        (Reason.crashed, 100.0, True),
        (Reason.interrupted, 100.0, True),
        (Reason.interrupted, 10.0, False),
        (Reason.device_oom, 1.0, True),
    ],
)
def test_what_ended_early_tells_nothing(
    world: World, reason: Reason, seconds: float, *, tells: bool
):
    assert keep(world, spec(), reason=reason, seconds=seconds) is tells


def test_where_memory_ran_out_so_much_is_needed_at_least(world: World):
    keep(world, spec(), {"device_bytes": 39 * GIB, "host_bytes": GIB}, reason=Reason.device_oom)
    took = took_before(world.store.profiles, spec(), CODE)
    assert took is not None
    assert took.device_bytes == 39 * GIB


def test_what_was_not_measured_stays_unknown(world: World):
    assert not keep(world, spec(), {"device_bytes": None, "host_bytes": None})
    assert not keep(world, spec(), {"device_bytes": GIB, "host_bytes": None}), "it was too short"
    keep(world, spec(), {"device_bytes": None, "host_bytes": GIB})
    took = took_before(world.store.profiles, spec(), CODE)
    assert took is not None
    assert took.as_json()["message"].startswith("Runs like this took 1.00 GiB of the host's memory")
    assert needs_of(spec(), took).device_bytes is None


def test_the_code_is_read_in_short(world: World):
    diff = "+1\n" * 30_000
    code = {**CODE, "git_sha": "abc", "dirty": True, "diff": diff, "diff_bytes": len(diff),
            "argv": ["python", "train.py"],
            "untracked": ["a", "b"]}  # fmt: skip
    short = {**code, "untracked": 2, "diff": diff[:65_536]}
    given = {"recipe": "script", "dataset": None, "spec": spec().model_dump(mode="json")}
    assert world.store.runs.script(world.submit(**given, code=code).id)[1] == short
    assert world.store.runs.script(world.submit(**given, code=None).id)[1] is None
    sparse = world.store.runs.script(world.submit(**given, code={"git_sha": None}).id)[1]
    assert sparse == {**dict.fromkeys(short), "untracked": 0}
    with pytest.raises(NotFound):
        world.store.runs.script(999)


def test_the_users_figure_wins_and_is_warned_of_where_it_is_less(world: World):
    keep(world, spec())
    asked = spec(runtime={"gpu_memory": "4GiB", "host_memory": "8GiB"})
    took = took_before(world.store.profiles, asked, CODE)
    needs = needs_of(asked, took)
    assert (needs.device_bytes, needs.host_bytes) == (4 * GIB, 8 * GIB)
    (issue,) = asks_for_less(asked, took)
    assert (issue.severity, issue.loc) == ("warning", ["runtime", "gpu_memory"])
    assert "is 4GiB, and runs like this took 21.00 GiB" in issue.message
    (operation,) = issue.fix
    mended = spec(runtime={"gpu_memory": operation.value})
    assert asks_for_less(mended, took) == []
