"""Standard input of `stoker run`: taken where it is meant for the command, never waited for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.piped import MOST_BYTES, reads_program

ROOT = Path(__file__).parents[2]
READS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from app.cli import piped
from app.cli.failures import CommandFailed
piped.FIRST_SECONDS = piped.REST_SECONDS = 0.5
try:
    print("read", piped.read_piped(sys.argv[1:]))
except CommandFailed as refused:
    print("refused", refused)
"""


def read(stdin, *command: str) -> str:
    """A standard input, read where it is not this process's own."""
    done = subprocess.run(
        [sys.executable, "-c", READS, *command], stdin=stdin, capture_output=True, text=True
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "python",
        "python -",
        "/x/bin/python3.11 -u -",
        "bash",
        "bash -s",
        "sh",
        "perl",
        "node -",
        "bash -euo pipefail",
        "python -X dev",
    ],
)
def test_an_interpreter_without_a_file_reads_its_program(command: str):
    assert reads_program(command.split())
    assert "reads its program from standard input, and nothing is piped" in read(
        subprocess.DEVNULL, *command.split()
    )


@pytest.mark.parametrize(
    "command",
    ["python train.py", "python -m x", "python -uc x", "bash -c x", "bash --version", "python -V",
     "./train.sh", "cat", "python -u train.py -", "perl -e x"],
)  # fmt: skip
def test_any_other_command_may_read_nothing(command: str):
    assert not reads_program(command.split())
    assert read(subprocess.DEVNULL, *command.split()) == "read b''\n"


def test_a_file_is_read_from_its_place_which_stays(tmp_path: Path):
    (tmp_path / "list").write_text("one\ntwo\n")
    with (tmp_path / "list").open("rb") as file:
        os.lseek(file.fileno(), 4, os.SEEK_SET)
        assert read(file, "cat") == "read b'two\\n'\n"
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 4


def test_a_pipe_is_read_to_its_end():
    with subprocess.Popen(["bash", "-c", "echo one; echo two"], stdout=subprocess.PIPE) as writer:
        assert read(writer.stdout, "cat") == "read b'one\\ntwo\\n'\n"


def test_a_pipe_that_nobody_writes_to_holds_up_nothing():
    ours, theirs = os.pipe()
    said = read(ours, "cat")
    assert "read b''" in said
    assert "Nothing came through the pipe" in said
    assert "refused `python -` reads its program" in read(ours, "python", "-")
    os.close(theirs)
    os.close(ours)


def test_a_pipe_without_an_end_is_refused():
    ours, theirs = os.pipe()
    os.write(theirs, b"half")
    said = read(ours, "python", "a b.py")
    assert "The end of standard input did not come" in said
    assert """stoker run -- bash -c 'python '"'"'a b.py'"'"' < FILE'""" in said
    os.close(theirs)
    os.close(ours)


@pytest.mark.parametrize(("size", "is_taken"), [(MOST_BYTES, True), (MOST_BYTES + 1, False)])
def test_what_is_too_large_is_refused_with_the_way_to_write_it(
    tmp_path: Path, size: int, *, is_taken: bool
):
    (tmp_path / "large").write_bytes(b"x" * size)
    with (tmp_path / "large").open("rb") as file:
        said = read(file, "cat")
    assert ("stoker run -- bash -c 'cat < FILE'" in said) is not is_taken


@pytest.mark.parametrize("feed", ["{loop} < list", "cat list | {loop}"], ids=["file", "pipe"])
def test_what_the_calling_shell_reads_is_left_to_it(tmp_path: Path, feed: str):
    """Else a loop over a list would end after its first run."""
    (tmp_path / "list").write_text("one\ntwo\nthree\n")
    (tmp_path / "reads.py").write_text(READS)
    loop = f"while read line; do {sys.executable} reads.py cat; echo loop $line; done"
    script = feed.format(loop=loop)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("loop")] == [
        "loop one", "loop two", "loop three"
    ]  # fmt: skip
    assert done.stdout.count("read b''") == 3
    assert "is left to the calling program" in done.stderr


def test_a_closed_standard_input_is_none(tmp_path: Path):
    (tmp_path / "reads.py").write_text(READS)
    script = f"{sys.executable} reads.py cat <&-"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "read b''\n"
