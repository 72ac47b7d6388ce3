"""At which step a save is listed; and one that refuses to be resumed is not tried for ever."""

from pathlib import Path
from typing import Any

import pytest

from tests.script.stage import Stage
from worker.script.ending import refuses

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SAVES = """
import argparse, os, sys, zipfile
parser = argparse.ArgumentParser()
parser.add_argument("--resume")
options = parser.parse_args()
os.makedirs("out", exist_ok=True)
with zipfile.ZipFile("out/ckpt-5.pt", "w") as archive:
    archive.writestr("step", "5")
print("resumed from", options.resume)
"""
TELLS_A_NUMBER = """
with open(os.environ["STOKER_RUN_DIR"] + "/metrics.jsonl", "w") as file:
    file.write('{"step": 6, "loss": 1.0}')
"""

NUMBERED = """
import json, os, time, zipfile
os.makedirs("out")
with open(os.environ["STOKER_RUN_DIR"] + "/metrics.jsonl", "w") as file:
    for step in range(1, 54):
        time.sleep(0 if step < 54 else 0.2)
        print(json.dumps({"step": step, "loss": 1.0}), file=file, flush=True)
        if step in (50, 53):
            name = "model_50" if step == 50 else "epoch_3"
            with zipfile.ZipFile(f"out/{name}.pt", "w") as archive:
                archive.writestr("step", str(step))
            while not os.path.exists(os.environ["STOKER_CHECKPOINT_DIR"] + "/step-50"):
                time.sleep(0.1)
time.sleep(60)
"""


def named(option: str) -> dict[str, Any]:
    return {"resume": [option, "{checkpoint}"], "checkpoints": ["out/*.pt"]}


@pytest.fixture
def kept(stage: Stage) -> tuple[Path, ...]:
    """What a first attempt has saved."""
    stage.write(SAVES)
    stage.run(**named("--resume"))
    (folder,) = (stage.attempt() / "checkpoints").glob("step-*")
    return (folder,)


def test_one_that_takes_it_is_told_as_restored(stage: Stage, kept: tuple[Path, ...]):
    end = stage.run(attempt=2, restore=kept, **named("--resume"))
    assert end["reason"] == "completed"
    (restored,) = stage.events("restored", 2)
    assert (restored["step"], Path(restored["path"]).parent) == (5, kept[0])


def test_a_path_with_a_space_fills_its_item(tmp_path: Path):
    (tmp_path / "my project").mkdir()
    stage = Stage(tmp_path / "my project")
    stage.write(SAVES)
    together = {"resume": ["--resume={checkpoint}"], "checkpoints": ["out/*.pt"]}
    stage.run(**together)
    (folder,) = (stage.attempt() / "checkpoints").glob("step-*")
    assert stage.run(attempt=2, restore=(folder,), **together)["reason"] == "completed"
    assert f"resumed from {stage.cwd}/out/ckpt-5.pt\n" in stage.log(2)
    apart = named("--resume")
    assert stage.run(attempt=3, restore=(folder,), **apart)["reason"] == "completed"
    (stage.cwd / "out" / "ckpt-5.pt").write_text("of somebody else")
    assert stage.run(attempt=4, restore=(folder,), **apart)["reason"] == "completed"
    assert f"resumed from {folder}/ckpt-5.pt\n" in stage.log(4), "the copy, if it is another file"


def test_one_that_refuses_it_is_tried_once_more_and_not_told_as_restored(
    stage: Stage, kept: tuple[Path, ...]
):
    wrong = named("--resume_from")
    first = stage.run(attempt=2, restore=kept, **wrong)
    assert (first["reason"], first["result"]["exit_code"]) == ("crashed", 2)
    assert (
        f"It had been given `--resume_from {stage.cwd}/out/ckpt-5.pt`, as --resume says"
        in (first["message"])
    )
    assert "unrecognized arguments: --resume_from" in first["message"]
    assert first["message"].endswith("its log says that it does not take these arguments.")
    again = stage.run(attempt=3, restore=kept, **wrong)
    assert again["reason"] == "spec_error"
    assert "as at the attempt before. It is not tried again." in again["message"]
    assert "`stoker restart 1 --from scratch`" in again["message"]
    stage.write("raise SystemExit(7)")
    other = stage.run(attempt=4, restore=kept, **wrong)
    assert other["reason"] == "crashed", "another code may be another reason"
    assert [stage.events("restored", number) for number in (2, 3, 4)] == [[], [], []]


@pytest.mark.parametrize(
    "fails",
    [
        'parser.error("/mnt/data is not there")',
        "raise OSError('cannot reach the host')",
        'parser.parse_args(["--data", "x"])',
    ],
    ids=["a mount", "a passing error", "another argument"],
)
def test_one_that_fails_early_otherwise_is_tried_again(
    stage: Stage, kept: tuple[Path, ...], fails: str
):
    stage.write(SAVES.replace("os.makedirs", f"{fails}\nos.makedirs"))
    for attempt in (2, 3):
        end = stage.run(attempt=attempt, restore=kept, **named("--resume"))
        assert end["reason"] == "crashed", "as often as its retries allow"
        assert end["message"].endswith("as --resume says, and ended before its first step.")


