"""What a script gives to be kept: its config and its numbers, however odd, end nothing."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.manifest import MANIFEST
from stoker.secret import looks_secret, masked


class Raises:
    def __str__(self) -> str:
        raise RuntimeError("no\ntext")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of an attempt that this process is."""
    (tmp_path / "checkpoints").mkdir()
    for name, value in {
        "STOKER_RUN_DIR": tmp_path, "STOKER_CHECKPOINT_DIR": tmp_path / "checkpoints",
        "STOKER_RUN_ID": 1, "STOKER_ATTEMPT": 1,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("RANK", raising=False)
    return tmp_path


def kept(folder: Path) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads((folder / "config.json").read_text(), parse_constant=refuse)


def test_what_json_does_not_know_is_kept_as_a_text(folder: Path):
    odd: Any = {
        (1, 2): float("nan"), 3: {"deep": float("-inf")}, b"x": Path("out"), "half": "\ud800",
        "plain": [1, 0.5, True, None, ("a",)],
    }  # fmt: skip
    stoker.init(config=odd)
    assert kept(folder) == {
        "(1, 2)": "nan", "3": {"deep": "-inf"}, "b'x'": "out", "half": "?",
        "plain": [1, 0.5, True, None, ["a"]],
    }  # fmt: skip


def test_what_cannot_be_kept_is_told_in_a_line_and_the_rest_is_kept(folder: Path, capsys):
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    stoker.init(config={"raises": Raises(), "loop": loop, "lr": 0.1})
    assert kept(folder) == {"lr": 0.1}
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        "stoker: raises of the config is not kept (RuntimeError: no text); the script goes on"
    )
    assert second.startswith("stoker: loop of the config is not kept (RecursionError: ")


@pytest.mark.parametrize("config", [Namespace(lr=0.1), {"large": 10**5000}, 7], ids=type)
def test_a_config_that_cannot_be_kept_at_all_leaves_the_one_before(folder: Path, config, capsys):
    run = stoker.init(config={"lr": 0.1})
    run.keep_config(config)
    run.keep_config(config)
    assert kept(folder) == {"lr": 0.1}
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("stoker: the config is not kept (")


def test_a_folder_that_refuses_ends_nothing(folder: Path, capsys):
    for name in ("config.json", "metrics.jsonl"):
        (folder / name).mkdir()
    run = stoker.init(config={"lr": 0.1})
    run.log({"loss": 0.5}, step=1)
    run.folder = folder / "gone"
    run.finish()
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in told] == [
        "stoker: the config is not kept",
        "stoker: numbers of a step are not kept",
        "stoker: that the work is done could not be noted",
    ]
    assert not list(folder.glob(".*.tmp"))


def test_what_is_not_a_number_is_left_out_and_told_once(folder: Path, capsys):
    run = stoker.init()
    metrics: dict[str, Any] = {"loss": None, "acc": 0.5}
    for step in (1, 2):
        run.log(metrics, step=step)
    with run.checkpoint(2, {**metrics, "nan": float("nan")}) as place:
        (place / "weights").write_text("x")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [{n: line[n] for n in line if n != "t"} for line in lines] == [
        {"step": 1, "acc": 0.5}, {"step": 2, "acc": 0.5}
    ]  # fmt: skip
    manifest = json.loads((folder / "checkpoints" / "step-2" / MANIFEST).read_text())
    assert manifest["metrics"] == {"acc": 0.5}
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("stoker: loss is left out, since it is not a number (TypeError: ")


def test_a_text_that_looks_secret_reaches_no_file(folder: Path):
    stoker.init(
        config={
            "api_key": "k", "wandb": {"hf-token": ["t"]}, "db": "postgres://u:p@host/x",
            "max_tokens": 512, "tokenizer": "bpe",
        }
    )  # fmt: skip
    assert kept(folder) == {
        "api_key": "***", "wandb": {"hf-token": ["***"]}, "db": "***",
        "max_tokens": 512, "tokenizer": "bpe",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["HF_TOKEN", "accessToken", "wandb.api-key", "DB_PASSWORD", "PWD"])
def test_names_that_look_secret(name: str):
    assert looks_secret(name, "x")
    assert masked({name: "x"}) == {name: "***"}


@pytest.mark.parametrize("name", ["PATH", "MONKEY", "AUTHOR", "tokenizer", "keyboard", "pattern"])
def test_names_that_look_like_others(name: str):
    assert not looks_secret(name, "x")


def test_words_of_names_and_options_are_told_apart():
    given = {
        "HFToken": "x", "argv": ["--lr", "1", "--api-token", "x"], "pad_token": "<pad>",
        "words": ["--api-token=x=y", "-lr=1", "--url=postgres://u:p@host/x"],
        "ssh_key": "-----BEGIN KEY-----\nMIIE=",
        "more": ["--api-token", "-AbC=", "--lr", "-1=2", "--no-auth", "--n=3"],
        "auth": {"pad_token": "x"},
    }  # fmt: skip
    assert masked(given) == {
        "HFToken": "***", "argv": ["--lr", "1", "--api-token", "***"], "pad_token": "<pad>",
        "words": ["--api-token=***", "-lr=1", "--url=***"],
        "ssh_key": "***",
        "more": ["--api-token", "***", "--lr", "-1=2", "--no-auth", "--n=3"],
        "auth": {"pad_token": "***"},
    }  # fmt: skip


@pytest.mark.parametrize("step", [-1, 10**15 + 1])
def test_a_checkpoint_that_nobody_could_list_is_refused(folder: Path, step: int):
    with pytest.raises(ValueError, match="a step is from 0 to"), stoker.init().checkpoint(step):
        pass
    assert not list((folder / "checkpoints").iterdir())
