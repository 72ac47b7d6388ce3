"""Events, logs, metrics, attempts and checkpoints of a run, without streams."""

import io
import shutil
import zipfile
from pathlib import Path
from typing import get_args

import pytest

from app.api.files import download_response
from app.errors import NotFound
from app.lifecycle import Reason
from app.service.checkpoint_files import CheckpointFiles
from app.store.artifact_root import ArtifactRoot
from app.store.records import Beat, MetricPoint
from stoker.events import KINDS
from stoker.models.records import EventKind
from tests.api.support import SPEC, whole_checkpoint


@pytest.fixture
def run_id(api, player):
    return api.post("/runs", json=SPEC).json()["id"]


@pytest.fixture
def lease(run_id, player):
    return player.claim()


def test_events_come_in_order_after_a_sequence_number(api, run_id, player, lease):
    player.event(lease, "phase", phase="training")
    first = api.get(f"/runs/{run_id}/events", params={"limit": 2}).json()
    assert [event["seq"] for event in first["data"]] == [1, 2]
    assert first["data"][0]["kind"] == "state"
    assert first["data"][0]["t"].endswith("Z")
    rest = api.get(f"/runs/{run_id}/events", params={"after": first["next_cursor"]}).json()
    assert [(e["kind"], e["data"]) for e in rest["data"]] == [("phase", {"phase": "training"})]
    assert (rest["next_cursor"], rest["last_seq"]) == (None, 3)


def test_events_of_one_kind(api, run_id, player, lease):
    player.event(lease, "warning", message="careful")
    player.event(lease, "phase", phase="training")
    player.event(lease, "warning", message="again")
    events = f"/runs/{run_id}/events"
    first = api.get(events, params={"kind": "warning", "limit": 1}).json()
    after = {"kind": "warning", "after": first["next_cursor"]}
    rest = api.get(events, params=after).json()
    assert [e["data"]["message"] for e in (*first["data"], *rest["data"])] == ["careful", "again"]
    waiting = api.start("GET", events, params={**after, "after": rest["last_seq"], "wait": 30})
    player.event(lease, "phase", phase="evaluating")
    player.event(lease, "warning", message="third")
    (third,) = waiting.result(30).json()["data"]
    assert third["data"]["message"] == "third"
    assert api.get(events, params={"kind": "progress"}).status_code == 422
    in_stream = {"accept": "text/event-stream"}
    refused = api.get(events, params={"kind": "warning"}, headers=in_stream)
    assert (refused.status_code, "so kind would have no effect" in refused.text) == (422, True)
    assert set(get_args(EventKind)) == set(KINDS) - {"progress", "end"}


def test_a_long_poll_answers_when_something_happens(api, run_id, player, lease):
    last = api.get(f"/runs/{run_id}/events").json()["last_seq"]
    waiting = api.start("GET", f"/runs/{run_id}/events", params={"after": last, "wait": 30})
    player.event(lease, "warning", message="careful")
    (event,) = waiting.result(30).json()["data"]
    assert event["data"]["message"] == "careful"
    empty = api.get(f"/runs/{run_id}/events", params={"after": event["seq"], "wait": 0.1})
    assert empty.json()["data"] == []


def test_a_long_poll_on_a_run_that_is_over_does_not_wait(api, run_id, player, lease):
    player.finish(lease, Reason.completed)
    last = api.get(f"/runs/{run_id}/events").json()["last_seq"]
    answer = api.get(f"/runs/{run_id}/events", params={"after": last, "wait": 300})
    assert answer.json()["data"] == []


def test_the_log_is_read_through_all_attempts(api, run_id, player, lease):
    assert api.get(f"/runs/{run_id}/logs").json()["text"] == ""
    player.log(lease, "first line\n")
    player.log(lease, "second line ä\n")
    player.finish(lease, Reason.interrupted)
    second = player.claim()
    player.log(second, "again\n")
    text, position, attempts = "", 0, []
    while (piece := api.get(f"/runs/{run_id}/logs", params={"after": position}).json())["text"]:
        text, position = text + piece["text"], piece["next_offset"]
        attempts.append(piece["attempt"])
    assert text == "first line\nsecond line ä\nagain\n"
    assert (attempts[0], attempts[-1]) == (1, 2)
    only = api.get(f"/runs/{run_id}/logs", params={"attempt": 2}).json()
    assert only["text"] == "again\n"


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_an_attempt_that_never_was_has_no_log(api, run_id, lease, accept):
    answer = api.get(f"/runs/{run_id}/logs", params={"attempt": 2}, headers={"Accept": accept})
    assert answer.status_code == 404
    assert "has no attempt 2" in answer.json()["detail"]


def test_a_long_poll_follows_the_log(api, run_id, player, lease):
    waiting = api.start("GET", f"/runs/{run_id}/logs", params={"wait": 30})
    player.log(lease, "hello\n")
    assert waiting.result(30).json()["text"] == "hello\n"


