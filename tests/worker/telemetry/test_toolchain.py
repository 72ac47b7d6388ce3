"""What a worker says it lacks for compiling: by what is installed, and by what its owner names."""

import sysconfig
from importlib import metadata

import pytest

from worker.telemetry.host import host_setup
from worker.telemetry.toolchain import missing_tools


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A PATH with these programs alone, and these packages; no owner names a compiler."""

    def install(*programs: str, packages: tuple[str, ...] = ()) -> None:
        for name in programs:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)

        def version(name: str) -> str:
            if name not in packages:
                raise metadata.PackageNotFoundError(name)
            return "3.0"

        monkeypatch.setattr(metadata, "version", version)

    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    return install


def first_words() -> dict[str, list[str]]:
    return {
        kind: [what.split(" (")[0] for what in lacks] for kind, lacks in missing_tools().items()
    }


def test_a_bare_host_lacks_a_compiler_for_either_device(installed):
    installed()
    assert first_words() == {"cpu": ["a C++ compiler"], "cuda": ["Triton", "a C compiler"]}


@pytest.mark.parametrize("triton", ["triton", "pytorch-triton"])
def test_a_host_with_all_of_it_lacks_nothing(installed, triton):
    installed("g++", "clang", packages=(triton,))
    assert missing_tools() == {"cpu": [], "cuda": []}


def test_the_compiler_that_the_owner_names_counts(installed, monkeypatch):
    installed("gcc", "other++", packages=("triton",))
    monkeypatch.setenv("CXX", "other++")
    monkeypatch.setenv("CC", "no-such-cc")
    assert first_words() == {"cpu": [], "cuda": ["a C compiler"]}


def test_without_pythons_headers_neither_can_be_built(installed, monkeypatch, tmp_path):
    installed("g++", "gcc", packages=("triton",))
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))
    assert first_words() == {"cpu": ["Python's headers"], "cuda": ["Python's headers"]}


def test_a_worker_tells_it():
    assert host_setup()["missing_tools"] == missing_tools()
