"""Shells around a training: who gets the stop signal, and what its end says."""

import sys

import pytest

from tests.script.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

# It saves half a second after the signal, and counts how often that comes.
SAVES_LATE = """
import os, signal, sys, time
caught = []
signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
signal.signal(signal.SIGINT, lambda *_: caught.append(1))
os.makedirs("out", exist_ok=True)
print("ready", flush=True)
while not caught:
    time.sleep(0.02)
time.sleep(0.5)
os.makedirs("out/step-7", exist_ok=True)
open("out/step-7/model", "w").write("x" * 100)
open("out/step-7/optimizer", "w").write("y" * 100)
print("caught", len(caught), flush=True)
"""
PYTHON = sys.executable
TRAIN = f"{PYTHON} train.py"
WRAPPERS = {
    "its last command": f"export A=1\n{TRAIN}",
    "more follows": f"{TRAIN}\necho after",
    "a pipe": f"{TRAIN} | tee log",
    "a long pipe": f"{TRAIN} 2>&1 | cat | tee log",
    "a shell in a shell": f"bash -c '{TRAIN}; true'\ntrue",
    "a subshell in a pipe": f"({TRAIN}; true) | tee log",
    "in the background": f"{TRAIN} &\nwait",
    "its output by a process": f"exec > >(tee log)\n{TRAIN}\ntrue",
    "fed by a pipe": f"sleep 600 | {TRAIN}",
    "another shell": f"exec sh -c '{TRAIN}; true'",
    "it ignores the signal": f"trap '' TERM\n{TRAIN}\ntrue",
    "a python that reads": f"{TRAIN} | {PYTHON} -c 'import sys; print(sys.stdin.read())'",
}


@pytest.mark.parametrize("script", WRAPPERS.values(), ids=WRAPPERS)
def test_the_training_gets_the_signal_once_and_its_save_is_kept(stage: Stage, script: str):
    stage.write(SAVES_LATE)
    stage.write(script, "train.sh")
    runner = stage.start("bash", "train.sh", checkpoints=["out/step-*"])
    stage.until(lambda: "ready" in stage.log() or (stage.cwd / "out").is_dir(), "it is ready")
    end = stage.stop(runner)
    assert end["reason"] == "interrupted"
    assert "ended with exit code 0" in end["message"]
    assert "caught 1" in stage.log()
    assert [one["provisional"] for one in stage.events("checkpoint")][-1] is False
    assert not stage.events("warning")


def test_ctrl_c_comes_past_a_shell_that_waits(stage: Stage):
    """It handles SIGINT then, only to see what its child does."""
    stage.write(SAVES_LATE)
    runner = stage.start("bash", "-c", f"{TRAIN}; true", stop_signal="SIGINT")
    stage.until_log_has("ready")
    assert stage.stop(runner)["result"]["exit_code"] == 0
    assert "caught 1" in stage.log()


def test_a_shell_that_handles_the_signal_gets_it_alone(stage: Stage):
    stage.write(SAVES_LATE)
    script = (
        f"trap 'echo passed on; kill -TERM $child; wait $child' TERM\n{TRAIN} &\nchild=$!\nwait"
    )
    stage.write(script, "train.sh")
    runner = stage.start("bash", "train.sh")
    stage.until_log_has("ready")
    stage.stop(runner)
    assert "passed on\n" in stage.log()
    assert "caught 1" in stage.log()


