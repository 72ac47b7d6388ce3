"""`stoker service install`: the unit, and where it is refused."""

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.failures import CommandFailed, ExitCode
from app.cli.host.systemd import unit_text, write_unit
from app.settings import load_settings

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def test_a_dry_run_prints_the_unit_and_writes_nothing(cli, home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    answer = cli("service", "install", "--dry-run")
    assert answer.code == 0
    assert "-m app.cli up" in answer.out
    assert not (tmp_path / "config").exists()
    assert not home.exists()


def test_the_unit_is_the_same_from_every_folder(home, tmp_path, monkeypatch):
    home.mkdir()
    (home / "stoker.toml").write_text('artifact_root = "from-the-file"\n')
    monkeypatch.setenv("STOKER_DATA_ROOT", "relative")
    monkeypatch.setenv("STOKER_DATABASE_URL", "sqlite:///mine.db")
    monkeypatch.chdir(tmp_path)
    text = unit_text(load_settings())
    assert f'Environment="STOKER_DATA_ROOT={tmp_path}/relative"' in text
    assert f'Environment="STOKER_ARTIFACT_ROOT={tmp_path}/from-the-file"' in text
    assert f'Environment="STOKER_DATABASE_URL=sqlite:///{tmp_path}/mine.db"' in text
    assert f"WorkingDirectory=-{home}\n" in text
    monkeypatch.delenv("STOKER_DATA_ROOT")
    monkeypatch.delenv("STOKER_DATABASE_URL")
    (home / "stoker.toml").unlink()
    text = unit_text(load_settings())
    assert not any(name in text for name in ("DATA_ROOT", "ARTIFACT_ROOT", "DATABASE_URL"))
    assert f"{tmp_path}\n" not in text


def test_the_unit_drains_before_systemd_kills(home, monkeypatch):
    monkeypatch.setenv("STOKER_STOP_GRACE_SECONDS", "90")
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    # The documented way to keep capitals; its stub calls it a method.
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(unit_text(load_settings()))
    service = unit["Service"]
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > 90
    assert service["ExecStart"] == f'"{sys.executable}" -P -m app.cli up'
    assert unit["Install"]["WantedBy"] == "default.target"


def test_settings_of_the_environment_go_into_the_unit(home, monkeypatch):
    monkeypatch.setenv("STOKER_ALLOWED_HOSTS", 'box, "quoted" 100%')
    text = unit_text(load_settings())
    assert 'Environment="STOKER_ALLOWED_HOSTS=box, \\"quoted\\" 100%%"' in text
    assert f'Environment="STOKER_HOME={home}"' in text


def test_what_only_a_client_needs_stays_out_of_the_unit(home, monkeypatch):
    monkeypatch.setenv("STOKER_TOKEN", "secret")
    monkeypatch.setenv("STOKER_URL", "http://127.0.0.1:1")
    assert "secret" not in unit_text(load_settings())
    assert "STOKER_URL" not in unit_text(load_settings())


def test_a_setting_of_two_lines_is_refused(home, monkeypatch):
    monkeypatch.setenv("STOKER_ALLOWED_HOSTS", "box\nExecStartPost=/bin/false")
    with pytest.raises(CommandFailed, match="control character"):
        unit_text(load_settings())


def test_other_users_cannot_read_the_unit_also_where_they_could(tmp_path):
    path = tmp_path / "systemd" / "user" / "stoker.service"
    path.parent.mkdir(parents=True)
    path.touch(mode=0o644)
    write_unit(path, "[Unit]\n")
    assert path.read_text() == "[Unit]\n"
    assert path.stat().st_mode & 0o077 == 0


def test_a_refusal_is_final_and_a_trainer_out_of_memory_ends_alone(home):
    lines = unit_text(load_settings()).splitlines()
    assert {
        "Restart=on-failure",
        f"RestartPreventExitStatus={ExitCode.usage:d} {ExitCode.refused:d}",
        "OOMPolicy=continue",
    } <= set(lines)


@pytest.mark.systemd
@needs_systemd
@pytest.mark.parametrize("folder", ["home", "a home, 100% \"mine\" $HOME 'x' \\n é"])
def test_systemd_itself_has_nothing_against_the_unit(tmp_path, home, monkeypatch, folder):
    place = tmp_path / folder
    place.mkdir(exist_ok=True)
    monkeypatch.chdir(place)
    monkeypatch.setenv("STOKER_HOME", str(place))
    unit = unit_text(load_settings())
    assert _verify(tmp_path, unit) == ""
    assert f"WorkingDirectory=-{str(place).replace('%', '%%')}\n" in unit


@pytest.mark.systemd
@needs_systemd
def test_systemd_would_have_said_so(tmp_path, home):
    unit = unit_text(load_settings())
    assert "Unknown key" in _verify(tmp_path, unit.replace("KillMode=", "KilMode="))
    assert "not executable" in _verify(tmp_path, unit.replace(sys.executable, "/no/such/python"))


def _verify(folder: Path, unit: str) -> str:
    """What `systemd-analyze verify` has to say of a user unit; nothing when all is well."""
    path = folder / "stoker.service"
    path.write_text(unit)
    runtime = folder / "runtime"  # a user's manager has one; in a container there is none
    runtime.mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(path)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or done.stderr
    return done.stderr


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd runs here")
def test_without_systemd_it_is_refused_with_another_way(cli, home):
    answer = cli("service", "install")
    assert answer.code == 5
    assert "not booted with systemd" in answer.err
    assert "stoker up --detach" in answer.err
