"""`stoker bench`: the benchmarks of the repository, as a table or as JSON."""

import shutil
import subprocess
import sys
from pathlib import Path

import app
from tests.cli.conftest import stoker


def test_a_part_alone_as_json(home):
    answer = stoker(home, "bench", "rules", "--json")
    names = [figure["name"] for figure in answer.document["figures"]]
    assert names[0] == "all rules over one spec, median of the examples"
    assert "Stoker on" in answer.err
    assert answer.code == int(any(one["holds"] is False for one in answer.document["figures"]))


def test_a_part_there_is_not(home):
    answer = stoker(home, "bench", "nothing")
    assert answer.code == 2
    assert "no such part: nothing" in answer.err


def test_a_part_without_a_quick_form(home):
    answer = stoker(home, "bench", "rules", "--quick", "--device", "cpu")
    assert answer.code == 2
    assert "not in this form: rules. --quick measures loading, windows, training;" in answer.err


def test_an_installed_package_says_where_the_benchmarks_are(tmp_path):
    package = Path(app.__file__).parent
    shutil.copytree(package, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "bench"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 5
    assert "not in the installed package" in done.stderr
