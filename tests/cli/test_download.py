"""Downloads by the client: whole or not at all, and from where they broke off."""

import hashlib
import io
import shutil
import zipfile
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from stoker import Client, ClientError
from stoker.manifest import manifest_bytes, parse_manifest
from stoker.transport import Transport


@pytest.fixture
def client(up):
    with Client() as client:
        yield client


@pytest.fixture
def best(client, finished_run):
    """The run's best checkpoint."""
    (best,) = [row for row in client.checkpoints(finished_run["id"])["data"] if row["is_best"]]
    return best


@pytest.fixture
def folder_of(up, best):
    """Where the service has it."""
    return up / "artifacts" / best["path"]


class Broken:
    """An answer of which `left` bytes come; None: all. What comes may be changed on the way."""

    def __init__(self, response, left, change):
        self.status_code = response.status_code
        self._response, self._left, self._change = response, left, change

    def iter_bytes(self, size):
        for piece in self._response.iter_bytes(size):
            if self._left is not None and len(piece) > self._left:
                yield piece[: self._left]
                raise httpx.ReadError("the line is dead")
            yield self._change(piece)


@contextmanager
def line(monkeypatch, name, left=None, change=bytes):
    """Answers about the file of this name come so; the ranges that were asked for."""
    asked = []
    original = Transport.stream

    @contextmanager
    def stream(transport, path, headers, silence_seconds, params=None):
        with original(transport, path, headers, silence_seconds, params) as response:
            if (params or {}).get("file") == name:
                asked.append(headers.get("Range"))
                yield Broken(response, left, change)
            else:
                yield response

    with monkeypatch.context() as patched:
        patched.setattr(Transport, "stream", stream)
        yield asked


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_download_that_broke_off_goes_on(
    client, finished_run, best, folder_of, tmp_path, monkeypatch
):
    target, name = tmp_path / "the best", "optimizer.safetensors"
    with (
        line(monkeypatch, name, left=1000),
        pytest.raises(ClientError) as broken,
    ):
        client.download(finished_run["id"], "best", target)
    assert not target.exists()
    given = f"download {finished_run['id']} --checkpoint {best['id']} --output '{target}'"
    assert f"`stoker {given}` goes on from there" in broken.value.detail
    told = []
    with line(monkeypatch, name) as asked:
        client.download(finished_run["id"], best["id"], target, lambda *said: told.append(said))
    assert asked == ["bytes=1000-"]
    assert contents(target) == contents(folder_of)
    whole = sum(len(data) for file, data in contents(target).items() if file != "manifest.json")
    assert told[-1] == (whole, whole)
    assert list(tmp_path.iterdir()) == [target]


def test_what_changed_on_the_way_is_noticed(client, finished_run, tmp_path, monkeypatch):
    target = tmp_path / "best"

    def flip(piece):
        return bytes([piece[0] ^ 1]) + piece[1:]

    with (
        line(monkeypatch, "model.safetensors", change=flip),
        pytest.raises(ClientError, match=r"model\.safetensors .* not as it was written"),
    ):
        client.download(finished_run["id"], "best", target)
    assert not target.exists()
    client.download(finished_run["id"], "best", target)
    assert target.is_dir()


def test_files_in_folders_below_come_too(client, finished_run, folder_of, tmp_path):
    written, below = (folder_of / "manifest.json").read_bytes(), folder_of / "tokens" / "vocab.txt"
    manifest = parse_manifest(written)
    found = {"bytes": 5, "sha256": hashlib.sha256(b"a b c").hexdigest()}
    manifest["files"]["tokens/vocab.txt"] = found
    below.parent.mkdir()
    try:
        below.write_bytes(b"a b c")
        (folder_of / "manifest.json").write_bytes(manifest_bytes(manifest))
        client.download(finished_run["id"], "best", tmp_path / "best")
    finally:
        (folder_of / "manifest.json").write_bytes(written)
        shutil.rmtree(below.parent)
    assert (tmp_path / "best" / "tokens" / "vocab.txt").read_bytes() == b"a b c"


@pytest.mark.parametrize(
    "name", ["../theirs", "/theirs", "a/../b", "a//b", "a/", "./b", "..", "", "a\0b"]
)
def test_a_manifest_names_no_file_elsewhere(
    client, finished_run, folder_of, tmp_path, monkeypatch, name
):
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"not to be touched")
    manifest = parse_manifest((folder_of / "manifest.json").read_bytes())
    named = str(theirs) if name == "/theirs" else name
    manifest["files"] = {named: {"bytes": 1, "sha256": "0" * 64}}
    forged = manifest_bytes(manifest)
    with (
        line(monkeypatch, "manifest.json", change=lambda _: forged),
        pytest.raises(ClientError, match="a file outside of its folder"),
    ):
        client.download(finished_run["id"], "best", tmp_path / "best")
    assert theirs.read_bytes() == b"not to be touched"


