"""A user's own command through the real service: typed, stopped, gone on with, refused, paused."""

import json
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli.watch import print_outcome
from tests.e2e.service import eventually
from tests.e2e.shell import ROOT, Shell
from tests.repository import git

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRAIN = """
import os, sys, time, zipfile
start = 0
if "--resume" in sys.argv:
    with zipfile.ZipFile(sys.argv[sys.argv.index("--resume") + 1]) as archive:
        start = int(archive.read("step"))
print("start", start, flush=True)
steps = int(sys.argv[1])
os.makedirs("out", exist_ok=True)
for step in range(start + 1, steps + 1):
    with zipfile.ZipFile(f"out/ckpt-{step}.pt", "w") as archive:
        archive.writestr("step", str(step))
    with open(os.environ["STOKER_RUN_DIR"] + "/metrics.jsonl", "a") as file:
        file.write('{"step": %d, "loss": %f}\\n' % (step, 1 / step))
    time.sleep(0.05)
print("end", flush=True)
"""
THREE_LINES = """
import sys, stoker
run = stoker.init(config={"lr": 3e-4, "layers": [8, 8]})
if run.resume_from is None:
    with run.checkpoint(1) as folder:
        (folder / "weights").write_text("1")
    sys.exit(3)
print("resumed at", run.resume_from.name)
"""
BY_STOKER = """
import stoker, time
run = stoker.init()
start = 0 if run.resume_from is None else int(run.resume_from.name.partition("-")[2])
print("start", start, flush=True)
for step in range(start + 1, 10_000):
    stopping = run.should_stop()
    if step % 10 == 0 or stopping:
        with run.checkpoint(step) as folder:
            (folder / "weights").write_text(str(step))
    if stopping:
        break
    time.sleep(0.05)
"""
REGISTERED = """
[scripts.count]
argv = ["{python}", "train.py", "{{steps}}"]
cwd = "{cwd}"
params.steps = {{type = "int", default = 3, ge = 1, le = 10}}
"""


class Counting(Shell):
    """With a script that counts in its project, and as a registered command."""

    def __init__(self, root: Path) -> None:
        project = root / "project"
        project.mkdir()
        (project / "train.py").write_text(TRAIN)
        super().__init__(root, REGISTERED.format(python=sys.executable, cwd=project))

    def run(self, *words: str, steps: int = 3) -> dict[str, Any]:
        return self.run_command(*words, command=(sys.executable, "train.py", str(steps)))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counting]:
    shell = Counting(tmp_path_factory.mktemp("scripts"))
    yield shell
    shell.service.close()


@pytest.fixture(autouse=True)
def free_slot(shell: Counting) -> Iterator[None]:
    yield
    shell.end_all()


NAMED = ("--checkpoints", "out/ckpt-*.pt", "--resume", "--resume {checkpoint}")


def test_a_command_runs_with_its_curve_its_log_and_its_result(shell: Counting):
    run = shell.run("--name", "first")
    ended = shell.service.wait_for_end(run["id"])
    assert (ended["state"], ended["name"], ended["dataset"]) == ("succeeded", "first", None)
    assert ended["result"]["exit_code"] == 0
    curve = shell.curve(run["id"])  # points closer than a second are thinned, the ends stay
    assert curve[1] == 1.0
    assert curve[3] == pytest.approx(1 / 3, abs=1e-6)
    assert "end" in shell.stoker("logs", str(run["id"]))
    spec = shell.service.http.get(f"/runs/{run['id']}/spec").json()
    assert spec["code"]["argv"] == [sys.executable, "train.py", "3"]
    assert spec["applied"][0]["cwd"] == str(shell.project)
    shown = " ".join(shell.stoker("show", str(run["id"])).split())
    assert f"command {sys.executable} train.py 3 folder {shell.project}" in shown


def test_a_finding_is_told_once_while_the_run_is_followed(shell: Counting):
    words = ("--watch", "--checkpoints", "out/ckpt-*.pt", "--", sys.executable, "train.py", "1")
    said = shell.stoker("run", *words)
    assert said.count("Nothing says how the script resumes") == 1
    assert "stoker watch" not in said, "it is followed already"
    assert "succeeded" in said


