"""A log whose middle is cut out while a real process goes on writing to it."""

import os
import subprocess
import sys

import structlog

from app.lifecycle import RunState
from app.store.telemetry.logs import HEAD_BYTES
from worker.agent.log_trimmer import END_BYTES, NOTE, STEP_BYTES, LogTrimmer

MIB = 2**20
LINE = "{:09} of what a trainer prints ....................................\n"
COUNT = 4_000_000
PRINTS = f"""
for begin in range(0, {COUNT}, 1000):
    print("".join({LINE!r}.format(n) for n in range(begin, begin + 1000)), end="", flush=True)
"""
NOTE_BYTES = len(NOTE.format(0))


def on_disk(path):
    """Bytes, once the file system has given back what it had taken ahead for a growing file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path.stat().st_blocks * 512


def part(path, begin, length):
    with path.open("rb") as file:
        file.seek(begin, os.SEEK_SET if begin >= 0 else os.SEEK_END)
        return file.read(length).decode()


def test_begin_and_end_stay_beside_a_process_that_prints_hundreds_of_megabytes(tmp_path):
    path, begin, end, step = tmp_path / "trainer.log", 10_000, 2 * MIB, MIB // 4
    trimmer = LogTrimmer(path, begin, end, step)
    with path.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-c", PRINTS], stdout=output)
    cuts, size = set(), 0
    while process.poll() is None:
        trimmer.trim()
        if path.stat().st_size > size + 10 * MIB:
            size = path.stat().st_size
            cuts.add(part(path, begin, NOTE_BYTES))
    assert process.returncode == 0
    trimmer.trim()
    assert len(cuts) > 2, "it was cut while the process wrote"
    size = path.stat().st_size
    assert size == COUNT * len(LINE.format(0)) > 250 * MIB, "nothing is lost, and nothing moves"
    assert on_disk(path) < begin + end + step + 16 * 4096
    lines = "".join(LINE.format(n) for n in range(begin // 60))
    assert part(path, 0, begin) == lines[:begin]
    last = "".join(LINE.format(n) for n in range(COUNT - end // 60, COUNT))
    assert part(path, -end, end) == last[-end:]
    hole = os.open(path, os.O_RDONLY)
    note = part(path, begin, NOTE_BYTES)
    os.close(hole)
    assert note.startswith("\n[to spare the disk")
    told = int(note.partition("byte")[2].partition(" is")[0].replace(",", ""))
    assert size - end - step < told <= size - end
    between = path.read_bytes()[begin + NOTE_BYTES : told]
    assert between == bytes(len(between)), "what was cut out is what the note says"


def test_a_log_that_is_not_too_long_stays_as_it_is(tmp_path):
    path = tmp_path / "trainer.log"
    trimmer = LogTrimmer(path, 1000, MIB, 1000)
    trimmer.trim()
    content = b"x" * (1000 + MIB + 1000)
    path.write_bytes(content)
    trimmer.trim()
    assert path.read_bytes() == content


def test_where_no_hole_can_be_made_it_is_said_once_and_the_log_stays_whole(tmp_path):
    """A script may have put a link to a file of the user's in the place of its log."""
    content = b"x" * 4 * MIB
    (tmp_path / "own").write_bytes(content)
    path = tmp_path / "trainer.log"
    path.symlink_to("own")
    trimmer = LogTrimmer(path, 1000, MIB, 1000)
    with structlog.testing.capture_logs() as told:
        for _ in range(3):
            trimmer.trim()
    assert [line["log_level"] for line in told] == ["warning"]
    assert "symbolic links" in told[0]["why"]
    assert path.read_bytes() == content


def test_an_agent_bounds_the_log_of_a_run_that_prints_without_end(make_farm):
    farm = make_farm()
    farm.start_agent()
    run_id = farm.submit(steps=100, pace=0.01, prints=1024)
    assert farm.wait_for_end(run_id).state is RunState.succeeded
    path = farm.folder(run_id) / "trainer.log"
    assert path.stat().st_size > 100 * MIB
    assert on_disk(path) < HEAD_BYTES + END_BYTES + STEP_BYTES + MIB
    assert part(path, 0, 100).startswith("fake trainer starts\n")
    assert "spare the disk" in part(path, HEAD_BYTES, NOTE_BYTES)
    assert part(path, -END_BYTES, END_BYTES).count("step ") > END_BYTES // 1024 - 10
    kept, offset = "", 0
    while (chunk := farm.store.logs.read(run_id, 1, offset)).text:
        kept, offset = kept + chunk.text, chunk.next_offset
    assert "step 000100 line 001023" in kept
    assert "\u2400" not in kept, "the hole is not read"
    assert "cannot be cut out" not in farm.log()