def test_metrics_as_json_and_csv(api, run_id, player, lease):
    points = [MetricPoint("train_loss", step, 1000.0 + 2 * step, 1 / step) for step in (1, 2)]
    points.append(MetricPoint("val_loss", 2, 1004.0, float("nan")))
    player.store.leases.beat(lease.token, Beat(metric_points=points))
    series = api.get(f"/runs/{run_id}/metrics").json()["series"]
    assert series["train_loss"] == [[1, 1002.0, 1.0], [2, 1004.0, 0.5]]
    assert series["val_loss"] == [[2, 1004.0, None]]
    params = {"names": "train_loss", "format": "csv"}
    table = api.get(f"/runs/{run_id}/metrics", params=params)
    assert table.headers["content-type"].startswith("text/csv")
    assert table.text.splitlines() == [
        "name,step,t,value",
        "train_loss,1,1970-01-01T00:16:42.000Z,1.0",
        "train_loss,2,1970-01-01T00:16:44.000Z,0.5",
    ]
    for wrong in ({"format": "xml"}, {"max_points": 1}, {"max_points": "many"}):
        assert api.get(f"/runs/{run_id}/metrics", params=wrong).status_code == 422


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_a_metric_that_an_ended_run_has_not_is_told_with_those_there_are(
    api, run_id, player, lease, format_
):
    path = f"/runs/{run_id}/metrics"
    asked = {"names": "val_mse, train_loss", "format": format_}
    points = [MetricPoint(name, 1, 1002.0, 0.5) for name in ("train_loss", "val_mae")]
    player.store.leases.beat(lease.token, Beat(metric_points=points))
    assert api.get(path, params=asked).status_code == 200, "it may still come"
    player.finish(lease, Reason.completed)
    answer = api.get(path, params=asked)
    assert answer.problem("not_found") == 404
    said = f"Run {run_id} is over and has no metric val_mse; there are train_loss, val_mae."
    assert answer.json()["detail"] == said
    assert api.get(path, params={**asked, "names": "train_loss,val_mae"}).status_code == 200


def test_an_ended_run_without_any_metric_says_so(api, run_id, player, lease):
    player.finish(lease, Reason.completed)
    answer = api.get(f"/runs/{run_id}/metrics", params={"names": "val_mae"})
    assert answer.problem("not_found") == 404
    assert (
        answer.json()["detail"] == f"Run {run_id} is over and has no metric val_mae; it has none."
    )
    assert api.get(f"/runs/{run_id}/metrics").json() == {"series": {}}


def test_attempts_say_how_they_ended(api, run_id, player, lease):
    player.finish(lease, Reason.worker_lost, "The worker was lost.")
    (attempt,) = api.get(f"/runs/{run_id}/attempts").json()["data"]
    assert (attempt["number"], attempt["reason"]) == (1, "worker_lost")
    assert attempt["finished_at"].endswith("Z")


def test_checkpoints_are_listed_and_downloaded_as_a_zip(api, run_id, player, lease):
    assert api.get(f"/runs/{run_id}/checkpoints/latest/download").problem("not_found") == 404
    player.checkpoint(lease, 10)
    player.checkpoint(lease, 20)
    listed = api.get(f"/runs/{run_id}/checkpoints").json()["data"]
    assert {c["step"]: (c["is_latest"], c["pinned"]) for c in listed} == {
        10: (False, False),
        20: (True, False),
    }
    answer = api.get(f"/runs/{run_id}/checkpoints/latest/download")
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        folder = f"run-{run_id}-step-20"
        assert sorted(archive.namelist()) == [
            f"{folder}/manifest.json",
            f"{folder}/model.safetensors",
        ]
        assert archive.read(f"{folder}/model.safetensors") == b"weights" * 1000
    by_id = next(c for c in listed if c["step"] == 20)["links"]["download"]
    assert api.get(by_id).headers["content-disposition"].endswith(f'{folder}.zip"')


@pytest.mark.parametrize("name", [None, "model.safetensors"])
class TestAFolderThatRetentionRemoves:
    """Whoever asks too late hears of it; a download that has begun ends."""

    def files(self, settings, player, lease):
        path = player.checkpoint(lease, 10)
        (record,) = player.store.checkpoints.list(lease.run_id)
        root = ArtifactRoot(player.store.database, settings.artifact_root)
        return CheckpointFiles(root, record), settings.artifact_root / path

    def test_before_the_files_are_opened(self, settings, player, lease, name):
        files, folder = self.files(settings, player, lease)
        shutil.rmtree(folder)
        with pytest.raises(NotFound, match="removed just now"):
            download_response(files, name)

    def test_while_its_names_are_read(self, api, settings, player, lease, name, monkeypatch):
        self.files(settings, player, lease)

        monkeypatch.setattr(Path, "rglob", lambda path, pattern: iter(()))
        params = {} if name is None else {"file": name}
        answer = api.get(f"/runs/{lease.run_id}/checkpoints/latest/download", params=params)
        assert answer.problem("not_found") == 404

    def test_while_it_is_sent(self, api, settings, player, lease, name, monkeypatch):
        _, folder = self.files(settings, player, lease)

        def respond_and_remove(files, wanted):
            answer = download_response(files, wanted)
            shutil.rmtree(folder)
            return answer

        monkeypatch.setattr("app.api.routers.checkpoints.download_response", respond_and_remove)
        params = {} if name is None else {"file": name}
        answer = api.get(f"/runs/{lease.run_id}/checkpoints/latest/download", params=params)
        assert answer.status_code == 200
        if name is None:
            with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
                assert archive.testzip() is None
                assert len(archive.namelist()) == 2
        else:
            assert answer.content == b"weights" * 1000


