"""Which saves of a script are kept, and what it goes on from: never a torn one, never nothing."""

import os
import shutil
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from stoker.manifest import MANIFEST, parse_manifest
from tests.script.stage import Stage

LOOP = """
import json, os, pickle, sys, time, zipfile
start = 0
if "--resume" in sys.argv:
    with zipfile.ZipFile(sys.argv[sys.argv.index("--resume") + 1]) as archive:
        start = int(archive.read("step"))
print("start", start, flush=True)
os.makedirs("out", exist_ok=True)
for step in range(start + 1, 100_000):
    if step % 5 == 0:
        with zipfile.ZipFile({path}, "w") as archive:
            archive.writestr("step", str(step))
            archive.writestr("weights", os.urandom(200_000))
    print("step", step, flush=True)
    time.sleep(0.02)
"""
MANY = """
import os, time, zipfile
os.makedirs("out")
for step in range(1, 201):
    with zipfile.ZipFile("out/best.pt" if step == 151 else f"out/ckpt-{step}.pt", "w") as archive:
        archive.writestr("step", str(step))
    if step == 151:
        with open(os.environ["STOKER_RUN_DIR"] + "/metrics.jsonl", "w") as file:
            file.write('{"step": 151, "loss": 1.0}\\n')
print("all", flush=True)
time.sleep(60)
"""
SAVES_ONE = """
import os, sys, time
os.makedirs("out")
with open("out/ckpt.pt", "wb") as file:
    file.write(bytes.fromhex(sys.argv[1]))
print("saved", flush=True)
time.sleep(60)
"""
# Each moment of it can be waited for; a save takes two files, and a while.
MOMENTS = """
import json, os, sys, time
print("import", flush=True)
time.sleep(0.5)
start = 0
if "--resume" in sys.argv:
    folder = sys.argv[sys.argv.index("--resume") + 1]
    start = max(json.load(open(os.path.join(folder, name))) for name in ("a.json", "b.json"))
print("start", start, flush=True)
for step in range(start + 1, 100_000):
    print("step", step, flush=True)
    time.sleep(0.2)
    print("evaluation", step, flush=True)
    time.sleep(0.2)
    print("save", step, flush=True)
    os.makedirs(f"out/step_{step}")
    for name in ("a.json", "b.json"):
        time.sleep(0.2)
        with open(f"out/step_{step}/{name}", "w") as file:
            file.write(str(step))
    print("saved", step, flush=True)
"""
FRESH = 'f"out/ckpt-{step}.pt"'
IN_PLACE = '"out/ckpt.pt"'
NAMED: dict[str, Any] = {
    "resume": ["--resume", "{checkpoint}"],
    "checkpoints": ["out/*.pt"],
    "grace_seconds": 10.0,
}


def saved(stage: Stage, attempt: int = 1) -> list[Path]:
    """Kept checkpoints, the newest first."""
    found = (stage.attempt(attempt) / "checkpoints").glob("step-*")
    return sorted(found, key=lambda path: int(path.name[5:]), reverse=True)


def kept_files(stage: Stage, step: int) -> list[Path]:
    return list((stage.attempt() / "checkpoints" / f"step-{step}").glob("*.pt"))


