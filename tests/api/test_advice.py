"""Every refusal says what to do now: the step that a reader of `detail` can take."""

import pytest

from app.lifecycle import Reason
from tests.api.support import SPEC

CHECKPOINTS = "/runs/1/checkpoints"
REPLACED = {"patch_ops": [{"op": "replace", "path": "", "value": 3}]}


def on(dataset):
    return {**SPEC, "data": {"dataset": dataset}}


@pytest.fixture
def ended(api, player):
    """Run 1 has stopped, and has saved nothing."""
    api.post("/runs", json=SPEC)
    lease = player.claim()
    api.post("/runs/1/stop")
    player.finish(lease, Reason.interrupted)


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "advice"),
    [
        ("GET", "/runs/99", {}, 404, "`stoker ls` shows the runs"),
        ("POST", "/runs/99/stop", {}, 404, "`stoker ls` shows the runs"),
        ("GET", "/checkpoints/99", {}, 404, "`stoker checkpoints RUN` shows"),
        ("GET", "/datasets/none", {}, 404, "`stoker data ls` shows those there are"),
        ("POST", "/runs/1/pause", {}, 409, "Possible now: restart, delete (POST /runs/1/restart)."),
        ("POST", "/runs/1/resume", {}, 409, "Run 1 cannot be resumed: it has stopped."),
        ("GET", f"{CHECKPOINTS}/latest/download", {}, 404, "`stoker show 1` says how far it came"),
        ("GET", f"{CHECKPOINTS}/best/download", {}, 404, "none was saved; `stoker show"),
        ("GET", "/runs?limit=2&limit=3", {}, 422, "Give it once"),
        ("GET", "/queue?after=99", {}, 422, "give `next_cursor` of the page before"),
        ("POST", "/runs", {"content": b"{"}, 422, "Correct it there, and try again"),
        ("POST", "/runs/1/restart", {"json": REPLACED}, 422, "with at least recipe and data"),
        ("GET", "/runs", {"headers": {"Authorization": "Bearer x"}}, 401, "`stoker token create"),
        ("GET", "/runs", {"headers": {"Origin": "http://x.org"}}, 403, "without the header Origin"),
        ("POST", "/runs", {"json": on("wether")}, 422, "Did you mean weather?"),
        ("POST", "/runs", {"json": on("moon")}, 422, "`stoker data ls` shows those there are"),
        ("POST", "/runs", {"json": {**SPEC, "preset": "h20"}}, 422, "`stoker presets` lists them"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("ended")
def test_a_refusal_says_what_to_do(api, method, path, sent, status, advice):
    headers = {"content-type": "application/json"} if "content" in sent else None
    answer = api.request(method, path, **{"headers": headers, **sent})
    assert answer.status_code == status, answer.text
    said = answer.json()
    issues = [f"{issue['message']} {issue['why']}" for issue in said.get("issues") or ()]
    assert advice in " ".join([said["detail"], *issues])
