"""`stoker data`: inspecting, registering and the sample, with good files and broken ones."""

import json
import os

import h5py
import numpy as np
import pyarrow
import pytest
from pyarrow import csv as pyarrow_csv
from pyarrow import parquet

from tests.cli.test_readme import ROOT
from tests.e2e.service import write_waves
from tests.pages import blocks
from tests.trainer_data.formats.arrow_files import write_folder
from worker.trainer.data.formats.ragged_files import pad_ragged


def test_inspect_shows_fields(cli, home, tmp_path):
    path = write_waves(tmp_path / "waves.h5")
    answer = cli("data", "inspect", str(path))
    assert answer.code == 0
    assert "24 × 3" in answer.out
    assert cli("data", "inspect", str(path), "--json").document["samples"] == 600


def test_inspect_shows_how_many_samples_a_field_puts_into_each_part(cli, home, tmp_path):
    path = write_waves(tmp_path / "waves.h5")
    with h5py.File(path, "a") as file:
        file["part"] = np.repeat(np.arange(3, dtype=np.uint8), [500, 80, 20])
    answer = cli("data", "inspect", str(path))
    assert "scalar: 500 training, 80 validation, 20 test" in answer.out


def test_inspect_counts_the_samples_of_each_class(cli, home, tmp_path):
    path = write_waves(tmp_path / "waves.h5")
    with h5py.File(path, "a") as file:
        file["kind"] = np.repeat(np.arange(4, dtype=np.float32), [1, 500, 80, 19])
        file["many"] = np.arange(600) % 12
    answer = cli("data", "inspect", str(path))
    assert "scalar: 1 × 0, 500 × 1, 80 × 2, 19 × 3" in answer.out
    assert "50 × 9 and 2 more" in answer.out


