"""Which runs a list shows, page by page, whatever was asked for and however much is looked at."""

from itertools import product
from typing import Any

import pytest
from sqlalchemy import update

from app.lifecycle import Intent, RunState
from app.store.records import RunFilter, RunRecord, StoredPage
from app.store.runs import search as run_search
from app.store.tables import runs
from tests.store.conftest import Clock, World

START, DAY = Clock.now, 86400.0
FILTERS: list[dict[str, Any]] = [
    {},
    {"state": RunState.stopped},
    {"state": RunState.queued, "label": "team"},
    {"statuses": ("stopped",), "label": "team=sky"},
    {"statuses": ("retrying",)},
    {"statuses": ("paused",), "state": RunState.queued},
    {"statuses": ("stopped", "queued")},
    {"statuses": ("queued", "running"), "label": "team"},
    {"statuses": ("stopped", "failed"), "created_by": "ada"},
    {"created_by": "ada"},
    {"created_by": "ada", "recipe": "molecule"},
    {"dataset": "tides"},
    {"dataset": "weather", "label": "team=sea"},
    {"dataset": "nothing"},
    {"created_after": START + 5 * DAY},
    {"created_before": START + 5 * DAY},
    {"created_after": START + 5 * DAY, "created_before": START + 9 * DAY, "q": "even"},
    {"created_after": START + 3 * DAY, "label": "team"},
    {"created_after": START + 99 * DAY},
    {"created_before": START},
    {"label": "team"},
    {"label": "team=sky", "recipe": "molecule"},
    {"recipe": "molecule"},
    {"recipe": "molecule", "state": RunState.stopped},
    {"parent_id": 1},
    {"parent_id": 1, "state": RunState.stopped},
    {"q": "even"},
    {"q": "even", "label": "team=sea", "state": RunState.queued},
    {"q": "nowhere"},
]


@pytest.fixture
def many(world: World) -> World:
    """Runs of all kinds, a third of them deleted."""
    world.store.datasets.register("tides", "tides.h5")
    for number in range(24):
        world.clock.now = START + number * DAY
        world.submit(
            created_by=("ada", "bob", None)[number % 3],
            dataset="tides" if number % 6 == 5 else "weather",
            name="even" if number % 2 == 0 else "odd",
            recipe="molecule" if number % 4 < 2 else "sequence",
            labels=({}, {"team": "sky"}, {"team": "sea", "x": "1"})[number % 3],
        )
    with world.store.database.write() as connection:
        connection.execute(update(runs).where(runs.c.id.in_([3, 7, 8])).values(parent_id=1))
    for run_id in range(1, 25):
        if run_id % 5 < 2:
            world.store.runs.set_intent(run_id, Intent.stop)
    for run_id in world.store.runs.find_ids(RunFilter(state=RunState.stopped), 99)[::3]:
        world.store.runs.delete(run_id)
    return world


def is_wanted(run: RunRecord, wanted: dict[str, Any]) -> bool:
    """What a filter says, said once more in Python."""
    key, _, value = wanted.get("label", "").partition("=")
    return (
        run.state == wanted.get("state", run.state)
        and run.state in wanted.get("statuses", (run.state,))
        and run.dataset == wanted.get("dataset", run.dataset)
        and run.created_by == wanted.get("created_by", run.created_by)
        and wanted.get("created_after", 0) <= run.created_at < wanted.get("created_before", 2e10)
        and run.recipe == wanted.get("recipe", run.recipe)
        and run.parent_id == wanted.get("parent_id", run.parent_id)
        and wanted.get("q", "") in run.name
        and (not key or key in run.labels)
        and (not value or run.labels.get(key) == value)
    )


def pages(world: World, wanted: dict[str, Any], limit: int) -> list[StoredPage[RunRecord]]:
    found = []
    cursor = None
    while True:
        found.append(world.store.runs.list(RunFilter(**wanted), limit, cursor))
        cursor = found[-1].next_cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("looked_at", [1, 5, 1000])
def test_pages_show_all_that_is_wanted_and_nothing_twice(
    many: World, monkeypatch: pytest.MonkeyPatch, looked_at: int
) -> None:
    everything = many.store.runs.list(RunFilter(), 99).data
    monkeypatch.setattr(run_search, "LOOKED_AT", looked_at)
    for wanted, limit in product(FILTERS, (1, 4, 99)):
        found = pages(many, wanted, limit)
        shown = [run for page in found for run in page.data]
        assert shown == [run for run in everything if is_wanted(run, wanted)], wanted
        assert all(len(page.data) <= limit for page in found)


def test_a_page_looks_at_so_many_runs_and_no_more(
    many: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 runs, of which half are of the recipe; a cursor tells where to go on."""
    monkeypatch.setattr(run_search, "LOOKED_AT", 6)
    first = many.store.runs.list(RunFilter(q="nowhere"), 50)
    assert first == StoredPage([], "19")
    assert len(pages(many, {"q": "nowhere"}, 50)) == 4
    assert len(pages(many, {"q": "nowhere", "recipe": "molecule"}, 50)) == 3


@pytest.mark.parametrize("cursor", ["0", "1", "9" * 18])
@pytest.mark.parametrize("looked_at", [1, 1000])
def test_a_cursor_of_nowhere_leads_to_an_end(
    many: World, monkeypatch: pytest.MonkeyPatch, looked_at: int, cursor: str
) -> None:
    monkeypatch.setattr(run_search, "LOOKED_AT", looked_at)
    page = many.store.runs.list(RunFilter(), 50, cursor)
    if cursor in ("0", "1"):
        assert page == StoredPage([], None)
    else:
        assert int(page.next_cursor or 0) < 25