def test_children_of_a_python_do_not_get_it(stage: Stage):
    stage.write(
        "import os, signal, subprocess, sys, time\n"
        "code = 'import time; print(1, flush=True); time.sleep(600)'\n"
        "child = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "def stop(*_):\n"
        "    print('child', child.poll(), flush=True)\n"
        "    child.kill()\n"
        "    sys.exit()\n"
        "signal.signal(15, stop)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    runner = stage.start("bash", "-c", f"{TRAIN}; true")
    stage.until_log_has("ready")
    stage.stop(runner)
    assert "child None" in stage.log()


def test_a_loop_does_not_start_the_next_one(stage: Stage):
    stage.write(SAVES_LATE)
    runner = stage.start("bash", "-c", f"for i in 1 2 3; do {TRAIN}; done", grace_seconds=60.0)
    stage.until_log_has("ready")
    end = stage.stop(runner)
    assert end["result"]["exit_code"] == -15
    assert "caught 1" in stage.log()
    assert stage.log().count("ready") < 3


def test_a_training_that_dies_of_the_signal_may_have_cut_its_save(stage: Stage):
    """The exit code is that of `tee`."""
    stage.write(
        "import os, time\n"
        "os.makedirs('out/step-7')\n"
        "open('out/step-7/model', 'w').write('x')\n"
        "print('ready', flush=True)\n"
        "while True: open('out/step-7/optimizer', 'a').write('y')\n"
    )
    runner = stage.start("bash", "-c", f"{TRAIN} | tee log", checkpoints=["out/step-*"])
    stage.until_log_has("ready")
    end = stage.stop(runner)
    assert end["result"]["exit_code"] == 0
    assert not stage.events("checkpoint")
    assert [one["code"] for one in stage.events("warning")] == ["checkpoint_not_whole"]


def test_a_reader_that_does_not_end_is_killed_and_the_save_is_kept(stage: Stage):
    """It is the first of a folder, which nothing proves but the end of its writer."""
    stage.write(SAVES_LATE.replace("time.sleep(0.5)", ""))
    script = f"{TRAIN} | (cat; sleep 600)"
    runner = stage.start("bash", "-c", script, checkpoints=["out/step-*"], grace_seconds=2.0)
    stage.until_log_has("ready")
    end = stage.stop(runner)
    assert end["reason"] == "killed"
    assert "caught 1" in stage.log()
    assert [one["provisional"] for one in stage.events("checkpoint")][-1] is False
    assert not stage.events("warning")


def test_one_that_outlives_a_wrapper_judges_its_own_save(stage: Stage):
    """A Python that waits for it passes nothing on, as `conda run` does not."""
    stage.write(SAVES_LATE)
    code = f"import subprocess; subprocess.run(['{PYTHON}', 'train.py'])"
    runner = stage.start(PYTHON, "-c", code, checkpoints=["out/step-*"])
    stage.until_log_has("ready")
    end = stage.stop(runner)
    assert end["result"]["exit_code"] == -15
    assert "caught 1" in stage.log()
    assert [one["action"] for one in stage.events("checkpoint")] == ["saved"]


def test_a_forked_worker_that_ends_well_does_not_prove_a_save(stage: Stage):
    """Workers of a DataLoader end with 0 when their leader is killed in the middle of a save."""
    stage.write(
        "import os, signal, time\n"
        "if os.fork() == 0:\n"
        "    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n"
        "    while True:\n"
        "        time.sleep(0.1)\n"
        "os.makedirs('out/step-1')\n"
        "open('out/step-1/model.bin', 'w').write('x')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    stage.run(checkpoints=["out/step-*"])
    assert stage.events("checkpoint") == []


def test_what_is_left_in_the_background_is_a_doubt(stage: Stage):
    stage.write("import time\nprint('ready', flush=True)\ntime.sleep(600)")
    end = stage.run("bash", "-c", f"nohup {TRAIN} > train.log 2>&1 &")
    assert end["reason"] == "completed"
    assert "It may have failed all the same" in end["message"]
    (caveat,) = end["result"]["caveats"]
    assert "drop the `&`" in caveat
    assert "train.py" in caveat


def test_a_helper_that_ends_by_itself_is_none(stage: Stage):
    """A helper of multiprocessing ends when its pipe does."""
    stage.write(
        "import subprocess, sys\n"
        "code = 'import sys; print(1, flush=True); sys.stdin.read()'\n"
        "pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "helper = subprocess.Popen([sys.executable, '-c', code], **pipes)\n"
        "helper.stdout.readline()\n"
    )
    end = stage.run()
    assert "caveats" not in end["result"]
    assert not stage.events("warning")


TRACE = "Traceback (most recent call last):\n  File 'a', line 1\n    import b\n"


@pytest.mark.parametrize(
    "log",
    [
        f"{TRACE}ModuleNotFoundError: No module named 'b'\n",
        f"\x1b[31m{TRACE}my.own.Refusal\x1b[0m\n\n",
        f"{TRACE}RuntimeError: CUDA error: assert\nCUDA kernel errors might be\nCompile with `X`\n",
        f"{TRACE}RuntimeError: Error(s) in loading:\n\tsize mismatch\n",
        "  File 'a', line 1\n    a b\n      ^\nSyntaxError: invalid syntax\n",
        "/usr/bin/python: can't open file '/x/nope.py': [Errno 2] No such file or directory\n",
        "bash: line 1: pyton: command not found\n",
        "./train.sh: 3: pyton: not found\n",
        "train.sh: line 3:    12 Killed                  python train.py\n",
    ],
)
def test_a_log_that_ends_in_an_error_is_a_doubt(stage: Stage, log: str):
    (stage.cwd / "text").write_text(log)
    end = stage.run("cat", "text")
    assert end["reason"] == "completed"
    assert "pipefail" in end["result"]["caveats"][0]
    assert [one["code"] for one in stage.events("warning")] == ["may_have_failed"]


@pytest.mark.parametrize(
    "log",
    [
        f"{TRACE}ValueError: it was handled\nsaved model.pt\n",
        "warning: a.txt: No such file or directory\n",
        "epoch 3: Killed 12 of 30 candidates\n",
        "SyntaxError: 3 lines skipped, 997 read\ndone\n",
    ],
)
def test_other_ends_of_a_log_are_none(stage: Stage, log: str):
    (stage.cwd / "text").write_text(log)
    assert "caveats" not in stage.run("cat", "text")["result"]


@pytest.mark.parametrize(("lines", "is_doubtful"), [(1, True), (3, True), (4, False)])
def test_a_shell_may_print_more_after_an_error(stage: Stage, lines: int, *, is_doubtful: bool):
    script = f"{PYTHON} nope.py\nfor i in $(seq {lines}); do echo line $i; done"
    end = stage.run("bash", "-c", script)
    assert ("caveats" in end["result"]) is is_doubtful


def test_a_signal_below_a_shell_is_named(stage: Stage):
    end = stage.run("bash", "-c", f"{PYTHON} -c 'import os; os.kill(os.getpid(), 9)'; exit $?")
    assert "exit code 137 (128 + 9, as a shell says SIGKILL)" in end["message"]
    assert end["reason"] == "killed", "so that the kernel's own kill is told as that"
