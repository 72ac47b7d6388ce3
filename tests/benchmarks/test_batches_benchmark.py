"""The benchmark of batches: every order brings each sample once, and the plan's figure is near."""

import numpy as np
import pytest

from benchmarks.effort import Effort
from benchmarks.loading import batches

ONCE = Effort(most_rounds=1, share=1.0, most_variants=2, own_processes=False)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(batches, "SAMPLES", 2**17)
    monkeypatch.setattr(batches, "FILE_BYTES", 2**19)
    monkeypatch.setattr(batches, "FEATURES", (1,))
    monkeypatch.setattr(batches, "CHUNK_BYTES", 2**20)


def test_labels_are_worth_more_in_the_order_of_today_and_each_order_is_read(small):
    found = {figure.name: figure for figure in batches.measure(ONCE)}
    for made, batch in batches.MADE.items():
        title = f"batches: {made.__name__}, {batch:,} samples are worth"
        before, after = (found[f"{title}, {name}"] for name in ("before", "after"))
        assert before.value < 0.6 * after.value
        assert 1 / 1.5 < before.also["by the plan"] / before.value < 1.5
    judged = [name for name, figure in found.items() if figure.bound is not None]
    assert judged == [
        f"batches, 1.55 KiB {title}: blocks of 64 KiB over before" for title in ("cached", "cold")
    ]
    assert all(figure.value > 0 for figure in found.values())


def test_the_orders_that_are_compared_are_those_of_a_stream():
    before, after = batches.orders().values()
    assert (before.kind, before.group, before.block) == ("block", 16_384, 1_024)
    assert after.kind == "block"
    assert after.block == 41
    assert np.isclose(after.group * batches.SAMPLE_BYTES, 2**30, rtol=0.01)
