"""Downloads by the client: whole or not at all, and from where they broke off."""

from contextlib import contextmanager

import httpx
import pytest

from app.client import ClientError, StokerClient
from app.client.transport import Transport
from app.manifest import manifest_bytes, parse_manifest


@pytest.fixture
def client(up):
    with StokerClient() as client:
        yield client


@pytest.fixture
def folder_of(up, client, finished_run):
    """Where the service has the run's best checkpoint."""
    (best,) = [row for row in client.checkpoints(finished_run["id"]) if row["is_best"]]
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


def test_a_download_that_broke_off_goes_on(client, finished_run, folder_of, tmp_path, monkeypatch):
    target, name = tmp_path / "best", "optimizer.safetensors"
    with (
        line(monkeypatch, name, left=1000),
        pytest.raises(ClientError, match="the same call goes on from there"),
    ):
        client.download(finished_run["id"], "best", target)
    assert not target.exists()
    told = []
    with line(monkeypatch, name) as asked:
        client.download(finished_run["id"], "best", target, lambda *said: told.append(said))
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


@pytest.mark.parametrize("name", ["../theirs", "/theirs", "a/b", "..", "", "a\0b"])
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


def test_a_rest_of_another_checkpoint_is_not_used(client, finished_run, folder_of, tmp_path):
    target, rest = tmp_path / "best", tmp_path / ".best.part"
    rest.mkdir()
    (rest / "manifest.json").write_text("{}")
    (rest / "model.safetensors").write_bytes(b"of something else")
    client.download(finished_run["id"], "best", target)
    assert contents(target) == contents(folder_of)
