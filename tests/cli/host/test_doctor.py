"""`stoker doctor`: what is well, what is wrong, and what to do."""

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update

from app.cli.host import checks
from app.cli.host.recipe_checks import ask_of_recipes
from app.lifecycle import Intent
from app.settings import load_settings
from app.spec.installed import INSTALLED
from app.store import open_store
from app.store.engine import migrate
from app.store.tables import runs
from stoker import Client
from tests.cli.conftest import environment_of, stoker
from tests.e2e.environment import ROOT
from tests.service.receiver import receiving
from tests.store.conftest import new_run


def findings(answer) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in answer.document["findings"]}


def test_a_machine_that_is_well(cli, home):
    answer = cli("doctor", "--json")
    assert answer.code == 0
    assert {finding["status"] for finding in findings(answer).values()} <= {"ok", "warning"}
    assert set(findings(answer)) >= {
        *("environment", "worker extra", "driver", "home", "token", "disk"),
        *("database", "service", "ports"),
    }


def test_a_service_that_does_not_run_is_not_well(cli, home):
    service = findings(cli("doctor", "--json"))["service"]
    assert (service["status"], service["found"]) == ("warning", "it is not running")
    assert "stoker up" in service["advice"]


def test_a_wrong_setting_is_a_finding(cli, home, monkeypatch):
    monkeypatch.setenv("STOKER_SLOTS", "0")
    answer = cli("doctor", "--json")
    assert answer.code == 1
    found = findings(answer)
    assert found["settings"]["status"] == "problem"
    assert "STOKER_SLOTS" in found["settings"]["found"]
    assert "environment" in found


def test_a_running_service_is_seen(cli, up, monkeypatch):
    found = findings(cli("doctor", "--json"))
    assert found["service"]["found"].startswith("ready at http://127.0.0.1:")
    assert found["ports"]["found"] == "in use by this service"
    assert found["database"]["status"] == "ok"
    named = [finding["check"] for finding in cli("doctor", "--json").document["findings"]]
    assert len(named) == len(set(named)), "one name for each line"
    # As after an installation since it began.
    monkeypatch.setitem(INSTALLED.packages, "sequence", "walks-recipe")
    monkeypatch.setitem(INSTALLED.versions, "sequence", "0.2")
    with Client(home=load_settings().home) as client:
        of_api, of_worker = [finding.found for finding in ask_of_recipes(client)]
    assert of_api == "the API has sequence 1, and 0.2 is installed here"
    assert of_worker.endswith("has sequence 1, and 0.2 is installed here")


def test_a_token_that_others_can_read(cli, home):
    home.mkdir()
    (home / "token").write_text("secret")
    (home / "token").chmod(0o644)
    answer = cli("doctor")
    assert answer.code == 1
    assert "can be read by other users" in answer.out
    assert "chmod 600" in answer.out


RECIPE = """
from typing import Literal
from app.spec.recipe import Recipe

class Plug(Recipe):
    kind: Literal["{kind}"]
"""
TASK = "from worker.trainer.recipes.sequence import SequenceTask as {name}\n"


def install_plug(folder: Path, kind: str, task: str, first: str = "") -> None:
    """A package as pip lays it: the first half works, after `first`; the second is `task`."""
    (folder / f"{kind}_plug.py").write_text(first + RECIPE.format(kind=kind))
    (folder / f"{kind}_task.py").write_text(task)
    info = folder / f"{kind}_plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {kind}-plug\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[stoker.recipes]\n{kind} = {kind}_plug:Plug\n"
        f"[stoker.tasks]\n{kind} = {kind}_task:PlugTask\n"
    )


