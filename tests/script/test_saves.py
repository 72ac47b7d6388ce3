"""Saves as people's scripts make them: slowly, in several files, in place, beside older ones."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.manifest import MANIFEST, parse_manifest
from tests.script.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

# Waits inside a script, so that no test waits for time.
TOOLS = """
import json, os, pickle, struct, sys, time, zipfile
KEPT, RUN = os.environ["STOKER_CHECKPOINT_DIR"], os.environ["STOKER_RUN_DIR"]
def until(happened):
    while not happened():
        time.sleep(0.05)
def kept():
    return sorted(name for name in os.listdir(KEPT) if name.startswith("step-"))
def step(number):
    with open(os.environ["STOKER_SHIM_FILE"], "r+b") as file:
        file.write(struct.pack("<QdQQQ", number, 0.0, 1, 0, 0))
    with open(RUN + "/metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": number, "loss": 1.0}) + "\\n")
def archive(path):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", path)
"""


def kept_of(stage: Stage, attempt: int = 1) -> dict[str, set[str]]:
    """The files of each kept checkpoint."""
    folders = (stage.attempt(attempt) / "checkpoints").glob("step-*")
    return {folder.name: set(manifest_of(folder)["files"]) for folder in folders}


def manifest_of(folder: Path) -> dict[str, Any]:
    return parse_manifest((folder / MANIFEST).read_bytes())


def warnings_of(stage: Stage, attempt: int = 1) -> dict[str, str]:
    return {one["code"]: one["message"] for one in stage.events("warning", attempt)}


def test_a_first_save_is_provisional_until_the_training_goes_on(stage: Stage):
    """30 s or a minute between two files prove nothing."""
    stage.write(
        TOOLS + "step(1)\n"
        "archive('out/step_1/model.pt')\n"
        "until(kept)\n"
        "print('half', flush=True)\n"
        "until(lambda: os.path.exists('go'))\n"
        "archive('out/step_1/optimizer.pt')\n"
        "print('all', flush=True)\n"
        "until(lambda: os.path.exists('on'))\n"
        "step(2)\n"
        "time.sleep(60)\n"
    )
    runner = stage.start(checkpoints=["out/step_*"], grace_seconds=5.0)
    stage.until_log_has("half\n")
    folder = stage.attempt() / "checkpoints" / "step-1"
    stage.until((folder / MANIFEST).exists, "it is kept")
    assert manifest_of(folder)["provisional"]
    assert stage.events("checkpoint")[0]["provisional"]
    (stage.cwd / "go").touch()
    stage.until((folder / "optimizer.pt").exists, "it is kept with both files")
    assert manifest_of(folder)["provisional"]
    (stage.cwd / "on").touch()
    stage.until(lambda: "provisional" not in manifest_of(folder), "it is known to be whole")
    stage.stop(runner)
    assert kept_of(stage) == {"step-1": {"model.pt", "optimizer.pt"}}
    assert warnings_of(stage) == {}


def test_a_provisional_save_is_not_kept_beside_another(stage: Stage):
    stage.write(TOOLS + "archive('out/step_1/model.pt')\narchive('out/step_1/optimizer.pt')\n")
    stage.run(checkpoints=["out/step_*"])
    stage.write(TOOLS + "archive('out/step_2/model.pt')\nos._exit(1)\n")
    before = stage.attempt() / "checkpoints" / "step-1"
    stage.run(attempt=2, restore=(before,), checkpoints=["out/step_*"])
    assert kept_of(stage, 2) == {}
    assert "The checkpoint before it counts." in warnings_of(stage, 2)["checkpoint_not_whole"]


def test_shards_that_are_not_all_there_displace_nothing(stage: Stage):
    stage.write(
        TOOLS + "def save(number, shards):\n"
        "    folder = f'out/checkpoint-{number}'\n"
        "    for shard in range(1, shards + 1):\n"
        "        archive(f'{folder}/model-{shard:05}-of-00003.bin')\n"
        "    if shards == 3:\n"
        "        open(folder + '/model.bin.index.json', 'w').write('{\"weight_map\": {}}')\n"
        "step(100)\n"
        "save(100, 3)\n"
        "step(101)\n"
        "until(kept)\n"
        "step(200)\n"
        "save(200, 2)\n"
        "os._exit(9)\n"
    )
    stage.run(checkpoints=["out/checkpoint-*"])
    assert list(kept_of(stage)) == ["step-100"]
    assert "checkpoint-200 is not kept" in warnings_of(stage)["checkpoint_not_whole"]


def test_files_of_one_step_are_one_checkpoint(stage: Stage):
    stage.write(
        TOOLS + "if '--step' in sys.argv:\n"
        "    print('given', sys.argv[-1], flush=True)\n"
        "    sys.exit()\n"
        "for number in (100, 200):\n"
        "    step(number)\n"
        "    archive(f'd/model_{number:06}.pt')\n"
        "    archive(f'd/optim_{number:06}.pt')\n"
        "    json.dump({}, open(f'd/meta_{number:06}.json', 'w'))\n"
        "    step(number + 1)\n"
        "    until(lambda: f'step-{number}' in kept())\n"
    )
    spec = {
        "checkpoints": ["d/model_*.pt", "d/optim_*.pt", "d/meta_*.json"],
        "resume": ["--step", "{step}"],
    }
    stage.run(**spec)
    three = {"model_000200.pt", "optim_000200.pt", "meta_000200.json"}
    assert kept_of(stage)["step-200"] == three
    assert len(kept_of(stage)) == 2
    stage.run(attempt=2, restore=(stage.attempt() / "checkpoints" / "step-200",), **spec)
    assert "given 200\n" in stage.log(2)


def test_a_file_of_several_that_never_came_is_not_waited_for_twice(stage: Stage):
    """`best` is saved now and then, `last` always."""
    stage.write(
        TOOLS + "for number in (10, 20, 30):\n"
        "    step(number)\n"
        "    archive(f'out/last_{number}.pt')\n"
        "    if number == 10:\n"
        "        archive(f'out/best_{number}.pt')\n"
        "    now = number\n"
        "    while number != 20 and f'step-{number}' not in kept():\n"
        "        now += 1\n"
        "        step(now)\n"
        "        time.sleep(0.6)\n"
    )
    stage.run(checkpoints=["out/last_*.pt", "out/best_*.pt"])
    assert kept_of(stage) == {
        "step-10": {"last_10.pt", "best_10.pt"},
        "step-30": {"last_30.pt"},
    }


def test_a_file_held_open_for_reading_is_kept_and_one_for_writing_is_not(stage: Stage):
    stage.write(
        TOOLS + "archive('out/ckpt-1.pt')\n"
        "read = open('out/ckpt-1.pt', 'rb')\n"
        "until(kept)\n"
        "archive('out/ckpt-2.pt')\n"
        "write = open('out/ckpt-2.pt', 'ab')\n"
        "archive('out/other-3.pt')\n"
        "until(lambda: len(kept()) == 2)\n"
        "print('two', kept(), flush=True)\n"
        "write.close()\n"
        "os.utime('out/ckpt-2.pt')\n"
        "until(lambda: len(kept()) == 3)\n"
    )
    stage.run(checkpoints=["out/ckpt-*.pt", "out/other-3.pt"])
    files = [names for _, names in sorted(kept_of(stage).items())]
    assert files[0] == {"ckpt-1.pt"}
    assert {"other-3.pt"} in files[1:]
    assert {"ckpt-2.pt"} in files[1:]


def test_older_saves_are_named_at_the_start_and_not_used(stage: Stage):
    for number in (500, 600, 700):
        folder = stage.cwd / "out" / f"checkpoint-{number}"
        folder.mkdir(parents=True)
        (folder / "model.bin").write_text(f"of an earlier run {number}")
        time.sleep(0.02)
    stage.write(
        TOOLS + "open('out/checkpoint-600/model.bin', 'w').write('of an earlier run 600')\n"
    )
    stage.run(checkpoints=["out/checkpoint-*"])
    older = warnings_of(stage)["older_saves"]
    assert "3 older saves match out/checkpoint-*" in older
    assert "checkpoint-700" in older
    assert list(kept_of(stage)) == ["step-600"], "written again, though with the same bytes"


def test_a_save_that_is_older_by_its_time_is_new_if_it_was_not_there(stage: Stage):
    """`cp -p`, `tar` and `rsync -t` keep times."""
    stage.write(TOOLS + "archive('out/ckpt-5.pt')\nos.utime('out/ckpt-5.pt', (1e9, 1e9))\n")
    stage.run(checkpoints=["out/ckpt-*.pt"])
    assert list(kept_of(stage)) == ["step-5"]


def test_the_script_gets_its_own_file_so_that_it_finds_what_lies_beside(stage: Stage):
    stage.write(
        TOOLS + "if '--resume' in sys.argv:\n"
        "    path = sys.argv[-1]\n"
        "    print('settings', open(os.path.dirname(path) + '/../settings').read(), flush=True)\n"
        "else:\n"
        "    archive('out/ckpt/step_5.pt')\n"
        "    open('out/settings', 'w').write('of the run')\n"
    )
    spec = {"checkpoints": ["out/ckpt/step_*.pt"], "resume": ["--resume", "{checkpoint}"]}
    stage.run(**spec)
    kept = stage.attempt() / "checkpoints" / "step-5"
    stage.run(attempt=2, restore=(kept,), **spec)
    assert "settings of the run\n" in stage.log(2)
    (restored,) = stage.events("restored", 2)
    assert restored["path"] == str(kept / "step_5.pt")
    assert restored["given"] == str(stage.cwd / "out" / "ckpt" / "step_5.pt")
    shutil.rmtree(stage.cwd / "out")
    stage.write("import sys\nprint(sys.argv[-1], flush=True)\n")
    stage.run(attempt=3, restore=(kept,), **spec)
    assert f"{kept}/step_5.pt\n" in stage.log(3)


def test_numbers_that_count_saves_are_no_steps(stage: Stage):
    stage.write(
        TOOLS + "for save in range(3):\n"
        "    step(100 * (save + 1))\n"
        "    until(lambda: os.path.exists(f'{save}'))\n"
        "    archive(f'proj/checkpoint_{save}/state.pt')\n"
        "    until(lambda: len(kept()) > save)\n"
    )
    runner = stage.start(checkpoints=["proj/checkpoint_*"])
    for save in range(3):
        points = save + 1
        stage.until(lambda: len(stage.curve("train_loss")) == points, "the step is told")  # noqa: B023
        (stage.cwd / f"{save}").touch()
    runner.wait(60)
    assert sorted(kept_of(stage)) == ["step-100", "step-200", "step-300"]


def test_a_file_rewritten_faster_than_looks_come_is_kept_between_two_writes(stage: Stage):
    """Pickles have no mark of their end."""
    stage.write(
        TOOLS + "os.makedirs('out')\n"
        "count = 0\n"
        "while not kept():\n"
        "    count += 1\n"
        "    with open('out/last.pkl', 'wb') as file:\n"
        "        pickle.dump([count] * 100, file)\n"
        "    time.sleep(0.3)\n"
        "print('kept', flush=True)\n"
        "time.sleep(60)\n"
    )
    runner = stage.start(checkpoints=["out/*.pkl"], grace_seconds=5.0)
    stage.until_log_has("kept\n")
    (folder,) = (stage.attempt() / "checkpoints").glob("step-*")
    assert (folder / "last.pkl").read_bytes().endswith(b".")
    stage.stop(runner)


def test_files_that_match_and_cannot_be_kept_are_told(stage: Stage, monkeypatch):
    stage.write(
        TOOLS + "os.makedirs('out')\n"
        "file = open('out/ckpt-1.bin', 'wb')\n"
        "while True:\n"
        "    file.write(b'more')\n"
        "    file.flush()\n"
        "    time.sleep(0.2)\n"
    )
    runner = stage.start(checkpoints=["out/ckpt-*.bin"], grace_seconds=5.0)
    stage.until(lambda: "checkpoint_not_kept" in warnings_of(stage), "it is told")
    stage.stop(runner)
    assert "ckpt-1.bin was open for writing" in warnings_of(stage)["checkpoint_not_kept"]
    assert "No other is kept of this run" in warnings_of(stage)["checkpoint_not_kept"]


def test_pipes_and_holes_in_the_place_of_files_hold_nobody_up(stage: Stage):
    stage.write(
        TOOLS + "for path in (RUN + '/config.json', RUN + '/metrics.jsonl', 'out/step_1/pipe'):\n"
        "    os.makedirs(os.path.dirname(path), exist_ok=True)\n"
        "    os.mkfifo(path)\n"
        "os.symlink('/dev/zero', 'out/step_1/zeros')\n"
        "archive('out/step_1/model.pt')\n"
        "with open('out/step_2', 'wb') as file:\n"
        "    file.truncate(2 * __import__('shutil').disk_usage(RUN).total)\n"
    )
    end = stage.run(checkpoints=["out/step_1", "out/step_2"])
    assert end["reason"] == "completed"
    assert kept_of(stage) == {"step-1": {"model.pt"}}
    assert "bytes, and the run's disk" in warnings_of(stage)["checkpoint_not_kept"]


def test_a_manifest_that_became_a_pipe_is_passed_over(stage: Stage):
    stage.write(TOOLS + "archive('out/ckpt-5.pt')\n")
    spec = {"checkpoints": ["out/*.pt"], "resume": ["--resume", "{checkpoint}"]}
    stage.run(**spec)
    kept = stage.attempt() / "checkpoints" / "step-5"
    (kept / MANIFEST).unlink()
    os.mkfifo(kept / MANIFEST)
    end = stage.run(attempt=2, restore=(kept,), **spec)
    assert end["reason"] == "checkpoint_unusable"


def test_a_folder_that_is_written_in_place_is_proved_by_a_step_after_it(stage: Stage):
    """Its model is new and its optimizer old for a while, though all names are there."""
    stage.write(
        TOOLS + "step(1)\n"
        "archive('out/last/model.pt')\n"
        "archive('out/last/optimizer.pt')\n"
        "number = 1\n"
        "while not kept() or 'prov' in open(f'{KEPT}/{kept()[0]}/manifest.json').read():\n"
        "    number += 1\n"
        "    step(number)\n"
        "    time.sleep(0.2)\n"
        "archive('out/last/model.pt')\n"
        "print('half', flush=True)\n"
        "until(lambda: os.path.exists('go'))\n"
        "os._exit(9)\n"
    )
    runner = stage.start(checkpoints=["out/last"])
    stage.until_log_has("half\n")
    time.sleep(5)  # some looks see it so
    (stage.cwd / "go").touch()
    runner.wait(60)
    assert len(kept_of(stage)) == 1
    assert "optimizer.pt" in warnings_of(stage)["checkpoint_not_whole"]


def test_a_folder_with_fewer_shards_than_the_one_before_is_not_whole(stage: Stage):
    stage.write(
        TOOLS + "def save(number, shards):\n"
        "    for shard in range(shards):\n"
        "        archive(f'out/step_{number}/rank_{shard}.pt')\n"
        "step(100)\n"
        "save(100, 4)\n"
        "step(101)\n"
        "until(kept)\n"
        "step(200)\n"
        "save(200, 2)\n"
        "os._exit(9)\n"
    )
    stage.run(checkpoints=["out/step_*"])
    assert list(kept_of(stage)) == ["step-100"]


def test_files_of_one_number_in_one_folder_are_one_checkpoint(stage: Stage):
    stage.write(TOOLS + "archive('out/optim_5.pt')\narchive('out/model_5.pt')\n")
    stage.run(checkpoints=["out/*.pt"])
    assert kept_of(stage) == {"step-5": {"model_5.pt", "optim_5.pt"}}


def test_a_count_of_epochs_in_a_name_is_no_count_of_files(stage: Stage):
    stage.write(TOOLS + "archive('out/epoch_3_of_10.pt')\n")
    stage.run(checkpoints=["out/*.pt"])
    assert len(kept_of(stage)) == 1