def step_in(folder: Path) -> int:
    (file,) = folder.glob("*.pt")
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        return int(archive.read("step"))


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestOfARun:
    @pytest.mark.parametrize("path", [FRESH, IN_PLACE], ids=["fresh", "in place"])
    def test_it_goes_on_from_its_newest_save(self, stage: Stage, path: str):
        stage.write(LOOP.format(path=path))
        runner = stage.start(**NAMED)
        stage.until_log_has("step 300\n" if path is IN_PLACE else "step 30\n")
        stage.stop(runner)
        kept = saved(stage)
        last = step_in(kept[0])
        assert last >= 25
        stage.start(attempt=2, restore=tuple(kept), **NAMED)
        stage.until_log_has(f"start {last}\n", attempt=2)
        stage.until(lambda: stage.events("restored", 2), "it has gone on", 2)
        (restored,) = stage.events("restored", 2)
        assert Path(restored["path"]).parent == kept[0]
        assert {event["seen"] for event in stage.events("checkpoint")} == {path is IN_PLACE}
        overwritten = [w["code"] for w in stage.events("warning")] == ["checkpoint_overwritten"]
        assert overwritten == (path is IN_PLACE)

    def test_of_many_saves_at_once_the_newest_is_kept_under_its_own_step(self, stage: Stage):
        stage.write(MANY)
        runner = stage.start(**NAMED | {"checkpoints": ["out/ckpt-*.pt", "out/best.pt"]})
        stage.until_log_has("all\n")
        stage.stop(runner)
        assert [(folder.name, step_in(folder)) for folder in saved(stage)] == [
            ("step-200", 200),
            ("step-151", 151),  # best.pt: each pattern has its newest
        ]

    @pytest.mark.parametrize(
        ("like", "told"), [(None, ["none/*.pt"]), ("accelerate", [])], ids=["each", "any"]
    )
    def test_a_pattern_that_matches_nothing_is_told_at_the_end(
        self, stage: Stage, like: str | None, told: list[str]
    ):
        """Of those that --like knows one is enough."""
        stage.write("import os; os.mkdir('step_1'); open('step_1/model.bin', 'w').write('1')")
        (stage.cwd / "none").mkdir()
        old = stage.cwd / "none" / "of_an_earlier_run.pt"
        old.write_text("1")
        os.utime(old, (1e9, 1e9))
        stage.run(checkpoints=["step_*", "none/*.pt", "step_1"], like=like)
        warned = [one for one in stage.events("warning") if one["code"] == "no_checkpoints_found"]
        assert [pattern for one in warned for pattern in told if pattern in one["message"]] == told
        assert len(warned) == len(told)
        assert all(str(stage.cwd) in one["message"] for one in warned)

    def test_one_that_is_not_told_how_to_resume_is_not_said_to_be_restored(self, stage: Stage):
        stage.write(MANY.replace("sleep(60)", "sleep(0)"))
        patterns = {"checkpoints": ["out/ckpt-*.pt"]}
        stage.run(**patterns)
        (kept,) = saved(stage)
        shutil.rmtree(stage.cwd / "out")
        end = stage.run(attempt=2, restore=(kept,), **patterns)
        assert end["reason"] == "completed"
        assert stage.events("restored", 2) == []
        assert stage.events("warning", 2) == [], "its plan has told it"
        assert stage.events("applied", 2)[0]["applied"]["resume_from"] == str(kept / "ckpt-200.pt")
        assert [event["step"] for event in stage.events("checkpoint", 2)] == [200]

    @pytest.mark.parametrize("moment", ["import", "step 1", "step 4", "evaluation 4", "save 4"])
    def test_a_stop_at_any_moment_goes_on_at_the_last_whole_save(self, stage: Stage, moment: str):
        stage.write(MOMENTS)
        named = NAMED | {"checkpoints": ["out/step_*"]}
        runner = stage.start(**named)
        stage.until_log_has(f"{moment}\n")
        if moment.startswith("save"):
            stage.until(lambda: (stage.cwd / "out" / "step_4" / "a.json").exists(), "half is saved")
        stage.stop(runner)
        assert stage.end()["reason"] == "interrupted"
        stage.start(attempt=2, restore=tuple(saved(stage)), **named)
        stage.until_log_has("start ", attempt=2)
        assert f"start {3 if moment.endswith('4') else 0}\n" in stage.log(2)

    def test_a_damaged_checkpoint_is_passed_over_and_told(self, stage: Stage):
        stage.write(LOOP.format(path=FRESH))
        runner = stage.start(**NAMED)
        stage.until(lambda: saved(stage), "a first save is kept")
        time.sleep(0.3)
        stage.stop(runner)
        newest, second = saved(stage)[:2]
        (file,) = newest.glob("*.pt")
        data = bytearray(file.read_bytes())
        data[1000] ^= 1
        file.unlink()  # which is linked, maybe
        file.write_bytes(data)
        stage.start(attempt=2, restore=(newest, second), **NAMED)
        stage.until_log_has(f"start {step_in(second)}\n", attempt=2)
        (told,) = [e for e in stage.events("checkpoint", 2) if e["action"] == "quarantined"]
        assert "is not as it was written" in told["message"]

    def test_where_all_are_damaged_nothing_begins_anew(self, stage: Stage):
        stage.write("print('began')")
        empty = stage.run_folder / "attempt-0" / "checkpoints" / "step-3"
        empty.mkdir(parents=True)
        end = stage.run(restore=(empty,), **NAMED)
        assert end["reason"] == "checkpoint_unusable"
        assert "--from scratch" in end["message"]
        assert "began" not in stage.log()

    def test_a_first_save_that_was_cut_off_is_no_reason_to_begin_anew(self, stage: Stage):
        stage.write(SAVES_ONE)
        runner = stage.start(sys.executable, "train.py", b"PK\x03\x04 cut".hex(), **NAMED)
        stage.until_log_has("saved\n")
        runner.kill()
        runner.wait()
        stage.end_all()
        stage.write("print('began')")
        end = stage.run(attempt=2, **NAMED)
        assert end["reason"] == "checkpoint_error"
        assert "began" not in stage.log(2)

    def test_a_save_that_nobody_kept_is_kept_by_the_next_attempt(self, stage: Stage):
        stage.write(LOOP.format(path=FRESH).replace("range(start + 1, 100_000)", "range(1, 7)"))
        stage.run(**NAMED)
        (folder,) = saved(stage)
        shutil.rmtree(folder)
        events = stage.attempt() / "events.jsonl"
        *told, _ = events.read_text().splitlines()  # as if it had been killed before all that
        events.write_text("\n".join(line for line in told if '"saved"' not in line) + "\n")
        stage.run(attempt=2, **NAMED)
        assert "start 5\n" in stage.log(2)
        assert [event["action"] for event in stage.events("checkpoint", 2)] == ["saved", "saved"]

    @pytest.mark.parametrize("code", [0, 1], ids=["well", "cut"])
    def test_a_folder_that_lacks_files_of_the_one_before_is_not_kept(self, stage: Stage, code: int):
        stage.write(
            "import os, sys, time\n"
            "os.makedirs('out/step_1')\n"
            "for name in ('weights', 'a'):\n"
            "    open(f'out/step_1/{name}', 'w').close()\n"
            "kept = os.environ['STOKER_CHECKPOINT_DIR']\n"
            "os.makedirs('out/step_2')\n"
            "while not any(name.startswith('step') for name in os.listdir(kept)):\n"
            "    time.sleep(0.1)\n"
            "open('out/step_2/weights', 'w').close()\n"
            f"sys.exit({code})\n"
        )
        stage.run(**NAMED | {"checkpoints": ["out/step_*"]})
        (folder,) = saved(stage)
        assert (folder / "a").exists()
        (warning,) = stage.events("warning")
        assert warning["code"] == "checkpoint_not_whole"
        assert "it lacks a, which the save before it has" in warning["message"]

    def test_the_library_saves_whole_ones_or_none(self, stage: Stage):
        stage.write(
            "import stoker\n"
            "run = stoker.init()\n"
            "with run.checkpoint(5, {'loss': 0.5, 'bad': float('nan')}) as folder:\n"
            "    (folder / 'a').write_text('x'); (folder / 'b').mkdir()\n"
            "    (folder / 'b' / 'c').write_text('y')\n"
            "try:\n"
            "    with run.checkpoint(6) as folder:\n"
            "        (folder / 'a').write_text('x')\n"
            "        raise ValueError\n"
            "except ValueError:\n"
            "    pass\n"
        )
        stage.run()
        (told,) = stage.events("checkpoint")
        assert (told["step"], told["metrics"]) == (5, {"train_loss": 0.5})
        (folder,) = saved(stage)
        manifest = parse_manifest((folder / MANIFEST).read_bytes())
        assert set(manifest["files"]) == {"a", "b/c"}
        assert not list((stage.attempt() / "checkpoints").glob(".step*"))

    def test_folders_as_hugging_face_writes_them(self, stage: Stage):
        stage.write(
            "import json, os, struct\n"
            "def tensors(path):\n"
            "    header = json.dumps({'w': {'dtype': 'F32', 'shape': [1],"
            " 'data_offsets': [0, 4]}}).encode()\n"
            "    open(path, 'wb').write(struct.pack('<Q', len(header)) + header + bytes(4))\n"
            "for step in (5, 10):\n"
            "    os.makedirs(f'out/checkpoint-{step}')\n"
            "    tensors(f'out/checkpoint-{step}/model.safetensors')\n"
            "    state = {'log_history': [{'loss': 0.5}, {'eval_loss': 0.25}]}\n"
            "    json.dump(state, open(f'out/checkpoint-{step}/trainer_state.json', 'w'))\n"
            "open('out/checkpoint-10/checkpoint-is-incomplete.txt', 'w').close()\n"
        )
        stage.run(**{**NAMED, "checkpoints": ["out/checkpoint-*"]})
        (told,) = stage.events("checkpoint")
        assert (told["step"], told["metrics"]) == (5, {"val_loss": 0.25, "train_loss": 0.5})
        assert [w["code"] for w in stage.events("warning")] == ["checkpoint_not_whole"]

    @pytest.mark.parametrize("second", [3, 5], ids=["its own", "an earlier run's"])
    def test_a_cut_save_over_an_older_one_is_not_kept(self, stage: Stage, second: int):
        """Its model is new; the rest is of the save that it writes over."""
        old = stage.cwd / "out" / "checkpoint-5"
        old.mkdir(parents=True)
        for name in ("model", "optimizer", "trainer_state.json"):
            (old / name).write_text("{}")
            os.utime(old / name, (1_000, 1_000))
        stage.write(
            "import os, time\n"
            "os.makedirs('out/checkpoint-3')\n"
            "for name in ('model', 'optimizer', 'trainer_state.json'):\n"
            "    open(f'out/checkpoint-3/{name}', 'w').write('{}')\n"
            "kept = os.environ['STOKER_CHECKPOINT_DIR']\n"
            "while not any(name.startswith('step') for name in os.listdir(kept)):\n"
            "    time.sleep(0.1)\n"
            f"open('out/checkpoint-{second}/model', 'w').write('new')\n"
            "os._exit(1)\n"
        )
        stage.run(**NAMED | {"checkpoints": ["out/checkpoint-*"]})
        assert [folder.name for folder in saved(stage)] == ["step-3"]
        assert "checkpoint_not_whole" in [w["code"] for w in stage.events("warning")]

    def test_a_loss_that_is_not_finite_ends_neither_the_keeping_nor_the_run(self, stage: Stage):
        stage.write(
            "import json, os\n"
            "for step in (5, 10):\n"
            "    os.makedirs(f'out/checkpoint-{step}')\n"
            "    state = {'log_history': [{'loss': float('nan'), 'eval_loss': 0.5}]}\n"
            "    json.dump(state, open(f'out/checkpoint-{step}/trainer_state.json', 'w'))\n"
        )
        end = stage.run(**{**NAMED, "checkpoints": ["out/checkpoint-*"]})
        (told,) = stage.events("checkpoint")
        assert (told["step"], told["metrics"]) == (10, {"val_loss": 0.5})
        assert end["reason"] == "completed"

    def test_what_the_script_does_to_its_file_later_changes_nothing_kept(self, stage: Stage):
        stage.write(
            "import os, zipfile\n"
            "os.makedirs('out/checkpoint-5')\n"
            "open('out/checkpoint-5/weights', 'w').write('one')\n"
        )
        stage.run(**{**NAMED, "checkpoints": ["out/checkpoint-*"]})
        (stage.cwd / "out" / "checkpoint-5" / "weights").write_text("two")
        (folder,) = saved(stage)
        assert (folder / "weights").read_text() == "one"

    def test_later_saves_have_later_steps_whatever_their_names(self, stage: Stage):
        stage.write(
            "import os, time, zipfile\n"
            "os.makedirs('out')\n"
            "for name in ('resnet50', 'best_0.93', 'step-7', 'epoch3'):\n"
            "    with zipfile.ZipFile(f'out/{name}.pt', 'w') as archive:\n"
            "        archive.writestr('step', '1')\n"
            "    time.sleep(0.05)\n"
        )
        names = ["resnet50", "best_0.93", "step-7", "epoch3"]
        stage.run(**{**NAMED, "checkpoints": [f"out/{name}.pt" for name in names]})
        told = stage.events("checkpoint")
        steps = [event["step"] for event in told]
        assert steps == sorted(set(steps))
        assert [one.name for step in steps for one in kept_files(stage, step)] == [
            f"{name}.pt" for name in names
        ]

    def test_a_file_with_the_name_of_the_manifest_is_refused_and_not_written_over(
        self, stage: Stage
    ):
        stage.write(
            "import os, stoker\n"
            "os.makedirs('out/checkpoint-5')\n"
            "open('out/checkpoint-5/manifest.json', 'w').write('mine')\n"
            "with stoker.init().checkpoint(3) as folder:\n"
            "    (folder / 'manifest.json').write_text('mine')\n"
        )
        end = stage.run(**{**NAMED, "checkpoints": ["out/checkpoint-*"]})
        assert (stage.cwd / "out" / "checkpoint-5" / "manifest.json").read_text() == "mine"
        assert end["reason"] == "crashed"
        assert "ValueError: manifest.json is a name of Stoker's own" in end["message"]
        assert saved(stage) == []

    def test_a_folder_of_its_own_among_ours_is_told_and_stops_nothing(self, stage: Stage):
        stage.write(
            "import os, stoker\n"
            "os.makedirs(os.environ['STOKER_CHECKPOINT_DIR'] + '/step-1')\n"
            "with stoker.init().checkpoint(3) as folder:\n"
            "    (folder / 'a').write_text('x')\n"
        )
        stage.run()
        assert [event["step"] for event in stage.events("checkpoint")] == [3]
        assert [one["code"] for one in stage.events("warning")] == ["checkpoint_not_kept"]

    def test_a_step_that_is_saved_again_replaces_the_one_before(self, stage: Stage):
        stage.write(
            "import stoker\n"
            "run = stoker.init()\n"
            "for word in ('one', 'two'):\n"
            "    with run.checkpoint(3) as folder:\n"
            "        (folder / 'a').write_text(word)\n"
        )
        stage.run()
        (folder,) = saved(stage)
        assert (folder / "a").read_text() == "two"
        assert [path.name for path in folder.parent.iterdir()] == ["step-3"]
