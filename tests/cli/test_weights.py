"""What the commands of weights say: exports, downloads of them, imports, and lists beside them."""

import json

import numpy as np
import pytest
import safetensors.numpy

from app.cli.weights.exporting import _Once


def test_where_an_export_cannot_go_is_told_before_it_is_made(cli, home, tmp_path):
    (tmp_path / "mine").touch()
    refused = cli("export", "1", "--format", "onnx", "--output", str(tmp_path))
    assert (refused.code, "is not an empty folder" in refused.err) == (5, True)


def test_an_export_without_a_format_is_told_of_them(cli, home):
    said = " ".join(cli("export", "9").err.replace("│", " ").split())
    assert "such as stoker export 9 --format onnx: safetensors is the weights, onnx the" in said


def test_that_an_export_waits_is_said_once(capsys):
    say = _Once("It waits …")
    for state in ("queued", "queued", "running"):
        say({"state": state})
    assert capsys.readouterr().err == "It waits …\n"


@pytest.mark.minutes
def test_an_export_is_shown_beside_the_original_and_downloaded(cli, up, finished_run, tmp_path):
    run_id = str(finished_run["id"])
    shown = cli("export", run_id, "--format", "onnx")
    assert shown.code == 0, shown.err
    # Often a worker has it before anybody looks.
    assert shown.err.count("waits for a worker that has the artifacts …") <= 1
    first, inputs, outputs, header, pytorch, onnx, where, further = shown.out.splitlines()
    assert f"of run {run_id} as onnx" in first
    assert inputs.split() == ["inputs", "features:", "float32", "(batch,", "24,", "3)"]
    assert outputs.split() == ["outputs", "targets:", "float32", "(batch,", "4)"]
    assert header.split() == ["model", "loss", "mae", "a", "batch", "size", "differs", "by"]
    assert (pytorch.split()[0], onnx.split()[0]) == ("pytorch", "onnx")
    assert "120 samples of the validation part" in where
    export_id = further.rpartition(" ")[2]
    folder = tmp_path / "model"
    saved = cli("download", run_id, "--export", export_id, "-o", str(folder), "--json")
    assert sorted(p.name for p in folder.iterdir()) == ["manifest.json", "model.onnx"]
    assert saved.document["bytes"] == cli("exports", run_id, "--json").document["data"][0]["bytes"]
    assert "onnx" in cli("exports", run_id).out
    again = cli("download", run_id, "--export", export_id, "--best", "-o", str(folder))
    assert (again.code, "give one of them" in again.err) == (2, True)


@pytest.mark.minutes
def test_a_runs_checkpoints_are_listed_also_with_options_first(cli, up, finished_run):
    run_id = str(finished_run["id"])
    rows = cli("checkpoints", run_id, "--json").document["data"]
    assert rows
    assert cli("checkpoints", "--json", run_id).document["data"] == rows
    assert cli("checkpoints", run_id).out.splitlines()[0].split()[:3] == ["id", "step", "epoch"]
    assert "ids are whole numbers" in cli("checkpoints", "imports").err


@pytest.mark.minutes
def test_a_checkpoint_is_pinned_and_unpinned(cli, up, finished_run):
    run_id = str(finished_run["id"])
    row = cli("checkpoints", run_id, "--json").document["data"][0]
    which = f"Checkpoint {row['id']} of run {run_id}, step {row['step']},"
    assert cli("pin", str(row["id"])).out == f"{which} is pinned.\n"
    assert "pinned" in cli("checkpoints", run_id).out
    assert cli("pin", str(row["id"]), "--json").document["pinned"] is True
    assert cli("unpin", str(row["id"])).out == f"{which} is no longer pinned.\n"
    assert "pinned" not in cli("checkpoints", run_id).out
    unknown = cli("pin", "999999")
    assert (unknown.code, "999999" in unknown.err) == (5, True)
    said = " ".join(cli("unpin", "x").err.replace("│", " ").split())
    assert "`stoker checkpoints RUN` lists them" in said


def test_an_import_says_what_runs_begin_with(cli, up):
    weights = {"module.head.bias": np.ones(4, np.float32)}
    safetensors.numpy.save_file(weights, up / "data" / "head.safetensors")
    named = ("checkpoints", "import", "head.safetensors", "--name", "head")
    done = cli(*named, "--rename", "module.=")
    assert done.code == 0, done.err
    first, message, last = done.out.splitlines()
    assert "(head)" in first
    assert message == "  Imported from head.safetensors. It has 1 tensor with 4 numbers."
    assert last.startswith("  init_from: {checkpoint: ")
    wrong = cli(*named, "--rename", "modul.=", "--json")
    assert "No tensor has a name that begins with 'modul.'" in json.loads(wrong.err)["detail"]
    assert (cli(*named, "--rename", "module").code, cli("ls", "--json").code) == (2, 0)