def test_one_file_can_be_had_in_parts(api, run_id, player, lease):
    player.checkpoint(lease, 10)
    path = f"/runs/{run_id}/checkpoints/latest/download"
    params = {"file": "model.safetensors"}
    part = api.get(path, params=params, headers={"Range": "bytes=3-9"})
    assert (part.status_code, part.content) == (206, b"ghtswei")
    assert part.headers["content-range"] == "bytes 3-9/7000"
    beyond = api.get(path, params=params, headers={"Range": "bytes=9999-"})
    assert beyond.problem("range_not_satisfiable") == 416
    assert beyond.headers["content-range"] == "bytes */7000"
    for wrong in ("bytes=x-y", "bytes=9-3", "bytes"):
        malformed = api.get(path, params=params, headers={"Range": wrong})
        assert malformed.problem("invalid_request") == 422, wrong
        assert "Range" in malformed.json()["detail"]
    assert api.get(path, params=params).content == b"weights" * 1000


def test_a_file_in_a_folder_below_can_be_had(api, run_id, player, lease):
    files = whole_checkpoint()
    player.checkpoint(lease, 10, files | {"tokens/vocab.txt": b"a b c"})
    path = f"/runs/{run_id}/checkpoints/latest/download"
    answer = api.get(path, params={"file": "tokens/vocab.txt"})
    assert (answer.status_code, answer.content) == (200, b"a b c")
    assert f'"run-{run_id}-step-10-tokens-vocab.txt"' in answer.headers["content-disposition"]
    assert api.get(path, params={"file": "tokens"}).problem("not_found") == 404


def test_no_file_outside_the_folder_can_be_had(api, run_id, player, lease, settings):
    path = player.checkpoint(lease, 10)
    elsewhere, link = settings.artifact_root / "elsewhere", settings.artifact_root / path / "link"
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("secret")
    link.symlink_to(elsewhere / "secret")
    link.with_name("below").symlink_to(elsewhere)
    outside = "../../secret", "/etc/passwd", "link", "below/secret", "..", ".", "below/../link"
    for name in (*outside, "no-such-file", "a\0b", ""):
        answer = api.get(f"/runs/{run_id}/checkpoints/latest/download", params={"file": name})
        assert answer.status_code in (404, 422), name
        assert "secret" not in answer.json()["detail"].replace(repr(name)[1:-1], "")


def test_files_that_are_gone_are_not_found(api, run_id, player, lease, settings):
    path = settings.artifact_root / player.checkpoint(lease, 10)
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    answer = api.get(f"/runs/{run_id}/checkpoints/latest/download")
    assert answer.problem("not_found") == 404


def test_a_pinned_checkpoint_is_not_deleted(api, run_id, player, lease):
    player.checkpoint(lease, 10)
    (listed,) = api.get(f"/runs/{run_id}/checkpoints").json()["data"]
    path = listed["links"]["self"]
    player.finish(lease, Reason.completed)
    assert api.post(f"{path}/pin").json()["pinned"] is True
    assert api.delete(path).problem("checkpoint_in_use") == 409
    assert api.post(f"{path}/unpin").json()["pinned"] is False
    answer = api.delete(path)
    assert (answer.status_code, answer.json()["state"]) == (202, "removing")
    assert api.get(f"{path}/download").problem("not_found") == 404


@pytest.mark.parametrize("tail", ["", "/download"])
def test_a_checkpoint_that_is_not_there_is_a_404(api, tail):
    assert api.get(f"/checkpoints/77{tail}").problem("not_found") == 404
    assert api.delete("/checkpoints/77").problem("not_found") == 404


def test_a_checkpoint_whose_disk_is_away_is_not_said_to_be_gone(api, run_id, player, lease):
    player.checkpoint(lease, 10)
    path = f"/runs/{run_id}/checkpoints/latest/download"
    assert api.get(path).status_code == 200
    aside = player.artifacts.with_name("aside")
    player.artifacts.rename(aside)
    answer = api.get(path)
    assert answer.problem("artifacts_away") == 503
    assert "may not be mounted" in answer.json()["detail"]
    aside.rename(player.artifacts)
    assert api.get(path).status_code == 200
