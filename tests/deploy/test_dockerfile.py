"""The Dockerfile: every path, extra and command that it names exists, and nothing runs as root."""

import fnmatch
import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ("api", "worker")


def test_there_is_an_image_for_each_part(stages):
    assert [name for name in stages if name != "base"] == list(IMAGES)
    assert all(stages[name].base == "base" for name in IMAGES)


def test_what_is_copied_exists_and_reaches_the_build(stages):
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    for source in stages["base"].copied():
        assert (ROOT / source).exists()
        assert any(fnmatch.fnmatch(source, pattern) for pattern in allowed)


def test_the_build_gets_every_package_and_file_that_pyproject_names(stages):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {
        "pyproject.toml",
        project["project"]["readme"],
        *project["project"]["license-files"],
        *project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"],
    }
    assert set(stages["base"].copied()) == needed


@pytest.mark.parametrize("image", IMAGES)
def test_extras_exist_and_only_the_worker_has_torch(stages, image):
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (extras,) = re.findall(r'pip install "\.\[(.*?)\]"', stages[image].last("RUN") or "")
    assert set(extras.split(",")) <= set(known)
    assert ("worker" in extras.split(",")) == (image == "worker")


@pytest.mark.parametrize(("image", "compiles"), [("api", False), ("worker", True)])
def test_only_the_worker_has_a_compiler(stages, image, compiles):
    run = [text for name, text in stages[image].instructions if name == "RUN"]
    assert any(re.search(r"apt-get install .*\bg\+\+ ", text) for text in run) is compiles


@pytest.mark.parametrize("image", IMAGES)
def test_the_process_is_not_root_and_is_started_without_a_shell(stages, image):
    assert stages[image].last("USER") == "stoker"
    assert json.loads(stages[image].last("CMD") or "") == ["stoker", image]
    order = [name for name, _ in stages[image].instructions]
    assert order.index("USER") > order.index("RUN")


def test_nothing_that_installs_names_a_registry():
    for name in ("Dockerfile", "Makefile", ".ci/install", ".ci/run", "pyproject.toml"):
        urls = re.findall(r"https?://[^\s\"']+", (ROOT / name).read_text())
        assert [url for url in urls if "127.0.0.1" not in url] == []
