"""A script starts, ends, is stopped and killed; whatever it started goes with it."""

import json
import shlex
import signal
import sys
from textwrap import dedent

import psutil
import pytest

from app.spec.script import SET_BY_STOKER, is_set_by_stoker
from tests.script.stage import PATIENCE, Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

WAITS = """
import time
print("ready", flush=True)
time.sleep(600)
"""
SAYS_ITS_CHILD = """
import subprocess, sys, time
code = '''import signal, time
signal.signal(15, signal.SIG_IGN)
print('deaf', flush=True)
time.sleep(600)'''
child = subprocess.Popen([sys.executable, "-c", code], start_new_session={daemon})
print("child", child.pid, flush=True)
{then}
"""


def child_of(stage: Stage) -> int:
    stage.until_log_has("deaf")
    (line,) = (line for line in stage.log().splitlines() if line.startswith("child "))
    return int(line.split()[1])


def test_one_that_ends_well_has_completed(stage: Stage):
    stage.write("print('hello')")
    end = stage.run()
    assert end["reason"] == "completed"
    assert end["result"] == {"last": {}, "exit_code": 0}, "it has told of no step"
    assert "hello" in stage.log()


def test_one_that_raises_has_crashed_with_its_last_line(stage: Stage):
    stage.write("raise ValueError('no such column: price')")
    end = stage.run()
    assert (end["reason"], end["result"]["exit_code"]) == ("crashed", 1)
    assert "ValueError: no such column: price" in end["message"]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("train.py",), "cannot import the module 'not_there'. Activate"),
        (("-m", "not_there.either"), "cannot import the module 'not_there"),
    ],
)
def test_what_its_python_cannot_import_is_told_with_that_python(stage: Stage, argv, told: str):
    stage.write("import not_there")
    end = stage.run(sys.executable, *argv)
    assert f"{sys.executable} {told}" in end["message"]
    way = f"`stoker run -- /path/to/venv/bin/python {shlex.join(argv)}`."
    assert end["message"].endswith(way), "nothing follows of retries: it is final"
    assert end["reason"] == "spec_error"


def as_torchrun_tells(raised: str, code: int = 1) -> str:
    """What a process under torch.distributed.run wrote, and then what that wrote itself."""
    elastic = "torch/distributed/elastic/multiprocessing"
    return dedent(f"""\
        Traceback (most recent call last):
          File "train.py", line 1, in <module>
            import flash_attn
        ModuleNotFoundError: No module named 'flash_attn'
        {raised}
        W1125 22:31:07.511000 812 {elastic}/api.py:1023] Sending process 818 closing signal SIGTERM
        E1125 22:31:07.526000 812 {elastic}/api.py:984] failed (exitcode: {code}) local_rank: 0 \
(pid: 817) of binary: /venv/bin/python
        Traceback (most recent call last):
          File "<frozen runpy>", line 198, in _run_module_as_main
          File "/venv/torch/{elastic}/errors/__init__.py", line 362, in wrapper
            return f(*args, **kwargs)
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
        ====
        train.py FAILED
        ====
        """)


@pytest.mark.parametrize(
    ("log", "reason", "told"),
    [
        (as_torchrun_tells("[rank0]: ModuleNotFoundError: No module named 'not_there'"),
         "spec_error", "cannot import the module 'not_there'."),
        (as_torchrun_tells("[rank0]: torch.distributed.DistBackendError: NCCL error"),
         "crashed", "The last line of its processes: [rank0]: torch.distributed.DistBackendError"),
        (as_torchrun_tells("", code=-11), "crashed", "The last line of its log: ====."),
        ("ImportError: libcuda.so.1: cannot open shared object file", "crashed", "libcuda.so.1"),
        ("ImportError: cannot import name 'a' from 'b'", "crashed", "cannot import name 'a'"),
    ],
)  # fmt: skip
def test_only_a_module_that_is_not_there_is_not_tried_again(
    stage: Stage, log: str, reason: str, told: str
):
    """Not one that was handled, nor a library that may come with the GPU's driver."""
    (stage.cwd / "log").write_text(log)
    stage.write("import sys\nsys.exit(open('log').read())")
    end = stage.run()
    assert end["reason"] == reason
    assert told in end["message"]
    assert ("Activate" in end["message"]) == (reason == "spec_error")


@pytest.mark.parametrize("asks", ["input('Continue? ')", "breakpoint()\nprint()"])
def test_one_that_asks_a_person_is_told_that_nobody_answers(stage: Stage, asks: str):
    stage.write(asks)
    end = stage.run()
    assert (end["reason"], end["result"]["exit_code"]) == ("spec_error", 1)
    assert "A run has nothing on its standard input" in end["message"]