@pytest.mark.minutes
def test_a_plugin_whose_half_that_trains_cannot_be_imported_is_named(home, tmp_path, monkeypatch):
    install_plug(tmp_path, "whole", TASK.format(name="PlugTask"), "import torch\n")
    warned = "import warnings\nwarnings.warn('too old', UserWarning)\n"
    install_plug(tmp_path, "raising", f"{warned}raise OSError('no such\\nlibrary')\n")
    install_plug(tmp_path, "leaving", "import sys\nprint('leaving')\nsys.exit('left')\n")
    install_plug(tmp_path, "dying", "import os\nos.kill(os.getpid(), 11)\n")
    install_plug(tmp_path, "elsewhere", TASK.format(name="AnotherTask"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    answer = stoker(home, "doctor", "--json")
    assert answer.code == 1, answer.err
    of_recipes = [one for one in answer.document["findings"] if one["check"] == "recipes"]
    *broken, early, usable = [finding["found"] for finding in of_recipes]
    assert "whole (whole-plug) that the API asks imports torch (" in early
    told = {found.split()[2]: found for found in broken}
    assert set(told) == {"raising", "leaving", "dying", "elsewhere"}
    assert "raising-plug: " in told["raising"]
    assert "OSError: no such library" in told["raising"]
    assert "SystemExit: left" in told["leaving"]
    assert "ended with -11" in told["dying"]
    assert "has no attribute 'PlugTask'" in told["elsewhere"]
    assert "whole 1.0" in usable
    assert "sequence 1" in usable


def test_what_a_first_half_imports_and_must_not_is_found_where_it_stands(tmp_path):
    install_plug(tmp_path, "early", "", "\nimport early_helper\n")
    (tmp_path / "early_helper.py").write_text("import torch\n")
    (tmp_path / "torch.py").write_text("")
    install_plug(tmp_path, "late", "import torch\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    told = [
        subprocess.run(
            [sys.executable, "-P", "-m", "app.cli.host.first_half", kind],
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for kind in ("early", "late")
    ]
    assert told == [f"torch ({tmp_path / 'early_plug.py'}, line 2)\n", ""]


def test_a_guard_that_only_warns_is_said(cli, home, monkeypatch):
    assert "specs that would run slowly or wrongly are refused" in " ".join(
        cli("doctor").out.split()
    )
    monkeypatch.setenv("STOKER_GUARD", "warn")
    assert "STOKER_GUARD=warn" in cli("doctor").out


def test_what_was_compiled_has_a_size(cli, home):
    assert "caches" not in findings(cli("doctor", "--json"))
    kept = home / "caches" / "torch-2.13.0" / "inductor"
    kept.mkdir(parents=True)
    (kept / "steps.so").write_bytes(bytes(3 * 2**20))
    found = findings(cli("doctor", "--json"))["caches"]
    assert (found["status"], found["found"][:10]) == ("ok", "3.0 MiB of")


def test_a_preset_that_cannot_be_used(cli, home):
    (home / "presets").mkdir(parents=True)
    (home / "presets" / "mine.toml").write_text("[spec")
    answer = cli("doctor")
    assert answer.code == 1
    assert "mine.toml cannot be used" in " ".join(answer.out.split())


def test_a_taken_port(cli, home, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("STOKER_PORT", str(port))
        answer = cli("doctor")
    assert answer.code == 1
    assert f"it is in use by process {os.getpid()}" in " ".join(answer.out.split())
    assert "STOKER_PORT" in answer.out


def test_a_damaged_database(cli, home):
    home.mkdir()
    (home / "stoker.db").write_bytes(b"not a database" * 100)
    answer = cli("doctor")
    assert answer.code == 1
    assert "Traceback" not in answer.out + answer.err


def test_a_driver_that_does_not_answer(cli, home, tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML: version mismatch'; exit 18\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    answer = cli("doctor")
    assert answer.code == 1
    assert "version mismatch" in answer.out
    assert "reboot" in answer.out


@pytest.mark.parametrize(
    ("kernel", "status"),
    [("always [madvise] never\n", "ok"), ("always madvise [never]\n", "warning"), (None, None)],
)
def test_a_kernel_that_gives_no_huge_pages(tmp_path, monkeypatch, kernel, status):
    setting = tmp_path / "enabled"
    if kernel is not None:
        setting.write_text(kernel)
    monkeypatch.setattr(checks, "HUGE_PAGES", setting)
    found = list(checks.check_pages())
    assert [finding.status for finding in found] == ([] if status is None else [status])
    if status == "warning":
        assert found[0].advice == f"echo madvise | sudo tee {setting}"


def test_a_home_that_cannot_be_written(home, tmp_path):
    # Root may write everywhere, unless it gives that right away.
    as_anybody = ["setpriv", "--bounding-set=-dac_override", "--"] if os.geteuid() == 0 else []
    tmp_path.chmod(0o500)
    try:
        done = subprocess.run(
            [*as_anybody, sys.executable, "-m", "app.cli", "doctor"],
            env=environment_of(home),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        tmp_path.chmod(0o700)
    assert done.returncode == 1, done.stderr
    assert "cannot be written" in done.stdout


def test_every_finding_that_is_not_well_says_what_to_do(cli, home):
    home.mkdir()
    (home / "token").touch(0o666)
    Path(home / "token").chmod(0o666)
    for finding in cli("doctor", "--json").document["findings"]:
        assert finding["advice"] or finding["status"] != "problem", finding


def test_notifications_are_tried_and_how_the_last_one_went_is_said(cli, home, monkeypatch):
    assert "notify" not in findings(cli("doctor", "--json"))
    nobody = cli("doctor", "--notify")
    assert nobody.code == 1
    assert "there is no STOKER_NOTIFY_URL" in nobody.out
    with receiving(200, 403) as receiver:
        monkeypatch.setenv("STOKER_NOTIFY_URL", receiver.url)
        assert findings(cli("doctor", "--json"))["notify"]["found"] == (
            "on; nothing was to be told yet"
        )
        tried = cli("doctor", "--notify", "--json")
        assert (tried.code, findings(tried)["notify"]["status"]) == (0, "ok")
        refused = cli("doctor", "--notify")
        assert refused.code == 1
        assert "not sent: 127.0.0.1 answered 403" in " ".join(refused.out.split())
        assert len(receiver.requests) == 2


def test_how_the_last_notification_went_is_said(cli, home, monkeypatch):
    settings = load_settings()
    settings.home.mkdir()
    migrate.upgrade(settings)
    with closing(open_store(settings)) as store:
        store.datasets.register("weather", "weather.h5")
        store.notifications.begin()
        run = store.runs.create(new_run())[0].id
        with store.database.write() as connection:
            connection.execute(update(runs).values(attempt=1))  # one that never began is no news
        store.runs.set_intent(run, Intent.stop)
        monkeypatch.setenv("STOKER_NOTIFY_URL", "http://127.0.0.1:9/")
        told = store.notifications.claim(["stopped"], 60)
        assert told is not None
        store.notifications.retry(told, "nobody there", 60)
        failing = cli("doctor", "--json")
        assert failing.code == 1
        assert findings(failing)["notify"]["found"] == (
            f"that run {run} stopped is tried again: nobody there"
        )
        store.notifications.end(told.id)
        assert findings(cli("doctor", "--json"))["notify"]["found"].startswith(
            f"that run {run} stopped was sent "
        )