@pytest.mark.parametrize(
    "facts",
    [
        {"files": None},
        {"files": ["model.safetensors"]},
        {"files": {"model.safetensors": {"sha256": "0" * 64}}},
        {"files": {"model.safetensors": {"bytes": 1}}},
        {"files": {"model.safetensors": {"bytes": "1", "sha256": "0" * 64}}},
    ],
)
def test_a_manifest_that_does_not_say_what_is_whole_is_refused(
    client, finished_run, tmp_path, monkeypatch, facts
):
    forged = manifest_bytes({"step": 1, **facts})
    with (
        line(monkeypatch, "manifest.json", change=lambda _: forged),
        pytest.raises(ClientError, match=r"not what was saved: manifest\.json does"),
    ):
        client.download(finished_run["id"], "best", tmp_path / "best")
    assert not (tmp_path / "best").exists()


def test_a_rest_of_another_checkpoint_is_not_used(client, finished_run, folder_of, tmp_path):
    target, rest = tmp_path / "best", tmp_path / ".best.part"
    rest.mkdir()
    (rest / "manifest.json").write_text("{}")
    (rest / "model.safetensors").write_bytes(b"of something else")
    client.download(finished_run["id"], "best", target)
    assert contents(target) == contents(folder_of)


def test_an_empty_folder_is_filled_and_stays_the_one_it_is(
    cli, finished_run, folder_of, tmp_path, monkeypatch
):
    """It may be a mount point, or where somebody is: it can be neither removed nor replaced."""
    empty = tmp_path / "here"
    empty.mkdir()
    before = empty.stat().st_ino
    monkeypatch.chdir(empty)
    command = ("download", str(finished_run["id"]), "--best", "--output", ".")
    answer = cli(*command, "--json")
    assert answer.code == 0, answer.err
    assert set(answer.document["files"]) == set(contents(folder_of))
    assert empty.stat().st_ino == before
    assert contents(empty) == contents(folder_of)
    assert list(tmp_path.iterdir()) == [empty]
    again = cli(*command)
    assert again.code == 5
    assert f"{empty} is there already" in again.err
    assert contents(empty) == contents(folder_of)


def test_a_download_into_an_empty_folder_goes_on_too(
    client, finished_run, best, folder_of, tmp_path, monkeypatch
):
    target, name = tmp_path / "here", "optimizer.safetensors"
    target.mkdir()
    with line(monkeypatch, name, left=1000), pytest.raises(ClientError, match="goes on from there"):
        client.download(finished_run["id"], best["id"], target)
    assert not (target / "manifest.json").exists()
    with line(monkeypatch, name) as asked:
        client.download(finished_run["id"], best["id"], target)
    assert asked == ["bytes=1000-"]
    assert contents(target) == contents(folder_of)


def test_nothing_that_is_there_is_touched(client, finished_run, tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "theirs").write_text("kept")
    file.write_text("kept")
    for target in (folder, file, file / "below"):
        with pytest.raises((ClientError, NotADirectoryError)):
            client.download(finished_run["id"], "best", target)
    assert contents(folder) == {"theirs": b"kept"}
    assert file.read_text() == "kept"
    assert set(tmp_path.iterdir()) == {folder, file}


def test_a_checkpoint_that_was_saved_while_it_was_asked_for_is_taken(
    client, finished_run, folder_of, tmp_path, monkeypatch
):
    saved = client.checkpoints(finished_run["id"])
    lists = [{"data": [], "next_cursor": None}, saved]
    monkeypatch.setattr(client, "checkpoints", lambda _, limit: lists.pop(0))
    client.download(finished_run["id"], "best", tmp_path / "best")
    assert contents(tmp_path / "best") == contents(folder_of)


def test_it_comes_as_a_zip_or_one_file_of_it(client, finished_run, best, folder_of):
    archive = b"".join(client.download_checkpoint(best["id"]))
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        files = {Path(name).name: packed.read(name) for name in packed.namelist()}
    assert files == contents(folder_of)
    one = client.download_run_checkpoint(finished_run["id"], "best", file="manifest.json")
    assert b"".join(one) == (folder_of / "manifest.json").read_bytes()