@pytest.mark.parametrize("lacks", ["import not_there", "input('Continue? ')"])
def test_what_it_lacks_once_it_has_saved_is_worth_a_restart(stage: Stage, lacks: str):
    stage.write(f"from zipfile import *\nZipFile('a.pt','w').writestr('a/data.pkl', 'N.')\n{lacks}")
    assert stage.run(checkpoints=["*.pt"])["reason"] == "crashed"


def test_one_whose_gpu_memory_ran_out_says_so(stage: Stage):
    stage.write("raise RuntimeError('CUDA out of memory. Tried to allocate 20.00 MiB')")
    assert stage.run()["reason"] == "device_oom"


UNSTARTABLE = {
    "crlf": ("#!/bin/bash\r\necho hi\r\n", 0o755, "first line names '/bin/bash\\r', and no",
             "`sed -i 's/\\r$//' {path}`"),
    "no line": ("print('hi')\n", 0o755, "no first line says what runs it (#!)",
                "`stoker run -- python bare.py --lr 3`"),
    "no mode": ("#!/bin/bash\n", 0o644, "it is not executable", "`chmod +x {path}`"),
    "no interpreter": ("#!/opt/none/python -u\n", 0o755,
                       "first line names '/opt/none/python', which is not there", "install"),
    "another machine": ("\x7fELF of another", 0o755, "Exec format error", "another machine"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "mode", "told", "way"), UNSTARTABLE.values(), ids=UNSTARTABLE)
def test_a_file_that_cannot_be_started_says_what_is_wrong_with_it(
    stage: Stage, text: str, mode: int, told: str, way: str
):
    path = stage.cwd / "bare.py"
    path.write_bytes(text.encode())
    path.chmod(mode)
    end = stage.run(str(path), "--lr", "3")
    assert end["reason"] == "spec_error"
    assert told in end["message"]
    assert way.format(path=path) in end["message"]


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("#!/usr/bin/env python3\r\nprint(1)\r\n", ("{path}",)),
        ("cd /tmp\r\nexit\r\n", ("bash", "-e", "start")),
    ],
    ids=["env", "bash"],
)
def test_a_file_with_lines_of_windows_says_so_when_it_fails(stage: Stage, text: str, argv):
    path = stage.cwd / "start"
    path.write_bytes(text.encode())
    path.chmod(0o755)
    argv = [word.format(path=path) for word in argv]
    end = stage.run(*argv)
    assert end["reason"] == "spec_error"
    assert f"Take the CR out: `sed -i 's/\\r$//' {argv[-1]}`." in end["message"]


def test_a_python_that_reads_lines_of_windows_fails_for_another_reason(stage: Stage):
    stage.write("import sys\r\nsys.exit(3)\r\n")
    assert "CR LF" not in stage.run()["message"]


@pytest.mark.parametrize("program", ["/no/such/program", "/etc"])
def test_a_program_that_is_not_there_is_a_sentence(stage: Stage, program: str):
    end = stage.run(program)
    assert end["reason"] == "spec_error"
    assert f"{program} could not be started: " in end["message"]
    assert "Check that it is there and executable" in end["message"]


@pytest.mark.parametrize(("attempt", "reason"), [(1, "spec_error"), (2, "crashed")])
def test_a_folder_that_is_gone_is_a_sentence(stage: Stage, attempt: int, reason: str):
    """At a later attempt it may come back, as a drive does that is mounted late."""
    stage.cwd.rmdir()
    end = stage.run(attempt=attempt)
    assert end["reason"] == reason
    assert "is not there any more" in end["message"]


