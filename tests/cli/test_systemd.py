"""`stoker service install`: the unit, and where it is refused."""

import configparser
import sys
from pathlib import Path

import pytest

from app.cli.systemd import unit_text
from app.settings import load_settings


def test_a_dry_run_prints_the_unit_and_writes_nothing(cli, home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    answer = cli("service", "install", "--dry-run")
    assert answer.code == 0
    assert "-m app.cli up" in answer.out
    assert not (tmp_path / "config").exists()


def test_the_unit_drains_before_systemd_kills(home, monkeypatch):
    monkeypatch.setenv("STOKER_STOP_GRACE_SECONDS", "90")
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(unit_text(load_settings()))
    service = unit["Service"]
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > 90
    assert service["ExecStart"] == f'"{sys.executable}" -m app.cli up'
    assert unit["Install"]["WantedBy"] == "default.target"


def test_settings_of_the_environment_go_into_the_unit(home, monkeypatch):
    monkeypatch.setenv("STOKER_ALLOWED_HOSTS", 'box, "quoted" 100%')
    text = unit_text(load_settings())
    assert 'Environment="STOKER_ALLOWED_HOSTS=box, \\"quoted\\" 100%%"' in text
    assert f'Environment="STOKER_HOME={home}"' in text


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd runs here")
def test_without_systemd_it_is_refused_with_another_way(cli, home):
    answer = cli("service", "install")
    assert answer.code == 5
    assert "not booted with systemd" in answer.err
    assert "stoker up --detach" in answer.err
