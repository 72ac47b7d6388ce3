"""Logs: what is kept of an attempt's output, and how it is read piece by piece."""

from app.lifecycle import Reason
from app.store.records import Beat, Finish, LogChunk
from app.store.telemetry.logs import HEAD_BYTES, TAIL_BYTES
from tests.store.conftest import World


def read_all(world: World, run_id: int, attempt: int, limit: int = 1 << 20) -> list[LogChunk]:
    chunks: list[LogChunk] = []
    offset = 0
    while (chunk := world.store.logs.read(run_id, attempt, offset, limit)).text:
        chunks.append(chunk)
        offset = chunk.next_offset
    return chunks


def test_text_is_read_from_any_offset_in_whole_characters(world: World) -> None:
    lease = world.running()
    for text in ("aé", "€b", "𝄞\n"):
        world.store.leases.beat(lease.token, Beat(log_text=text))
    whole = "aé€b𝄞\n"
    for limit in (4, 5, 6, 7, 100):
        chunks = read_all(world, lease.run_id, 1, limit)
        assert "".join(chunk.text for chunk in chunks) == whole
    assert world.store.logs.read(lease.run_id, 1, 2).text == "€b𝄞\n"  # 2: within the é
    assert world.store.logs.read(lease.run_id, 1, 1000) == LogChunk("", 1000, 0)


def test_each_attempt_has_a_log_of_its_own(world: World) -> None:
    lease = world.running()
    end = Finish(Reason.drained, "", final=Beat(log_text="first"))
    world.store.leases.finish(lease.token, end)
    second = world.claim()
    assert second is not None
    world.store.leases.beat(second.token, Beat(log_text="second"))
    assert world.store.logs.read(lease.run_id, 1).text == "first"
    assert world.store.logs.read(lease.run_id, 2).text == "second"
    assert world.store.logs.read(lease.run_id).text == "second"


def test_of_a_long_log_the_beginning_and_the_end_are_kept(world: World) -> None:
    lease = world.running()
    line = "{:015d}\n"
    total = (HEAD_BYTES + TAIL_BYTES + (3 << 20)) // 16
    for start in range(0, total, 20_000):
        text = "".join(map(line.format, range(start, min(start + 20_000, total))))
        world.store.leases.beat(lease.token, Beat(log_text=text))
    head, *tail = _joined(read_all(world, lease.run_id, 1))
    assert (head.dropped_bytes, head.text[:16]) == (0, line.format(0))
    assert len(head.text) >= HEAD_BYTES
    (rest,) = tail
    assert rest.text.endswith(line.format(total - 1))
    assert TAIL_BYTES <= len(rest.text) < TAIL_BYTES + (1 << 20)
    assert len(head.text) + rest.dropped_bytes + len(rest.text) == total * 16


def _joined(chunks: list[LogChunk]) -> list[LogChunk]:
    """Chunks without a gap between them, as one."""
    found: list[LogChunk] = []
    for chunk in chunks:
        if found and chunk.dropped_bytes == 0:
            last = found.pop()
            chunk = LogChunk(last.text + chunk.text, chunk.next_offset, last.dropped_bytes)
        found.append(chunk)
    return found
