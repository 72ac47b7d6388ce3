"""The benchmark of loading: every arm brings each sample once, and what does not is noticed."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil
import pytest

from benchmarks.effort import Effort
from benchmarks.figures import as_json, place_for
from benchmarks.loading import arms, arrow, figures, memory, neighbours, probes, windows
from benchmarks.loading.files import write
from benchmarks.loading.memory import peaks
from benchmarks.loading.peers import dataloader
from benchmarks.loading.stoker import stoker
from tests.e2e.service import eventually
from tests.trainer_data.factories import children

ONCE = Effort(most_rounds=1, share=1.0, most_variants=2, own_processes=False)


@pytest.mark.minutes
@pytest.mark.parametrize("shuffled", [False, True])
def test_every_arm_brings_each_sample_once(tmp_path, shuffled, monkeypatch):
    file = write(tmp_path, "contiguous", samples=300, features=2)
    before = children()
    found = {figure.name: figure for figure in figures._contiguous(file, ONCE, shuffled=shuffled)}
    assert len([name for name in found if "DataLoader" in name and "over" not in name]) == 4
    assert len([name for name in found if "stoker, dataloader" in name]) == 3
    assert all(figure.value > 0 for figure in found.values() if not figure.note)
    rates = [figure for figure in found.values() if figure.unit]
    assert all(value > 0 for figure in rates for value in figure.also.values())
    assert all(figure.also["of the probe"] for figure in rates)
    assert children() <= before
    mapped = []
    monkeypatch.setattr(figures, "forget", lambda each: mapped.append(is_mapped(each.path)))
    probe, ours, _ = figures._cold(file, ONCE, shuffled=shuffled)
    assert probe.name.endswith("gather, mapped anew" if shuffled else "raw read")
    assert min(probe.value, ours.value) > 0
    assert mapped == [False, False]  # what is mapped would stay in the cache


def is_mapped(path):
    return str(path) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("layout", figures.PACKINGS)
def test_packed_data_is_the_same(tmp_path, layout):
    file = write(tmp_path, layout, samples=200, features=2)
    assert figures._compressed(file, layout, ONCE)


@pytest.mark.parametrize("brought", [[1, 2], [0, 0, 2]])
def test_an_arm_that_loses_or_repeats_samples_is_no_figure(tmp_path, brought):
    file = write(tmp_path, "contiguous", samples=300, features=2)
    whole = stoker(file, "resident", "none")

    def epoch(number):
        batches = list(whole.epoch(number))
        return (batches[place] for place in brought)

    with pytest.raises(RuntimeError, match="lazy did not bring"):
        arms.Arm("lazy", epoch).run(file, 0)
    whole.close()


def test_a_series_brings_what_its_windows_do_in_a_hundredth_of_the_room(monkeypatch):
    monkeypatch.setattr(windows, "SAMPLES", 600)
    monkeypatch.setattr(windows, "FEATURES", 16)
    found = {figure.name: figure for figure in windows.measure(ONCE)}
    assert found["windows: bytes of the windows over those of the series"].holds
    assert found["windows: first batch, with statistics: windows over series"].n == 1


NAMES_AND_AN_EPOCH = """#!/bin/sh
echo '["streaming, 0 workers", "spdl"]'
read asked && echo '[0.5, 20.0, 300.0]'
"""


def install_peers(folder, monkeypatch, then):
    """An environment whose Python answers once as the peers' process does."""
    python = folder / "peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(NAMES_AND_AN_EPOCH + then)
    python.chmod(0o755)
    monkeypatch.setattr(neighbours, "ENVIRONMENT", folder / "peers")
    monkeypatch.setattr(neighbours, "END_SECONDS", 0.1)


def test_peers_take_turns_in_a_process_that_ends_even_if_it_is_held_up(tmp_path, monkeypatch):
    install_peers(tmp_path, monkeypatch, then="sleep 1000 & exec sleep 1000")
    file = write(tmp_path, "contiguous", samples=3, features=2)
    before = children()
    first, second = neighbours.neighbours(file, shuffled=True)
    assert first.name == "streaming, 0 workers"
    assert first.run(file, 0) == arms.Epoch(0.5, 20.0, 300.0)
    [process] = children() - before
    [child] = eventually(process.children, "the peers have a child")
    for arm in (first, second):
        arm.close()
    assert not children() - before
    eventually(lambda: not child.is_running(), "their child ends too")


def test_a_process_of_the_peers_that_hangs_is_an_error(tmp_path, monkeypatch):
    install_peers(tmp_path, monkeypatch, then="exec sleep 1000")
    file = write(tmp_path, "contiguous", samples=3, features=2)
    before = children()
    first, second = neighbours.neighbours(file, shuffled=True)
    first.run(file, 0)
    monkeypatch.setattr(neighbours, "ANSWER_SECONDS", 0.2)
    with pytest.raises(RuntimeError, match=r"peers_process said nothing for 0 s"):
        second.run(file, 1)
    second.close()
    assert not children() - before