@pytest.mark.parametrize("content", [b"", b"text", b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_inspect_says_what_is_wrong_with_a_broken_file(cli, home, tmp_path, content):
    path = tmp_path / "broken.h5"
    path.write_bytes(content)
    answer = cli("data", "inspect", str(path))
    assert answer.code == 5
    assert answer.err.startswith(("problem:", "error:"))
    assert "Traceback" not in answer.err


def test_inspect_a_file_that_is_not_there(cli, home):
    answer = cli("data", "inspect", "nowhere.h5")
    assert answer.code == 5
    assert "nowhere.h5" in answer.err


@pytest.mark.parametrize(
    ("target", "told"),
    [("link.h5", "its links lead in a circle"), ("gone.h5", "a link to gone.h5, which is not")],
)
def test_a_link_that_leads_nowhere_is_a_sentence(cli, home, tmp_path, target, told):
    for folder in (tmp_path, home / "data"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "link.h5").symlink_to(target)
    for path in (str(tmp_path / "link.h5"), "link.h5"):
        answer = cli("data", "inspect", path)
        assert answer.code == 5
        assert told in answer.err
        assert answer.err.count("\n") == 1


def test_a_link_to_itself_is_not_registered(cli, up):
    (up / "data" / "circle.h5").symlink_to("circle.h5")
    answer = cli("data", "register", "circle", "circle.h5")
    assert answer.code == 5
    assert "'circle.h5' is a link that leads back to itself" in answer.err
    assert answer.err.count("\n") == 1
    assert "circle" not in cli("data", "ls").out


def test_inspect_finds_what_lies_under_the_data_root(cli, home):
    write_waves(home / "data" / "waves.h5", samples=50)
    assert cli("data", "inspect", "waves.h5", "--json").document["samples"] == 50


def test_a_file_that_is_not_there_is_named_where_the_service_looks_for_it(cli, up):
    answer = cli("data", "register", "ghost", "ghost.h5")
    assert answer.code == 5
    assert f"There is no file 'ghost.h5' under DATA_ROOT ({up / 'data'})" in answer.err


def test_a_table_is_converted_wherever_it_lies(cli, up, tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    for path in ("rows.csv", str(tmp_path / "rows.csv")):
        answer = cli("data", "register", "rows", path)
        assert answer.code == 5
        assert "becomes" in answer.err
        assert "by `stoker data convert`" in answer.err


def test_the_data_root_is_the_services_not_the_commands(cli, up, tmp_path, monkeypatch):
    there = write_waves(up / "data" / "rooted.h5", samples=50)
    elsewhere = write_waves(tmp_path / "elsewhere" / "weather.h5", samples=50)
    monkeypatch.setenv("STOKER_DATA_ROOT", str(elsewhere.parent))
    assert cli("data", "register", "rooted", "rooted.h5").code == 0
    assert cli("data", "register", "rooted", str(there)).code == 0
    for refused in (
        cli("data", "register", "rooted", str(elsewhere)),
        cli("data", "sample", "weather"),
    ):
        assert refused.code == 5
        assert f"under DATA_ROOT ({up / 'data'})" in refused.err


@pytest.mark.parametrize("name", ["Weather", "a b", "", "-x", "x" * 65, "a/b"])
def test_a_name_that_specs_could_not_use_is_a_sentence(cli, up, name):
    answer = cli("data", "register", "--", name, "waves.h5")
    assert answer.code == 5
    assert "small letters" in answer.err


def test_register_warns_of_what_is_no_number(cli, up):
    path = write_waves(up / "data" / "gaps.h5", samples=50)
    with h5py.File(path, "r+") as file:
        file["features"][3, 2, 1] = np.nan
    answer = cli("data", "register", "gaps", "gaps.h5")
    assert answer.code == 0
    assert "50 samples" in answer.out
    assert "warning: " in answer.err
    assert "NaN" in answer.err


def test_register_by_relative_and_absolute_path(cli, up):
    write_waves(up / "data" / "more.h5", samples=50)
    answer = cli("data", "register", "more", "more.h5")
    assert answer.code == 0
    assert "50 samples" in answer.out
    assert cli("data", "register", "more", str(up / "data" / "more.h5")).code == 0
    assert "more" in cli("data", "ls").out
    write_waves(up / "data" / "even-more.h5", samples=60)
    moved = cli("data", "register", "more", "even-more.h5").out
    assert "Dataset more was more.h5 until now, and is now even-more.h5.\n" in moved
    assert "60 samples" in moved


@pytest.mark.minutes
def test_windows_become_a_series_that_a_run_reads_the_same(cli, up):
    series = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    slides = np.lib.stride_tricks.sliding_window_view(series, 28, 0).transpose(0, 2, 1)
    path, out = up / "data" / "slides.h5", up / "data" / "slid.h5"
    with h5py.File(path, "w") as file:
        file["features"], file["targets"] = slides[:, :24], slides[:, 24:, 0]
    answer = cli("data", "convert", str(path), str(out))
    assert answer.code == 0
    assert "features: 373 windows of 24 steps are a series of 396.\n" in answer.out
    assert "stoker data register" in answer.out
    assert cli("data", "inspect", str(out)).out.count("24 × 3, kept as a series of 396") == 1
    expanded = cli("data", "inspect", str(path)).out
    assert "features, targets: windows that overlap. As the series" in expanded
    assert "down to 1/23: stoker data convert\n" in expanded
    quiet = cli("data", "register", "slid", "slid.h5")
    assert (quiet.code, "windows that overlap" in quiet.out) == (0, False)
    told = cli("data", "register", "slides", "slides.h5")
    assert (told.code, "windows that overlap" in told.out) == (0, True)
    losses = []
    for name in ("slid", "slides"):
        spec = up / "slid.yaml"
        spec.write_text(
            "recipe: {kind: sequence, hidden_size: 4, patch: 6}\n"
            f"data: {{dataset: {name}, standardize: {{inputs: false, targets: false}}}}\n"
            "training: {epochs: 2, batch_size: 32}\n"
        )
        losses.append(trained(cli, spec))
    assert losses[0] == losses[1]


@pytest.mark.minutes
def test_a_ragged_array_is_told_and_trains_as_input_and_is_refused_as_target(cli, up, monkeypatch):
    script, _ = blocks("python", (ROOT / "docs" / "guide" / "data.md").read_text())
    monkeypatch.chdir(up / "data")
    exec(script, {})  # noqa: S102  the page's own lines
    with h5py.File("molecules.h5", "r+") as file:
        pad_ragged(file, "atoms", "first_atoms", length=8)
    looked = cli("data", "inspect", "molecules.h5")
    assert looked.code == 0
    assert "0 to 24 × 3, ragged: 12.0 on average" in looked.out
    assert cli("data", "register", "molecules", "molecules.h5").code == 0
    spec = up / "molecules.yaml"
    spec.write_text(
        "recipe: {kind: sequence, hidden_size: 4, patch: 6}\n"
        "data: {dataset: molecules, inputs: [atoms], targets: [energy]}\n"
        "training: {epochs: 1, batch_size: 32}\n"
    )
    assert trained(cli, spec)["val_mae"] > 0
    assert cli("submit", str(spec), "--set", "data.inputs=[first_atoms]", "--set", "recipe.patch=4",
               "--watch").code == 0  # fmt: skip
    refused = cli("submit", str(spec), "--set", "data.targets=[atoms]", "--set",
                  "data.inputs=[first_atoms]")  # fmt: skip
    assert (refused.code, refused.out) == (5, "")
    assert "'atoms' of 'molecules' is ragged" in refused.err
    assert "`stoker data convert FILE --pad 24`" in refused.err
    padded = cli("data", "convert", "molecules.h5", "padded.h5", "--pad", "24")
    assert (padded.code, "atoms 600 × 24 × 3" in padded.out) == (0, True), padded.err + padded.out
    assert cli("data", "register", "padded", "padded.h5").code == 0
    assert cli("submit", str(spec), "--set", "data.dataset=padded").code == 0
    with h5py.File("molecules.h5", "r+") as file:
        file["atoms/offsets"][5] = 10_000
    torn = cli("data", "register", "molecules", "molecules.h5")
    assert torn.code == 5
    assert "'offsets' that fall: sample 5 would end before it begins" in torn.err


RESIDENT = {"kind": "chunked", "residency": "resident"}
STREAM = {"kind": "chunked", "residency": "stream", "chunk_size": "64KiB", "shuffle": "full"}


def trained(cli, spec, *options):
    """The last scores of a run of this file."""
    run = cli("submit", str(spec), *options, "--watch")
    assert run.code == 0, run.err
    return cli("ls", "--json").document["data"][0]["result"]["last"]


@pytest.mark.minutes
def test_a_folder_of_arrow_files_trains_as_the_hdf5_file_does(cli, up):
    path, folder = write_waves(up / "data" / "either.h5"), up / "data" / "arrow-waves"
    with h5py.File(path) as file:
        arrays = {name: file[name][:] for name in ("features", "targets")}
    write_folder(folder, {**arrays, "words": pyarrow.array(["word"] * 600)})
    looked = cli("data", "inspect", "arrow-waves")
    assert (looked.code, "24 × 3" in looked.out) == (0, True)
    assert "'words' is string, not a boolean, an integer, a float or bytes" in looked.err

    def submit(*options, **data):
        spec = up / "arrow-waves.json"
        recipe = {"kind": "sequence", "hidden_size": 4, "patch": 6}
        training = {"epochs": 1, "batch_size": 32}
        document = {"recipe": recipe, "data": {"dataset": "either", **data}, "training": training}
        spec.write_text(json.dumps(document))
        return cli("submit", str(spec), *options)

    results = []
    for name, loader in (("either.h5", RESIDENT), ("arrow-waves", STREAM)):
        registered = cli("data", "register", "either", name)
        assert (registered.code, "600 samples" in registered.out) == (0, True), registered.err
        run = submit("--watch", loader=loader)
        assert run.code == 0, run.err
        results.append(cli("ls", "--json").document["data"][0]["result"]["last"])
    assert results[0] == results[1]
    refused = submit(inputs=["words"])
    assert refused.code == 5
    assert "Its inspection found: 'words' is string" in " ".join(refused.err.split())
    os.utime(next(folder.iterdir()))
    changed = submit("--watch")
    assert changed.code == 5
    assert "since it was registered: its modification time." in " ".join(changed.err.split())


def test_rows_of_a_csv_file_become_samples(cli, home, tmp_path):
    path, out = tmp_path / "rows.csv", tmp_path / "rows.h5"
    path.write_text("when,warmth\n" + "".join(f"noon,{number}\n" for number in range(20)))
    given = "--window", "4", "--horizon", "2", "--target", "warmth"
    answer = cli("data", "convert", str(path), str(out), *given)
    assert answer.code == 0
    assert answer.out.startswith("15 samples of 1 features, cut out of 20 rows.\n")
    assert answer.err == "warning: when holds no numbers and is left out.\n"
    again = cli("data", "convert", str(path), str(out), *given, "--force", "--json")
    assert again.document["samples"] == 15


def test_bars_of_a_csv_file_become_samples_of_timeframes(cli, home, tmp_path):
    path, out = tmp_path / "bars.csv", tmp_path / "bars.h5"
    minutes = [*range(40), 40, 40, *range(41, 60)]
    rows = [f"{60 * at},{4 + at % 7},{1 + at % 3},{3.5 + at % 2}" for at in minutes]
    path.write_text("\n".join(["time,high,low,close", *rows]))
    given = "--timeframes", "M1:6,M5:2", "--horizon", "4", "--time-format", "seconds"
    stopped = cli("data", "convert", str(path), str(out), *given)
    assert stopped.code == 5
    assert "line 43, column time: 1970-01-01 00:40:00 is there already. Mend" in stopped.err
    answer = cli("data", "convert", str(path), str(out), *given, "--on-bad", "skip")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[:2] == [
        "47 samples of 4 features: bars 60 of M1, 12 of M5. Target: range.",
        "Skipped: duplicates 1.",
    ]
    assert answer.err.startswith(f"warning: {path}, line 43, column time")
    again = cli("data", "convert", str(path), str(out), *given, "--target", "close", "--force",
                "--on-bad", "skip", "--json")  # fmt: skip
    assert (again.document["samples"], again.document["target"]) == (47, "close")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("none.h5", "out.h5"), "no file none.h5"),
        (("rows.csv", "out.h5", "--timeframes", "M1:2"), "--timeframes needs --horizon"),
        (("rows.csv", "out.h5", "--timeframes", "M1:2", "--window", "3"), "two ways to cut"),
        (("rows.csv", "out.h5", "--max-gap", "3d"), "go with --window or --timeframes"),
        (("rows.csv", "out.h5"), "Add --window N --horizon M --target COLUMN: "),
        (("rows.csv", "out.h5", "--target", "a"), "Add --window N --horizon M: "),
        (("rows.csv", "out.h5", "--window", "4"), "Add --horizon M --target COLUMN: "),
        (("rows.csv", "out.h5", "--window", "4", "--target", "a"), "Add --horizon M: how many"),
        (("waves.h5", "out.h5", "--every", "2"), "go with --window"),
        (
            ("rows.csv", "out.h5", "--window", "4", "--horizon", "2", "--target", "b"),
            "There is no column 'b'; these hold numbers: a.",
        ),
        (("one.npy", "there.h5"), "--force replaces it"),
        (("waves.h5", "waves.h5", "--force"), "into itself"),
        (("waves.h5", "out.h5"), "overlapping windows"),
        (("waves.h5", "there.h5"), "overlapping windows"),
        (("waves.h5", "there.h5", "--force"), "overlapping windows"),
    ],
)
def test_what_is_not_converted_is_told_and_left_alone(
    cli, home, tmp_path, monkeypatch, arguments, told
):
    monkeypatch.chdir(tmp_path)
    with h5py.File(tmp_path / "waves.h5", "w") as file:
        file["features"] = np.random.default_rng(0).normal(size=(50, 24, 3))
    (tmp_path / "there.h5").write_text("precious")
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "rows.csv").write_text("a\n1\n")
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.h5")}
    answer = cli("data", "convert", *arguments)
    assert answer.code == 5
    assert told in answer.err
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.h5")} == before