def test_a_failure_behind_an_exit_code_of_0_is_told_everywhere(shell: Counting):
    said = shell.stoker("run", "--watch", "--", "bash", "-c", f"{sys.executable} nope.py | cat")
    assert said.count("pipefail") == 1
    assert "It may have failed all the same" in " ".join(said.split())
    (run, *_) = json.loads(shell.stoker("ls", "--json"))["data"]
    assert run["state"] == "succeeded"
    assert "pipefail" in run["result"]["caveats"][0]
    assert "succeeded, with a warning" in shell.stoker("ls").splitlines()[1]
    assert shell.stoker("show", str(run["id"])).count("pipefail") == 1


def piped(shell: Counting, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`stoker run WORDS` at the end of a line of a shell, in a process of its own."""
    stoker = shlex.join([sys.executable, "-m", "app.cli", "run", *words])
    return subprocess.run(
        ["bash", "-c", script.format(stoker=stoker)],
        cwd=shell.project,
        env={**shell.service.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_what_is_piped_is_the_program_that_runs(shell: Counting):
    done = piped(shell, "echo 'echo from the pipe; exit 3' | {stoker}", "--watch", "--", "bash")
    assert done.returncode == 1, done.stderr
    (run, *_) = json.loads(shell.stoker("ls", "--json"))["data"]
    assert run["result"]["exit_code"] == 3
    assert "from the pipe" in shell.log(run["id"])
    again = json.loads(shell.stoker("restart", "--json", "--from", "scratch", str(run["id"])))
    assert shell.service.wait_for_end(again["id"])["result"]["exit_code"] == 3
    refused = piped(shell, "{stoker} < /dev/null", "--", "bash")
    assert refused.returncode == 5
    assert "nothing is piped to it" in refused.stderr


def test_its_shell_comes_along_but_for_its_gpus(shell: Counting):
    code = "import os; print(oct(os.umask(0)), os.environ['CUDA_VISIBLE_DEVICES'] == '3')"
    script = "umask 077; export CUDA_VISIBLE_DEVICES=3; {stoker}"
    said = piped(shell, script, "--watch", "--", sys.executable, "-c", code).stdout
    assert "CUDA_VISIBLE_DEVICES=3 of this shell is not passed on" in " ".join(said.split())
    (run, *_) = json.loads(shell.stoker("ls", "--json"))["data"]
    assert "0o77 False" in shell.log(run["id"])


STOPS_ITS_PARENTS = """
import os, signal, time
def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
runner = os.getppid()
launcher = parent(runner)
os.kill(runner, signal.SIGSTOP)
os.kill(launcher, signal.SIGSTOP)
if os.fork() == 0:
    os.setsid()
    print("ready", flush=True)
    time.sleep(600)
time.sleep(600)
"""


def test_a_script_that_stops_its_parents_and_forks_away_is_stopped(shell: Counting):
    run = shell.run_command("--grace", "60", command=(sys.executable, "-c", STOPS_ITS_PARENTS))
    shell.until_said(run["id"], "ready")
    shell.stoker("stop", str(run["id"]), "--wait", "60")
    assert shell.service.run(run["id"])["state"] == "stopped"
    assert not shell.processes_of(run["id"])
    assert shell.service.wait_for_end(shell.run()["id"])["state"] == "succeeded"


def test_stop_and_restart_go_on_where_it_was(shell: Counting):
    run = shell.run(*NAMED, steps=10_000)
    eventually(lambda: shell.checkpoints(run["id"]), "a checkpoint is listed")
    stopped = shell.service.http.post(f"/runs/{run['id']}/stop", params={"wait": 60}).json()
    assert (stopped["state"], stopped["reason"]) == ("stopped", "stop_requested")
    newest = max(one["step"] for one in shell.checkpoints(run["id"]))
    assert {one["epoch"] for one in shell.checkpoints(run["id"])} == {None}, "nobody knows it"
    shell.stoker("download", str(run["id"]), "--output", "fetched")
    with zipfile.ZipFile(shell.project / "fetched" / f"ckpt-{newest}.pt") as archive:
        assert int(archive.read("step")) == newest
    child = json.loads(shell.stoker("restart", str(run["id"]), "--json"))
    assert child["carry"]["kind"] == "full"
    shell.until_log_has(child["id"], f"start {newest}\n")
    eventually(lambda: shell.checkpoints(child["id"]), "the child has saved, too")
    shell.service.http.post(f"/runs/{child['id']}/pause", params={"wait": 60})
    assert shell.service.run(child["id"])["state"] == "paused"
    shell.service.http.post(f"/runs/{child['id']}/resume")
    eventually(lambda: shell.service.run(child["id"])["state"] == "running", "it goes on")
    shell.service.http.post(f"/runs/{child['id']}/kill", params={"wait": 60})
    killed = shell.service.run(child["id"])
    assert (killed["state"], killed["reason"]) == ("stopped", "kill_requested")
    curve, last = shell.curve(child["id"]), killed["result"]["last"]
    told = {last["train_loss"], killed["progress"]["loss"], curve[max(curve)]}
    assert len(told) == 1, "ls, show and metrics agree"


def test_how_often_it_is_tried_again_is_said(shell: Counting):
    fails = (sys.executable, "-c", "import sys; print('no luck'); sys.exit(7)")
    once = shell.run_command(command=fails)
    ended = shell.service.wait_for_end(once["id"])
    assert (ended["attempt"], ended["reason"]) == (1, "crashed")
    assert "log: no luck. It is not tried again: it has no retries." in ended["message"]
    twice = shell.run_command("--retries", "1", "--no-shim", command=fails)
    ended = shell.service.wait_for_end(twice["id"])
    assert (ended["attempt"], ended["reason"]) == (2, "crashed")
    assert "no retries" not in ended["message"]
    documents = shell.service.http.get(f"/runs/{twice['id']}/spec").json()
    assert [one["shim"] for one in documents["applied"]] == [False, False]


def test_one_that_saves_by_stoker_is_tried_again(shell: Counting):
    (shell.project / "three.py").write_text(THREE_LINES)
    run = shell.run_command(command=(sys.executable, "three.py"))
    ended = shell.service.wait_for_end(run["id"])
    assert (ended["state"], ended["attempt"]) == ("succeeded", 2)
    assert "resumed at step-1\n" in shell.log(run["id"])
    assert ended["config"] == {"lr": 3e-4, "layers": [8, 8]}
    assert "lr=0.0003, layers=[8, 8]" in shell.stoker("show", str(run["id"]))


@pytest.mark.parametrize(
    ("options", "script"), [(NAMED, "train.py"), ((), "by_stoker.py")], ids=["resume", "stoker"]
)
def test_a_preemptible_one_makes_place_and_goes_on_where_it_was(
    shell: Counting, options: tuple[str, ...], script: str
):
    (shell.project / "by_stoker.py").write_text(BY_STOKER)
    command = (sys.executable, script, "10000")
    low = shell.run_command(*options, "--preemptible", command=command)
    eventually(lambda: shell.checkpoints(low["id"]), "a checkpoint is listed")
    high = shell.run("--priority", "5")
    assert shell.service.wait_for_end(high["id"])["state"] == "succeeded"
    eventually(lambda: shell.service.run(low["id"])["attempt"] == 2, "it goes on")
    first, _ = shell.service.http.get(f"/runs/{low['id']}/attempts").json()["data"]
    assert first["reason"] == "preempted"
    newest = max(one["step"] for one in shell.checkpoints(low["id"]) if one["attempt"] == 1)
    shell.until_log_has(low["id"], f"start {newest}\n")


def test_a_restart_that_changes_the_command_is_refused_over_http(shell: Counting):
    run = shell.run()
    shell.service.wait_for_end(run["id"])
    patch = {"recipe": {"argv": ["/bin/sh", "-c", "id"]}}
    answer = shell.service.http.post(f"/runs/{run['id']}/restart", json={"patch": patch})
    assert answer.status_code == 422
    assert answer.json()["issues"][0]["code"] == "script_not_allowed"


def test_a_pause_that_would_lose_all_is_refused(shell: Counting):
    run = shell.run(steps=10_000)
    eventually(lambda: shell.service.run(run["id"])["status"] == "running", "it runs")
    answer = shell.service.http.post(f"/runs/{run['id']}/pause")
    assert (answer.status_code, answer.json()["code"]) == (409, "nothing_to_resume_from")
    assert "--lose-progress" in answer.json()["detail"]
    shell.stoker("pause", str(run["id"]), "--lose-progress", "--wait", "60")
    assert shell.service.run(run["id"])["state"] == "paused"
    shell.stoker("stop", str(run["id"]))


def test_registered_commands_are_taken_over_http_and_others_are_not(shell: Counting):
    run_id = shell.service.submit({"recipe": {"kind": "script", "command": "count"}})
    assert shell.service.wait_for_end(run_id)["state"] == "succeeded"
    assert set(shell.curve(run_id)) >= {1, 3}
    other = {"recipe": {"kind": "script", "argv": ["/bin/true"]}}
    refused = shell.service.http.post("/runs", json=other)
    assert refused.status_code == 422
    assert "stoker run -- COMMAND" in refused.json()["detail"]
    planned = shell.service.http.post(
        "/runs",
        params={"dry_run": True},
        json={"recipe": {"kind": "script", "command": "count", "params": {"steps": 99}}},
    ).json()
    assert planned["accepted"] is False
    assert planned["issues"][0]["loc"] == ["recipe", "params", "steps"]


def test_a_restart_may_change_the_parameters_of_a_registered_command(shell: Counting):
    run_id = shell.service.submit({"recipe": {"kind": "script", "command": "count"}})
    shell.service.wait_for_end(run_id)

    def restart(steps: int) -> Any:
        patch = {"recipe": {"params": {"steps": steps}}}
        body = {"patch": patch, "from": "scratch"}
        return shell.service.http.post(f"/runs/{run_id}/restart", json=body)

    too_many = restart(99)
    assert too_many.status_code == 422
    assert too_many.json()["issues"][0]["loc"] == ["recipe", "params", "steps"]
    answer = restart(5).json()
    child = answer["id"]
    assert answer["carry"]["changed"] == ["/recipe/argv", "/recipe/params/steps"]
    assert shell.service.wait_for_end(child)["state"] == "succeeded"
    documents = shell.service.http.get(f"/runs/{child}/spec").json()
    assert documents["spec"]["recipe"]["argv"][-1] == "5"
    assert max(shell.curve(child)) == 5


def test_a_script_that_fails_says_why_and_what_follows_goes_on(
    shell: Counting, capsys: pytest.CaptureFixture[str]
):
    failing = json.loads(
        shell.stoker("run", "--json", "--", sys.executable, "-c", "import nothing_like_this")
    )
    after = shell.run()
    ended = shell.service.wait_for_end(failing["id"])
    assert (ended["state"], ended["reason"]) == ("failed", "spec_error")
    assert f"{sys.executable} cannot import the module 'nothing_like_this'" in ended["message"]
    assert "retries" not in ended["message"]
    print_outcome(ended)
    logs = f"  stoker logs {failing['id']}\n"
    assert capsys.readouterr().out.endswith(logs), "a restart would end the same"
    assert "spec_error (it cannot run as submitted)" in shell.stoker("show", str(failing["id"]))
    assert shell.service.wait_for_end(after["id"])["state"] == "succeeded"


def test_a_command_that_is_not_there_is_refused_where_it_is_typed(shell: Counting):
    said = shell.stoker("run", "--", "no-such-program", code=5)
    assert "'no-such-program' is not in PATH" in said
    said = shell.stoker("run", "--metrics-stdout", "step (?P<step", "--", "true", code=5)
    assert said.count("it is no regular expression") == 1
    said = shell.stoker("run", "--host-memory", "90000GiB", "--", "true", code=5)
    assert "at --host-memory: It asks for 90,000.00 GiB of host memory, but the largest" in said


def test_what_looks_secret_stays_at_home_unless_it_is_named(shell: Counting):
    shell.service.environment |= {"HF_TOKEN": "hf_x", "WANDB_API_KEY": "w"}
    code = "import os; print('seen', os.environ.get('HF_TOKEN'), os.environ.get('WANDB_API_KEY'))"
    words = ("run", "--json", "--env", "HF_TOKEN", "--", sys.executable, "-c", code)
    run = json.loads(shell.stoker(*words))
    assert "WANDB_API_KEY" in run["left_out"]
    shell.service.wait_for_end(run["id"])
    assert "seen hf_x None" in shell.stoker("logs", str(run["id"]))
    spec = shell.service.http.get(f"/runs/{run['id']}/spec").text
    assert "hf_x" not in spec
    shell.service.environment |= {"CUDA_VISIBLE_DEVICES": "0"}
    said = shell.stoker("run", "--env", "CUDA_VISIBLE_DEVICES", "--", "true", code=5)
    assert "CUDA_VISIBLE_DEVICES cannot be passed on: Stoker decides it" in said
    assert "set_by_stoker at --env CUDA_VISIBLE_DEVICES:" in said
    assert "fix: remove --env CUDA_VISIBLE_DEVICES" in said
    said = shell.stoker("run", "--json", "--env", "CUDA_VISIBLE_DEVICES", "--", "true", code=5)
    (issue,) = json.loads(said)["issues"]
    assert issue["fix_options"] == ["remove --env CUDA_VISIBLE_DEVICES"]
    del shell.service.environment["CUDA_VISIBLE_DEVICES"]
    said = shell.stoker("run", "--env", "A=b c", "--", "true", code=2)
    assert "Set it before: A='b c' stoker run --env A" in said


REFUSES = """
import argparse, os, zipfile, sys
argparse.ArgumentParser().parse_args()
os.makedirs("out", exist_ok=True)
with zipfile.ZipFile("out/ckpt-7.pt", "w") as archive:
    archive.writestr("step", "7")
sys.exit(1)
"""


def test_a_script_that_refuses_what_resumes_it_is_not_tried_for_ever(shell: Counting):
    (shell.project / "refuses.py").write_text(REFUSES)
    wrong = ("--checkpoints", "out/ckpt-7.pt", "--resume", "--resume_from {checkpoint}")
    run = shell.run_command(*wrong, command=(sys.executable, "refuses.py"))
    ended = shell.service.wait_for_end(run["id"])
    assert (ended["state"], ended["reason"], ended["attempt"]) == ("failed", "spec_error", 3)
    assert "It had been given `--resume_from " in ended["message"]
    told = shell.service.http.get(f"/runs/{run['id']}/events").json()["data"]
    assert "restored" not in {event["kind"] for event in told}


HUNGRY = """
import time
held = bytearray(200 * 2**20)
for at in range(0, len(held), 4096):
    held[at] = 1
time.sleep(6)
"""


def test_what_a_command_took_is_told_of_the_next_one_and_asked_for(shell: Counting):
    (shell.project / "hungry.py").write_text(HUNGRY)
    command = (sys.executable, "hungry.py")
    first = shell.run_command(command=command)
    assert first["profile"] is None
    ended = shell.service.wait_for_end(first["id"])
    taken = ended["progress"]["peak_memory"]["host_bytes"]
    assert taken >= 200 * 2**20
    assert ended["profile"] is None, "a run is not like itself"
    said = shell.stoker("run", "--", *command, "--more")
    assert shell.service.run(first["id"] + 1)["profile"]["cpu_bytes"] == taken
    assert f"Runs like this took {taken / 2**30:.2f} GiB of the host's memory" in said
    warned = shell.stoker("run", "--host-memory", "64MiB", "--", *command)
    assert "--host-memory is 64MiB, and runs like this took" in warned
    assert "at the peak" in shell.stoker("show", str(first["id"]))


def test_the_code_is_told_in_short_and_kept_whole(shell: Counting):
    git(shell.project, "init", "--quiet")
    git(shell.project, "add", "train.py")
    git(shell.project, "commit", "--quiet", "-m", "first")
    (shell.project / "notes.txt").touch()
    (shell.project / "train.py").write_text(TRAIN + "# changed\n")
    run = shell.run()
    sha = git(shell.project, "rev-parse", "HEAD")
    diff = git(shell.project, "diff", "HEAD") + "\n"
    code = shell.service.run(run["id"])["code"]
    assert (code["git_sha"], code["dirty"], code["diff_bytes"]) == (sha, True, len(diff))
    assert code["untracked"] >= 1
    assert (code["diff"], code["argv"]) == (diff, [sys.executable, "train.py", "3"])
    assert shell.service.http.get(f"/runs/{run['id']}/spec").json()["code"]["diff"] == diff
    assert f"commit {sha[:12]}, with a diff of" in shell.stoker("show", str(run["id"]))
    assert shell.stoker("show", str(run["id"]), "--diff").startswith("diff --git a/train.py")
    listed = shell.service.http.get("/runs").json()["data"]
    assert all(one["code"] is None and one["profile"] is None for one in listed)


def test_a_script_that_is_misspelt_is_refused_at_once(shell: Counting):
    said = shell.stoker("run", "--", sys.executable, "trian.py", code=5)
    assert "Did you mean train.py?" in said


def test_the_best_of_a_script_without_metrics_is_told_how_to_get(shell: Counting):
    run = shell.run(*NAMED)
    shell.service.wait_for_end(run["id"])
    said = shell.stoker("download", str(run["id"]), "--best", code=5)
    assert "none was saved with the metric val_loss" in said
    assert f"`stoker download {run['id']}` takes the latest" in said
    bare = shell.run()
    shell.service.wait_for_end(bare["id"])
    assert "none was saved;" in shell.stoker("download", str(bare["id"]), "--best", code=5)