@pytest.mark.parametrize("code", [0, 1, 143], ids=str)
def test_any_exit_after_a_stop_is_a_stop(stage: Stage, code: int):
    stage.write(
        "import os, signal, sys, time\n"
        f"signal.signal(15, lambda *_: os._exit({code}))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    runner = stage.start()
    stage.until_log_has("ready")
    end = stage.stop(runner)
    assert (end["reason"], end["result"]["exit_code"]) == ("interrupted", code)


def test_one_that_said_that_it_was_done_has_completed_although_it_was_stopped(stage: Stage):
    stage.write("import stoker, time\nstoker.init().finish()\n" + WAITS)
    runner = stage.start()
    stage.until_log_has("ready")
    stage.stop(runner)
    assert stage.end()["reason"] == "completed"


def test_the_stop_file_is_there_before_the_signal(stage: Stage):
    stage.write(
        "import os, signal, time\n"
        "def stop(*_):\n"
        "    print('file', os.path.exists(os.environ['STOKER_STOP_FILE']), flush=True)\n"
        "    raise SystemExit\n"
        "signal.signal(signal.SIGINT, stop)\n" + WAITS
    )
    runner = stage.start(stop_signal="SIGINT")
    stage.until_log_has("ready")
    stage.stop(runner)
    assert "file True" in stage.log()


def test_one_that_does_not_stop_is_killed_after_the_grace_time(stage: Stage):
    stage.write("import signal\nsignal.signal(15, signal.SIG_IGN)\n" + WAITS)
    runner = stage.start(grace_seconds=1.0)
    stage.until_log_has("ready")
    end = stage.stop(runner)
    assert (end["reason"], end["result"]["exit_code"]) == ("killed", -9)
    assert "did not stop within 1 seconds" in end["message"]


@pytest.mark.parametrize("daemon", [True, False])
def test_what_outlives_it_is_ended_and_told(stage: Stage, daemon: bool):
    stage.write(SAYS_ITS_CHILD.format(daemon=daemon, then="time.sleep(600)"))
    runner = stage.start(grace_seconds=1.0)
    child = child_of(stage)
    stage.stop(runner)
    assert not psutil.pid_exists(child)
    assert [one["code"] for one in stage.events("warning")] == ["processes_left"]


def test_the_pulse_goes_on_while_what_outlives_it_is_waited_for(stage: Stage):
    stage.write(SAYS_ITS_CHILD.format(daemon=False, then="time.sleep(600)"))
    runner = stage.start(grace_seconds=6.0)
    child = child_of(stage)
    leader = psutil.Process(child).ppid()
    runner.send_signal(signal.SIGTERM)
    stage.until(lambda: not psutil.pid_exists(leader), "the leader is gone")
    before = (stage.attempt() / "pulse").read_bytes()
    stage.until(lambda: (stage.attempt() / "pulse").read_bytes() != before, "the pulse goes on")
    assert psutil.pid_exists(child)
    runner.wait(PATIENCE)


@pytest.mark.parametrize(
    "argv",
    [("bash", "-c", f"{sys.executable} train.py; true"), ("nohup", sys.executable, "train.py")],
    ids=["bash", "nohup"],
)
def test_what_wraps_it_leaves_no_python_behind(stage: Stage, argv: tuple[str, ...]):
    stage.write(WAITS)
    runner = stage.start(*argv)
    stage.until_log_has("ready")
    below = psutil.Process(runner.pid).children(recursive=True)
    assert any("train.py" in process.cmdline() for process in below)
    stage.stop(runner)
    assert not any(process.is_running() for process in below)


def test_a_daemon_that_its_script_leaves_is_ended_and_told(stage: Stage):
    stage.write(WAITS)
    end = stage.run("setsid", "--fork", sys.executable, "train.py")
    assert end["reason"] == "completed"
    assert "1 process that it had started went on, and had to be ended." in end["message"]
    (warning,) = stage.events("warning")
    assert warning["message"].startswith("1 process that the script had started outlived it")


def test_many_forks_are_all_ended(stage: Stage):
    stage.write(
        "import os, time\n"
        "for _ in range(200):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(600)\n"
        "print('ready', flush=True)\n"
        "os._exit(0)\n"
    )
    end = stage.run(policy={"max_duration_seconds": 100.0})
    assert end["reason"] == "completed"
    (warning,) = stage.events("warning")
    assert warning["message"].startswith("200 processes")


def test_one_that_takes_longer_than_allowed_has_succeeded_so_far(stage: Stage):
    stage.write(WAITS)
    assert stage.run(policy={"max_duration_seconds": 1.0})["reason"] == "max_duration"


def test_one_that_shows_no_sign_of_life_hangs(stage: Stage):
    stage.write(WAITS)
    end = stage.run(policy={"hang_timeout_seconds": 5.0})
    assert end["reason"] == "hang"
    assert "printed nothing for 5 seconds" in end["message"]


def test_a_progress_bar_that_goes_on_hides_no_hang(stage: Stage):
    stage.write(
        "import stoker, time\n"
        "stoker.init().log({'loss': 1.0}, step=1)\n"
        "while True:\n"
        "    print('still here', flush=True)\n"
        "    time.sleep(0.5)\n"
    )
    end = stage.run(policy={"hang_timeout_seconds": 5.0})
    assert end["reason"] == "hang"
    assert "reported no number for 5 seconds" in end["message"]


def test_what_it_finds_in_its_environment(stage: Stage):
    stage.write(
        "import json, os\n"
        "print(json.dumps({k: v for k, v in os.environ.items()}), flush=True)\n"
        "import stoker\n"
        "print('stoker', stoker.__file__)\n"
    )
    (stage.cwd / "app.py").write_text("raise SystemExit('not mine')")
    given = {"MINE": "1", "STOKER_TOKEN": "secret", "NO_PROXY": "intra"}
    stage.run(environment=given | dict.fromkeys(SET_BY_STOKER, "chosen"))

    found = json.loads(next(line for line in stage.log().splitlines() if line.startswith("{")))
    assert found["MINE"] == "1"
    assert "STOKER_TOKEN" not in found
    told = {
        "STOKER_RUN_ID": "1",
        "STOKER_GRACE_SECONDS": "20",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "15",  # before the grace time is over
        "PYTHONUNBUFFERED": "1",
        "TENSORBOARD_LOGGING_DIR": str(stage.attempt() / "tensorboard"),
    }
    assert {name: found[name] for name in told} == told
    assert found["NO_PROXY"] == "intra,127.0.0.1,localhost"
    assert found["PYTHONPATH"] == str(stage.path_folder)
    assert "STOKER_RESUME_FROM" not in found
    assert "chosen" not in found.values()
    others = {name for name in found if not is_set_by_stoker(name)}
    assert others - {"LC_CTYPE"} == {"MINE", "PATH", "PYTHONPATH", "NO_PROXY", "no_proxy"}
    assert f"stoker {stage.path_folder}" in stage.log()


@pytest.mark.parametrize("folder", [".", "bin"])
def test_packages_with_our_names_are_its_own(stage: Stage, folder: str):
    """Beside the script, and in the user's PYTHONPATH, which comes behind ours."""
    (stage.cwd / folder).mkdir(exist_ok=True)
    (stage.cwd / "app.py").touch()
    for package in ("worker", "tests", "docs"):
        (stage.cwd / package).mkdir()
        (stage.cwd / package / "__init__.py").touch()
    stage.write(
        "import app, worker, tests, docs, stoker\n"
        "for module in (app, worker, tests, docs): print('from', module.__file__)\n",
        name=f"{folder}/train.py",
    )
    command = (sys.executable, f"{folder}/train.py")
    assert stage.run(*command, environment={"PYTHONPATH": "."})["reason"] == "completed"
    found = [line[5:] for line in stage.log().splitlines() if line.startswith("from ")]
    own = [stage.cwd / "app.py"]
    own += [stage.cwd / name / "__init__.py" for name in ("worker", "tests", "docs")]
    assert [(stage.cwd / path).resolve() for path in found] == own


def test_three_lines_save_when_it_is_stopped(stage: Stage):
    stage.write(
        "import stoker, time\n"
        "run = stoker.init()\n"
        "for step in range(1, 10_000):\n"
        "    print('step', step, flush=True)\n"
        "    if run.should_stop():\n"
        "        with run.checkpoint(step) as folder:\n"
        "            (folder / 'a').write_text('x')\n"
        "        break\n"
        "    time.sleep(0.02)\n"
    )
    runner = stage.start()
    stage.until_log_has("step 10\n")
    end = stage.stop(runner)
    assert (end["reason"], end["result"]["exit_code"]) == ("interrupted", 0)
    assert [event["action"] for event in stage.events("checkpoint")] == ["saved"]


def test_a_script_that_handles_the_signal_itself_goes_on_doing_so(stage: Stage):
    stage.write(
        "import os, signal, stoker, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\n"
        "stoker.init().should_stop()\n" + WAITS
    )
    runner = stage.start()
    stage.until_log_has("ready")
    stage.stop(runner)
    assert stage.end()["result"]["exit_code"] == 7


def test_memory_that_forked_processes_share_counts_once(stage: Stage):
    stage.write(
        "import multiprocessing, time\n"
        "data = bytearray(b'x') * (200 * 2**20)\n"
        "context = multiprocessing.get_context('fork')\n"
        "children = [context.Process(target=time.sleep, args=(600,)) for _ in range(4)]\n"
        "for child in children:\n"
        "    child.start()\n" + WAITS
    )
    runner = stage.start()
    stage.until_log_has("ready")
    stage.until(lambda: max(told_memory(stage), default=0) > 200 * 2**20, "memory is told")
    assert max(told_memory(stage)) < 300 * 2**20
    stage.stop(runner)


@pytest.mark.parametrize(("seconds", "is_measured"), [(1.5, False), (6.0, True)])
def test_a_peak_is_told_of_what_lived_long_enough(stage: Stage, seconds: float, *, is_measured):
    stage.write(f"import time\ntime.sleep({seconds})\n")
    stage.run()
    peak = stage.events("progress")[-1]["peak_memory"]["host_bytes"]
    assert (peak is not None) is is_measured
    assert max(told_memory(stage)) > 0


def told_memory(stage: Stage) -> list[int]:
    return [event["host_memory_bytes"] or 0 for event in stage.events("progress")]