def test_a_save_on_which_two_attempts_fail_at_once_gives_way_to_the_one_before(stage: Stage):
    stage.write(
        "import os, sys, zipfile\n"
        "if '--resume' in sys.argv:\n"
        "    assert 'ckpt-5' in sys.argv[-1], 'its loader does not take the newest one'\n"
        "    sys.exit()\n"
        "os.makedirs('out')\n"
        "for step in (5, 9):\n"
        "    with zipfile.ZipFile(f'out/ckpt-{step}.pt', 'w') as archive:\n"
        "        archive.writestr('data', '1')\n"
        "    while not os.path.exists(os.environ['STOKER_CHECKPOINT_DIR'] + f'/step-{step}'):\n"
        "        pass\n"
    )
    spec = named("--resume")
    stage.run(**spec)
    folders = stage.attempt() / "checkpoints"
    kept = (folders / "step-9", folders / "step-5")
    assert [stage.run(attempt=n, restore=kept, **spec)["reason"] for n in (2, 3)] == ["crashed"] * 2
    assert stage.run(attempt=4, restore=kept, **spec)["reason"] == "completed"
    (warning,) = stage.events("warning", 4)
    assert warning["code"] == "checkpoint_passed_over"
    assert "step 9. This attempt goes on from step 5" in warning["message"]
    assert stage.events("restored", 4)[0]["step"] == 5


@pytest.mark.parametrize(
    ("said", "is_refused"),
    [
        ("usage: train.py [--lr LR]\ntrain.py: error: unrecognized arguments: --go /c/5.pt", True),
        ("train.py: error: argument --go: invalid int value: '/c/5.pt'", True),
        ("train.py: error: argument --go: invalid existing_dir value: '/c/5.pt'", False),
        ("Usage: train.py [OPTIONS]\nTry 'train.py --help'\n\nError: No such option: --go", True),
        ("Error: Got unexpected extra argument (/c/5.pt)", True),
        ("FATAL Flags parsing error: Unknown command line flag 'go'. Did you mean: to ?", True),
        ("ERROR: Could not consume arg: --go", True),
        ("Could not override 'go'.\nKey 'go' is not in struct", True),
        (
            "Some specified arguments are not used by the HfArgumentParser: ['--go']",
            True,
        ),
        ("getopt.GetoptError: option --go not recognized", True),
        ("train.py: error: unrecognized arguments: --gone", False),
        ("usage: train.py [--go GO]\ntrain.py: error: /mnt/data is not there", False),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/c/5.pt'", False),
        ("train.py: error: argument --go: can't open '/c/5.pt': [Errno 2] No such file", False),
        ("", False),
    ],
)
def test_a_usage_error_is_known_by_the_argument_that_it_names(tmp_path: Path, said, is_refused):
    log = tmp_path / "trainer.log"
    log.write_text(f"{said}\n")
    for arguments in (["--go", "/c/5.pt"], ["--go=/c/5.pt"]):
        assert refuses(log, arguments) is is_refused


def test_one_that_fails_past_its_start_has_gone_on(stage: Stage, kept: tuple[Path, ...]):
    stage.write(SAVES.replace("ckpt-5", "ckpt-6") + TELLS_A_NUMBER + "raise SystemExit(2)")
    for attempt in (2, 3):
        end = stage.run(attempt=attempt, restore=kept, **named("--resume"))
        assert (end["reason"], "--resume" in end["message"]) == ("crashed", False)
        assert len(stage.events("restored", attempt)) == 1


def test_one_that_fails_without_a_checkpoint_is_told_as_ever(stage: Stage):
    stage.write("raise SystemExit(2)")
    for attempt in (1, 2):
        end = stage.run(attempt=attempt, **named("--resume"))
        assert (end["reason"], "--resume" in end["message"]) == ("crashed", False)


def test_a_number_in_a_name_is_the_step_if_it_was_just_made(stage: Stage) -> None:
    stage.write(NUMBERED.replace("sleep(60)", "sleep(0)"))
    stage.run(checkpoints=["out/model_*.pt", "out/epoch_*.pt"])
    first, second = (event["step"] for event in stage.events("checkpoint"))
    assert first == 50, "its own number, though it is found later"
    assert second >= 53, "not 3, which is an epoch"


def test_a_stop_says_which_steps_were_not_saved(stage: Stage) -> None:
    stage.write(NUMBERED)
    runner = stage.start(checkpoints=["out/model_*.pt"], grace_seconds=10.0)
    stage.until(lambda: stage.events("checkpoint"), "it is kept")
    stage.until(lambda: 53 in stage.curve("train_loss"), "all is told")
    end = stage.stop(runner)
    assert end["reason"] == "interrupted"
    told = "Its newest checkpoint is of step 50. The 3 steps after it are not saved."
    assert end["message"].endswith(told)


def test_also_of_an_attempt_that_has_saved_nothing_itself(stage: Stage, kept: tuple[Path, ...]):
    stage.write("""
import json, os, time
with open(os.environ["STOKER_RUN_DIR"] + "/metrics.jsonl", "w") as file:
    for step in range(6, 10):
        print(json.dumps({"step": step, "loss": 1.0}), file=file, flush=True)
time.sleep(60)
""")
    resumed: dict[str, Any] = {"resume": ["{checkpoint}"], "checkpoints": ["out/*.pt"]}
    runner = stage.start(attempt=2, restore=kept, grace_seconds=10.0, **resumed)
    stage.until(lambda: 9 in stage.curve("train_loss", 2), "all is told")
    end = stage.stop(runner, 2)
    told = "Its newest checkpoint is of step 5. The 4 steps after it are not saved."
    assert end["message"].endswith(told)
