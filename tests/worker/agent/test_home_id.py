"""The id of a home: one for all its workers, and the same after a move."""

import re
import shutil
import subprocess
import sys

import pytest

from app.planning.requirements import HOME_ID
from worker.agent.home_id import home_id


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    return home


def read_anew(home) -> str:
    """The id as a worker reads it that starts later."""
    home_id.cache_clear()
    return home_id(home)


def test_it_begins_with_the_path_and_stays_when_the_home_is_moved(home, tmp_path):
    first = home_id(home)
    assert re.fullmatch(HOME_ID, first)
    assert first.startswith(f"{home}#")
    moved = tmp_path / "moved"
    shutil.move(home, moved)
    assert read_anew(moved) == first


def test_two_homes_have_two(home, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    assert home_id(home).rpartition("#")[2] != home_id(other).rpartition("#")[2]


@pytest.mark.parametrize("content", [b"", b"/home#12", b"\xff\xfe", b"\0" * 100])
def test_a_damaged_one_is_written_anew(home, content):
    home_id(home)
    (home / "home_id").write_bytes(content)
    again = read_anew(home)
    assert re.fullmatch(HOME_ID, again)
    assert read_anew(home) == again


def test_a_path_that_no_message_could_show_does_no_harm(tmp_path):
    home = tmp_path / "a\nb"
    home.mkdir()
    assert home_id(home).startswith(f"{tmp_path}/a?b#")
    assert read_anew(home) == home_id(home)


def test_workers_that_start_at_once_have_the_same(home):
    code = (
        "import sys, pathlib; from worker.agent.home_id import home_id; "
        "print(home_id(pathlib.Path(sys.argv[1])))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, home], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert len({process.communicate()[0] for process in started}) == 1
    assert (home / "home_id").exists()