def test_a_dataset_that_no_run_reads_can_be_forgotten(cli, up):
    path = write_waves(up / "data" / "passing.h5", samples=50)
    assert cli("data", "register", "passing", "passing.h5").code == 0
    assert cli("data", "forget", "passing", "--json").document == {"forgotten": "passing"}
    assert path.exists()
    assert "passing" not in [row["name"] for row in cli("data", "ls", "--json").document["data"]]
    again = cli("data", "forget", "passing")
    assert again.code != 0
    assert "passing" in again.err


def test_register_a_file_that_cannot_be_used(cli, up):
    with h5py.File(up / "data" / "words.h5", "w") as file:
        file["words"] = np.array([b"a", b"b"], dtype="S1")
    answer = cli("data", "register", "words", "words.h5")
    assert answer.code == 5
    assert "invalid" in answer.err


def test_register_nothing_outside_the_data_root(cli, up, tmp_path):
    outside = cli("data", "register", "other", str(write_waves(tmp_path / "other.h5")))
    assert outside.code == 5
    assert "does not lead to a file under DATA_ROOT" in outside.err
    assert cli("data", "register", "other", "../stoker.db").code == 5


def test_a_sample_there_is_not(cli, home):
    answer = cli("data", "sample", "stocks")
    assert answer.code == 5
    assert "weather" in answer.err


