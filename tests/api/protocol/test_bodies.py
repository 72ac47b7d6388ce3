"""Bodies: all that the one reader refuses is refused, and large ones are read in a thread."""

import threading

import pytest

from app.api import bodies
from app.errors import InvalidRequest
from app.spec import reading
from tests.spec.documents import BAD_IN_SHORT, GOOD


@pytest.mark.parametrize(("kind", "body", "words"), BAD_IN_SHORT.values(), ids=BAD_IN_SHORT.keys())
def test_what_the_reader_refuses_is_refused(api, kind, body, words):
    if not body:
        return  # which is said before it is read
    answer = api.post("/runs", content=body, headers={"Content-Type": f"application/{kind}"})
    assert answer.problem(f"invalid_{kind}") == 422
    assert words in answer.json()["detail"]


@pytest.mark.parametrize(("kind", "body", "value"), GOOD.values(), ids=GOOD.keys())
def test_what_the_reader_takes_is_judged_as_a_spec(api, kind, body, value):
    answer = api.post("/runs", content=body, headers={"Content-Type": f"application/{kind}"})
    unknown = {issue["loc"][0] for issue in answer.json()["issues"]}
    assert unknown >= value.keys()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/runs", "application/json"),
        ("/runs", "application/yaml"),
        ("/datasets", "application/json"),
    ],
)
def test_large_bodies_are_read_beside_the_event_loop(api, monkeypatch, path, kind):
    readers = []

    def read(body):
        readers.append(threading.current_thread())
        raise InvalidRequest("seen")

    monkeypatch.setattr(reading, "read_json", read)
    monkeypatch.setattr(reading, "read_yaml", read)
    body = b"{}" + b" " * bodies.SMALL_JSON_BYTES
    assert api.post(path, content=body, headers={"Content-Type": kind}).status_code == 422
    assert readers
    assert api.loop_thread not in readers
