"""Datasets, recipes, presets, workers, queue, health, metrics and version."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from app import __version__
from app.api.telemetry import Telemetry
from app.lifecycle import Reason
from app.spec.installed import RECIPES
from app.store.records import Beat
from stoker import Client, Document, models
from tests.api.process import ApiProcess
from tests.api.support import SPEC, Player


def test_a_dataset_is_registered_and_then_inspected(api, player, settings):
    (settings.data_root / "waves.h5").touch()
    answer = api.post("/datasets", json={"name": "waves", "path": "waves.h5"})
    assert (answer.status_code, answer.json()["state"]) == (202, "inspecting")
    assert answer.headers["location"] == "/datasets/waves"
    waiting = api.start("GET", "/datasets/waves", params={"wait": 30})
    player.inspect("waves")
    dataset = waiting.result(30).json()
    assert (dataset["state"], dataset["samples"]) == ("ready", 1000)
    features = dataset["fields"]["features"]
    assert (features["shape"], features["dtype"]) == ([24, 3], "float32")
    assert features["mean"] is None  # as of an inspection that did not look
    names = [row["name"] for row in api.get("/datasets").json()["data"]]
    assert sorted(names) == ["waves", "weather"]
    assert api.get("/datasets/nowhere").problem("not_found") == 404


def test_an_absolute_path_below_the_data_root_is_taken(api, settings):
    (settings.data_root / "sub").mkdir()
    path = str(settings.data_root / "sub" / "waves.h5")
    Path(path).touch()
    answer = api.post("/datasets", json={"name": "waves", "path": path})
    assert answer.json()["path"] == "sub/waves.h5"


@pytest.mark.parametrize("path", ["../token", "/etc/passwd", "a/../../b", ".", "link/token"])
def test_a_path_out_of_the_data_root_is_refused(api, settings, path):
    (settings.data_root / "link").symlink_to(settings.home)
    answer = api.post("/datasets", json={"name": "waves", "path": path})
    assert answer.problem("path_outside_data_root") == 422


def test_a_file_that_is_not_there_leaves_no_dataset(api, settings):
    answer = api.post("/datasets", json={"name": "waves", "path": "waves.h5"})
    assert answer.problem("no_such_file") == 422
    assert api.get("/datasets/waves").problem("not_found") == 404


def test_a_name_that_no_file_can_have_is_not_there(api):
    answer = api.post("/datasets", json={"name": "long", "path": "x" * 300})
    assert answer.problem("no_such_file") == 422


@pytest.mark.parametrize("call", ["/datasets", "/checkpoints/import"])
def test_a_path_that_leads_nowhere_is_told_of_data_and_weights_alike(api, settings, call):
    (settings.data_root / "loop").symlink_to("loop")
    for path in ("loop", "waves.pt"):
        answer = api.post(call, json={"name": "waves", "path": path})
        assert answer.problem("no_such_file") == 422
        assert "so nothing was read" in answer.json()["detail"]


def test_where_the_data_root_is_on_another_host_its_worker_judges(api, settings):
    settings.data_root.rmdir()
    assert api.post("/datasets", json={"name": "waves", "path": "waves.h5"}).status_code == 202


def test_a_dataset_that_no_run_reads_is_forgotten_and_its_file_stays(api, store, settings):
    file = settings.data_root / "waves.h5"
    file.touch()
    api.post("/datasets", json={"name": "waves", "path": "waves.h5"})
    answer = api.delete("/datasets/waves")
    assert (answer.status_code, answer.content) == (204, b"")
    assert api.get("/datasets/waves").problem("not_found") == 404
    assert api.delete("/datasets/waves").problem("not_found") == 404
    assert file.exists()


@pytest.mark.parametrize("over", [False, True])
def test_a_dataset_that_a_run_names_is_not_forgotten(api, player, over):
    run_id = api.post("/runs", json=SPEC).json()["id"]
    if over:
        api.post(f"/runs/{run_id}/stop")
    assert api.delete("/datasets/weather").problem("dataset_in_use") == 409
    assert api.get("/datasets/weather").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {}, {"name": "Waves!", "path": "a"}, {"name": "../x", "path": "a"},
        {"name": "waves", "path": ""}, {"name": "waves", "path": 1}, [],
        {"name": "w", "path": "x" * 5000},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_registration_is_refused_with_the_place(api, body):
    answer = api.post("/datasets", json=body)
    assert answer.problem("invalid_request") == 422
    assert answer.json()["issues"]


def test_every_recipe_has_its_json_schema(api):
    recipes = {recipe["kind"]: recipe for recipe in api.get("/recipes").json()["data"]}
    assert recipes.keys() == {*RECIPES, "script"}
    assert "checkpoints" in recipes["script"]["parameters"]["properties"]
    assert "hidden_size" in recipes["sequence"]["parameters"]["properties"]
    assert recipes["sequence"]["metrics"] == {"mae": "min", "mse": "min", "rmse": "min"}
    assert recipes["sequence"]["loss_terms"] == ["loss"]
    assert recipes["board"]["metrics"] is None, "its stage has no default"


def test_presets_are_listed_with_the_users_own(api, settings):
    settings.presets_dir.mkdir()
    (settings.presets_dir / "mine.toml").write_text(
        'description = "Mine."\n[spec.training]\nepochs = 2\n'
    )
    presets = {preset["name"]: preset for preset in api.get("/presets").json()["data"]}
    assert {"cpu", "a100-80g", "mine"} <= presets.keys()
    assert (presets["mine"]["source"], presets["cpu"]["source"]) == ("user", "packaged")


def test_a_broken_preset_is_named_to_those_who_ask_for_it(api, player, settings):
    settings.presets_dir.mkdir()
    (settings.presets_dir / "mine.toml").write_text("description = ")
    assert api.post("/runs", json=SPEC).status_code == 201
    listed = api.get("/presets").json()
    assert "mine" not in [preset["name"] for preset in listed["data"]]
    ((name, message),) = [(broken["name"], broken["message"]) for broken in listed["broken"]]
    assert name == "mine"
    assert "mine.toml cannot be used" in message
    answer = api.post("/runs", json={**SPEC, "preset": "mine"})
    assert answer.problem("spec_rejected") == 422
    assert "mine.toml" in answer.json()["detail"]


def test_workers_and_queue_are_shown(api, player):
    ids = [api.post("/runs", json={**SPEC, "priority": p}).json()["id"] for p in (0, 5, 0)]
    queue = [run["id"] for run in api.get("/queue").json()["data"]]
    assert queue == [ids[1], ids[0], ids[2]]
    (worker,) = api.get("/workers").json()["data"]
    assert (worker["name"], worker["state"]) == ("player", "alive")
    assert worker["seen_at"].endswith("Z")


def pages(api, path, limit, **params):
    """All pages of a list, as the client asks for them."""
    found, cursor = [], None
    while True:
        answer = api.get(
            path, params={"limit": limit, **({"after": cursor} if cursor else {}), **params}
        )
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["data"])
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found


def test_the_queue_comes_in_pages_also_when_it_moves(api, player):
    ids = [api.post("/runs", json={**SPEC, "priority": p}).json()["id"] for p in (0, 5, 0, 9, 5)]
    order = [ids[3], ids[1], ids[4], ids[0], ids[2]]
    assert [[run["id"] for run in page] for page in pages(api, "/queue", 2)] == [
        order[:2], order[2:4], order[4:],
    ]  # fmt: skip
    first = api.get("/queue", params={"limit": 1}).json()
    assert player.claim().run_id == order[0]
    second = api.get("/queue", params={"limit": 1, "after": first["next_cursor"]}).json()
    assert [run["id"] for run in second["data"]] == [order[1]]
    for wrong in ("x", "999", "-1", "1e3"):
        assert api.get("/queue", params={"after": wrong}).problem("invalid_request") == 422


def test_workers_that_have_ended_are_shown_on_request(api, player, settings, store):
    second = Player(store, settings)
    store.workers.set_state(player.worker_id, "gone")
    assert [row["id"] for row in api.get("/workers").json()["data"]] == [second.worker_id]
    everybody = pages(api, "/workers", 1, all="true")
    assert [[row["id"] for row in page] for page in everybody] == [
        [second.worker_id], [player.worker_id],
    ]  # fmt: skip


def test_attempts_come_in_pages(api, player):
    run_id = api.post("/runs", json=SPEC).json()["id"]
    for _ in range(3):
        api.post(f"/runs/{run_id}/resume")
        lease = player.claim()
        api.post(f"/runs/{run_id}/pause")
        player.finish(lease)
    listed = pages(api, f"/runs/{run_id}/attempts", 2)
    assert [[row["number"] for row in page] for page in listed] == [[1, 2], [3]]


def test_checkpoints_come_in_pages_also_when_one_goes(api, player):
    run_id = api.post("/runs", json=SPEC).json()["id"]
    lease = player.claim()
    paths = {step: player.checkpoint(lease, step) for step in (10, 20, 30, 40)}
    path = f"/runs/{run_id}/checkpoints"
    assert [[row["step"] for row in page] for page in pages(api, path, 3)] == [[40, 30, 20], [10]]
    first = api.get(path, params={"limit": 2}).json()
    player.store.leases.beat(lease.token, Beat(removed_checkpoints=[paths[30]]))
    rest = api.get(path, params={"after": first["next_cursor"]}).json()
    assert [row["step"] for row in rest["data"]] == [20, 10]
    for wrong in ("x", "40", "1,2,3"):
        assert api.get(path, params={"after": wrong}).problem("invalid_request") == 422, wrong


def test_the_client_reads_lists_to_their_end(settings, store, player, monkeypatch):
    monkeypatch.setattr("stoker.calls.base.LARGEST_PAGE", 2)
    store.workers.set_state(Player(store, settings).worker_id, "gone")
    with ApiProcess(settings.home) as server:
        ids = [server.client.post("/runs", json=SPEC).json()["id"] for _ in range(5)]
        with Client(server.url, server.token) as client:
            assert [run["id"] for run in client.every(client.queue)] == ids
            assert [row["id"] for row in client.every(client.workers)] == [player.worker_id]
            assert len(list(client.every(client.workers, include_ended=True))) == 2


def test_what_the_client_answers_fits_the_models(settings, player):
    with ApiProcess(settings.home) as server, Client(server.url, server.token) as client:
        run_id = client.submit(SPEC)["id"]
        player.checkpoint(lease := player.claim(), 10)
        player.log(lease, "one line\n")
        answers: list[tuple[type[BaseModel], Document]] = [
            (models.Run, client.run(run_id)),
            (models.Page[models.Run], client.runs()),
            (models.Plan, client.plan(SPEC)),
            (models.RunDocuments, client.spec(run_id)),
            (models.EventPage, client.events(run_id)),
            (models.Page[models.Attempt], client.attempts(run_id)),
            (models.LogPiece, client.logs(run_id)),
            (models.Series, client.metrics(run_id)),
            (models.Page[models.Checkpoint], client.checkpoints(run_id)),
            (models.Job, client.export_checkpoint(1, "onnx")),
            (models.Page[models.Export], client.exports(run_id)),
            (models.BulkAnswer, client.bulk("stop", {"ids": [run_id, 999]})),
            (models.Dataset, client.dataset("weather")),
            (models.Page[models.Worker], client.workers()),
            (models.PresetPage, client.presets()),
            (models.RulePage, client.rules()),
            (models.Page[models.Recipe], client.recipes()),
            (models.Version, client.version()),
            (models.Health, client.health()),
            (models.Readiness, client.readiness()),
        ]
    for model, answer in answers:
        assert model.model_validate(answer).model_dump(mode="json") == answer, model


def test_version(api):
    answer = api.get("/version").json()
    assert answer["version"] == __version__
    assert len(answer["database_id"]) >= 32


def test_not_ready_without_a_worker_but_alive(api):
    assert api.get("/healthz").json() == {"status": "ok"}
    answer = api.get("/readyz")
    assert answer.problem("not_ready") == 503
    assert answer.json()["checks"]["database"] == "ok"
    assert "stoker worker" in answer.json()["checks"]["workers"]


def test_ready_with_a_worker(api, player):
    answer = api.get("/readyz")
    assert (answer.status_code, answer.json()["workers_alive"]) == (200, 1)


def test_not_ready_while_no_worker_has_the_artifact_root(api, player, store):
    def beat(away):
        store.workers.beat(player.worker_id, "alive", [], [], {"artifacts_away": away})

    beat("It is not mounted.")
    answer = api.get("/readyz")
    assert answer.problem("not_ready") == 503
    assert answer.json()["checks"]["artifacts"] == "It is not mounted."
    beat(None)
    assert api.get("/readyz").status_code == 200


def test_a_database_that_is_gone_is_said_so(api, player, settings):
    (settings.home / "stoker.db").write_bytes(b"this is no database" * 1000)
    assert api.get("/healthz").status_code == 200
    answer = api.get("/readyz")
    assert answer.problem("not_ready") == 503
    lines = api.get("/metrics").text.splitlines()
    assert "stoker_database_up 0.0" in lines
    assert any(line.startswith("stoker_http_request_duration_seconds_count") for line in lines)
    assert not any(line.startswith("stoker_runs") for line in lines), "what is not known is absent"


def test_readiness_is_told_to_all_and_its_checks_to_holders_of_a_token(api, settings, store):
    answer = api.get("/readyz", with_token=False)
    assert answer.problem("not_ready") == 503
    assert "checks" not in answer.json()
    assert "worker" not in answer.text
    Player(store, settings)
    assert api.get("/readyz", with_token=False).json() == {
        "status": "ready",
        "checks": None,
        "workers_alive": None,
    }
    wrong = {"Authorization": "Bearer of-another"}
    assert api.get("/readyz", headers=wrong).json()["checks"] is None
    assert api.get("/readyz").json()["checks"]["database"] == "ok"


def test_prometheus_metrics(api, player):
    for _ in range(2):
        api.post("/runs", json=SPEC)
    player.finish(player.claim(), Reason.completed)
    lines = api.get("/metrics").text.splitlines()
    assert 'stoker_runs{state="queued"} 1.0' in lines
    assert 'stoker_runs{state="running"} 0.0' in lines
    assert 'stoker_runs_finished_total{outcome="succeeded",reason="completed"} 1.0' in lines
    assert "stoker_database_up 1.0" in lines
    assert f'stoker_build_info{{version="{__version__}"}} 1.0' in lines
    created = 'stoker_http_request_duration_seconds_count{method="POST",route="/runs",status="201"}'
    assert f"{created} 2.0" in lines


def test_the_wait_in_the_queue_is_observed_once_a_run_starts(api, player):
    api.post("/runs", json=SPEC)
    telemetry = Telemetry(player.store)
    telemetry.exposition()
    player.claim()
    telemetry.exposition()
    telemetry.exposition()
    assert b"stoker_run_queue_wait_seconds_count 1.0" in telemetry.exposition()


def test_the_wait_of_a_run_that_is_over_within_a_beat_is_observed_too(api, player):
    telemetry = Telemetry(player.store)
    for _ in range(2):
        api.post("/runs", json=SPEC)
    player.finish(player.claim(), Reason.completed)
    telemetry.exposition()
    player.finish(player.claim(), Reason.completed)
    telemetry.exposition()
    telemetry.exposition()
    assert b"stoker_run_queue_wait_seconds_count 1.0" in telemetry.exposition()


def test_a_second_attempt_is_no_second_start(api, player):
    telemetry = Telemetry(player.store)
    run_id = api.post("/runs", json=SPEC).json()["id"]
    telemetry.exposition()
    lease = player.claim()
    api.post(f"/runs/{run_id}/pause")
    player.finish(lease)
    telemetry.exposition()
    api.post(f"/runs/{run_id}/resume")
    player.claim()
    telemetry.exposition()
    assert b"stoker_run_queue_wait_seconds_count 1.0" in telemetry.exposition()


def test_a_route_is_counted_by_its_template(api):
    api.get("/runs/123456")
    api.get("/no/such/path")
    text = api.get("/metrics").text
    assert 'route="/runs/{run_id}"' in text
    assert 'route="unmatched"' in text
    assert "123456" not in text
    assert "no/such" not in text