@pytest.mark.slow
def test_the_weather_sample_without_a_service_and_again(cli, home):
    first = cli("data", "sample", "weather")
    assert first.code == 0
    assert "stoker data register weather weather.h5" in first.out
    path = home / "data" / "weather.h5"
    written = path.stat().st_mtime_ns
    assert cli("data", "sample", "weather", "--json").document["dataset"] is None
    assert path.stat().st_mtime_ns == written


@pytest.mark.minutes
def test_the_board_sample_is_a_folder_and_registered(cli, up):
    made = cli("data", "sample", "board")
    assert (made.code, "33,8" in made.out) == (0, True), made.err
    again = cli("data", "sample", "board", "--json").document
    assert again["dataset"]["state"] == "ready"
    assert again["path"] == str(up / "data" / "board")


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy", "npz", "folder"])
def test_what_is_to_be_converted_is_told_with_the_command_that_does(cli, up, tmp_path, kind):
    root = up / "data"
    root.mkdir(exist_ok=True)
    path = root / f"my rows.{kind}"
    table = pyarrow.table({"hour": range(100), "warmth": [0.5] * 100})
    if kind == "npy":
        np.save(path, np.zeros((3, 2)))
    elif kind == "npz":
        np.savez(path, features=np.zeros((3, 2)), targets=np.zeros(3))
    elif kind == "parquet":
        parquet.write_table(table, path)
    else:
        place = path / "a.csv" if kind == "folder" else path
        place.parent.mkdir(exist_ok=True)
        pyarrow_csv.write_csv(table, place)
    command = f"`stoker data convert '{path}'"
    cut = "" if kind in ("npy", "npz") else " --window 48 --horizon 12 --target warmth"
    for words in (("inspect", str(path)), ("register", "mine", str(path))):
        said = cli("data", *words)
        assert said.code == 5
        assert f"{command}{cut}`" in said.err
        assert "Mend it" not in said.err