def test_a_process_of_the_peers_that_hangs_at_its_start_is_ended(tmp_path, monkeypatch):
    install_peers(tmp_path, monkeypatch, then="")
    (tmp_path / "peers" / "bin" / "python").write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(neighbours, "ANSWER_SECONDS", 0.2)
    before = children()
    with pytest.raises(RuntimeError, match="said nothing"):
        neighbours.neighbours(write(tmp_path, "contiguous", 3, 2), shuffled=True)
    assert not children() - before


def test_a_process_of_the_peers_that_ends_is_no_figure(tmp_path, monkeypatch):
    install_peers(tmp_path, monkeypatch, then="read asked && exit 1")
    file = write(tmp_path, "contiguous", samples=3, features=2)
    first, second = neighbours.neighbours(file, shuffled=True)
    first.run(file, 0)
    with pytest.raises(RuntimeError, match="peers_process ended"):
        second.run(file, 1)
    second.close()


@pytest.mark.minutes
def test_peers_that_are_not_installed_have_a_row_and_a_plain_script_has_a_rate(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(neighbours, "ENVIRONMENT", tmp_path / "peers")
    file = write(tmp_path, "contiguous", samples=130, features=2)
    effort = replace(ONCE, own_processes=True)
    found = figures._contiguous(file, effort, shuffled=False)
    scripts = [figure for figure in found if figure.name.endswith(", plain script")]
    assert len([figure for figure in scripts if figure.unit]) == 3
    assert len([figure for figure in scripts if " over " in figure.name]) == 3
    assert all(figure.value > 0 for figure in scripts)
    rows = [row for row in found if row.note]
    assert [row.name for row in rows] == [f"3 KiB in order: {name}" for name in neighbours.PACKAGES]
    assert {row.note for row in rows} == {"not installed here; `make peers` does it"}
    assert [row["value"] for row in json.loads(as_json(rows, [], {}))["figures"]] == [None, None]


@pytest.mark.parametrize("probe", ["in memory", "probe: gather"])
def test_a_limit_gathers_into_memory_that_it_has(tmp_path, probe):
    """To take new memory for each batch would be a cost that a loader need not have."""
    file = write(tmp_path, "contiguous", samples=300, features=2)
    data = probes.load(file)
    limits = probes.in_memory(data, shuffled=True), probes.mapped_gather(file, data["targets"])
    (arm,) = (limit for limit in limits if limit.name == probe)
    arm.run(file, 0)
    places = {batch["features"].data_ptr() for batch in arm.epoch(1)}
    assert len(places) == 1


def test_results_say_what_they_are_of(tmp_path):
    document = json.loads(as_json([], [], {"spdl-core": "1"}))["environment"]
    assert datetime.fromisoformat(document["date"]).tzinfo is UTC
    assert document["cpu"]
    assert document["packages"]["spdl-core"] == "1"
    assert document["packages"].keys() >= {"torch", "h5py", "numpy", "sqlalchemy", "stoker"}
    named = place_for(tmp_path, ["loading", "arrow"]).name
    assert named == f"{document['date'][:10]}-{document['git_sha'][:7]}-loading-arrow.json"
    assert place_for(tmp_path / "x.json", []) == tmp_path / "x.json"


def test_the_peak_of_an_arm_is_its_own(tmp_path):
    """Data that stays takes its room once, in a process that begins without it."""
    file = write(tmp_path, "contiguous", samples=2000, features=24)
    found = peaks([partial(stoker, file, "resident", "full")], file)
    assert file.bytes / 2**20 < found["stoker, resident"] < 2 * file.bytes / 2**20


def test_what_children_have_of_memory_counts_too(tmp_path, monkeypatch):
    file = write(tmp_path, "contiguous", samples=300, features=2)
    monkeypatch.setattr(memory, "_private", lambda child: 10 * 2**30)
    by_children = partial(dataloader, file, 2, batched=True, shuffled=True)
    name, peak = memory._measure(by_children, file)
    assert name == "DataLoader, batches, 2 workers"
    assert peak > 2 * 10 * 2**10
    monkeypatch.undo()
    assert memory._private(psutil.Process()) > 2**20


def test_arrow_folders_bring_each_sample_once(monkeypatch):
    for name, value in (("SAMPLES", 300), ("FILES", 3), ("WORKERS", (0,))):
        monkeypatch.setattr(arrow, name, value)
    found = {figure.name: figure for figure in arrow.measure(ONCE)}
    assert len([name for name in found if "pyarrow tables" in name and "over" not in name]) == 4
    assert len([name for name in found if "DataLoader, items" in name and "over" not in name]) == 3
    assert all(figure.value > 0 for figure in found.values())
