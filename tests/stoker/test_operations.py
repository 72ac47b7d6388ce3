"""The client beside the OpenAPI document: a method an operation, with all that it can be told.

Each method is called with every argument it has, and what arrives at a server is compared with what
the document says of the operation.
"""

import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from app.api.main import create_app
from app.settings import load_settings
from stoker import Client

# A method is called as its operation without list_, get_ or read_; but for these.
METHODS = {
    "create_run": "submit",
    "change_run": "update",
    "delete_run": "delete",
    "restart_run": "restart",
    "get_run_spec": "spec",
}
# An operation that answers with something else when it is told so has a method for that as well.
OTHER_ANSWERS = {
    "create_run": "plan",
    "restart_run": "plan_restart",
    "get_metrics": "metrics_csv",
    "list_events": "watch",
}
# What is made of other calls.
CONVENIENCE = {
    *("every", "issues", "download", "save_export", "chosen_checkpoint"),
    *("ready", "alive", "lacks_only_artifacts", "close"),
}
# What no method sends: where a stream of the log goes on, `after` says as well.
UNSENT = {"read_logs": {"Last-Event-ID"}}
# What a method does with an argument beside sending it.
NOT_SENT = {"patience_seconds"}
HEADERS = ("Idempotency-Key", "If-Match", "Last-Event-ID")

ARGUMENTS: dict[str, Any] = {
    "action": "stop",
    "after": 3,
    "attempt": 2,
    "before": 8,
    "changes": {"name": "n"},
    "checkpoint_id": 5,
    "export_id": 12,
    "file": "model.safetensors",
    "force": True,
    "format_": "onnx",
    "from_": "best",
    "idempotency_key": "key",
    "job_id": 13,
    "include_ended": True,
    "key": "state_dict",
    "kind": "warning",
    "label": "team",
    "labels": {"team": "weather"},
    "limit": 4,
    "lineage": True,
    "max_points": 9,
    "name": "weather",
    "names": ["loss"],
    "notes": "from elsewhere",
    "parent_id": 6,
    "patch": {"training": {"epochs": 2}},
    "patch_from": "diagnosis",
    "patch_ops": [{"op": "remove", "path": "/name"}],
    "path": "weather.h5",
    "patience_seconds": 0.5,
    "probe_seconds": 8.0,
    "q": "text",
    "recipe": "sequence",
    "rename": {"module.": ""},
    "request": {"recipe": {}},
    "run_id": 7,
    "selection": {"all": True},
    "state": "failed",
    "to": "first",
    "status": ["failed", "stopped"],
    "dataset": "tides",
    "created_after": "2026-03-01T12:00:00Z",
    "created_before": "2026-03-02T12:00:00Z",
    "created_by": "ada",
    "version": 11,
    "lose_progress": True,
    "wait_seconds": 1.5,
    "which": "best",
}


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


@pytest.fixture(scope="module")
def document(tmp_path_factory) -> dict[str, Any]:
    return create_app(load_settings(home=tmp_path_factory.mktemp("home"))).openapi()


@pytest.fixture(scope="module")
def operations(document) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """By operation id: HTTP method, path and what the document says."""
    return {
        operation["operationId"]: (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method != "head"
    }


class Server:
    """Takes any request and keeps it; answers with an empty page, or a stream that is over."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        kept = self.requests

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                url = urlsplit(self.path)
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                headers = {name: self.headers[name] for name in HEADERS if self.headers[name]}
                kept.append(Request(self.command, url.path, parse_qs(url.query), headers, body))
                streams = self.headers["Accept"] == "text/event-stream"
                text = (
                    "event: end\ndata: {}\n\n" if streams else '{"data": [], "next_cursor": null}'
                )
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 - as http.server has it

            def log_message(self, *arguments: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def call() -> Iterator[Callable[..., Request]]:
    """Call a method of a client; the one request that this made."""
    server = Server()

    def ask(name: str, arguments: dict[str, Any]) -> Request:
        with Client(server.url) as client:
            answer = getattr(client, name)(**arguments)
            if isinstance(answer, Iterator):
                list(answer)
        (request,) = server.requests
        server.requests.clear()
        return request

    yield ask
    server.close()


def method_of(operation_id: str) -> str:
    return METHODS.get(operation_id, re.sub("^(list|get|read)_", "", operation_id))


def methods_of(operation_id: str) -> list[str]:
    """The method of an operation, and the one for its other answer."""
    names = (method_of(operation_id), OTHER_ANSWERS.get(operation_id))
    return [name for name in names if name is not None]


def parameters_of(method: str) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(getattr(Client, method)).parameters)
    del parameters["self"]
    return parameters


def arguments_of(method: str) -> dict[str, Any]:
    return {name: ARGUMENTS[name] for name in parameters_of(method)}


def said_in(request: Request, path: str) -> set[str]:
    """The names of what a request says in its path, query and headers."""
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
    found = re.fullmatch(pattern, request.path)
    assert found is not None, f"{request.path} is not {path}"
    return {*found.groupdict(), *request.query, *request.headers}


def test_every_operation_has_a_method_and_every_method_an_operation(operations):
    named = {name for operation_id in operations for name in methods_of(operation_id)}
    public = {name for name in dir(Client) if not name.startswith("_")}
    assert public == named | CONVENIENCE
    mains = [method_of(operation_id) for operation_id in operations]
    assert len(mains) == len(set(mains))


def test_every_parameter_of_an_operation_can_be_said(operations, call):
    wrong = {}
    for operation_id, (method, path, operation) in operations.items():
        said: set[str] = set()
        for name in methods_of(operation_id):
            request = call(name, arguments_of(name))
            assert request.method == method, name
            said |= said_in(request, path)
        there = {parameter["name"] for parameter in operation.get("parameters", [])}
        if said != there - UNSENT.get(operation_id, set()):
            wrong[operation_id] = {"not said": there - said, "no parameter": said - there}
    assert not wrong


def test_every_field_of_a_body_can_be_said(document, operations, call):
    for operation_id, (_, _, operation) in operations.items():
        request = call(method_of(operation_id), arguments_of(method_of(operation_id)))
        assert (request.body is None) == ("requestBody" not in operation), operation_id
        if request.body in (ARGUMENTS["request"], ARGUMENTS["changes"], ARGUMENTS["selection"]):
            continue  # it is given as a whole
        if request.body is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            (name,) = re.findall(r"schemas/(\w+)", str(schema))
            fields = document["components"]["schemas"][name]["properties"]
            assert set(request.body) == set(fields), operation_id


def test_no_argument_is_taken_and_ignored(operations, call):
    ignored = []
    for operation_id in operations:
        for name in methods_of(operation_id):
            arguments = arguments_of(name)
            whole = call(name, arguments)
            for argument, parameter in parameters_of(name).items():
                if parameter.default is parameter.empty or argument in NOT_SENT:
                    continue
                rest = {key: value for key, value in arguments.items() if key != argument}
                if call(name, rest) == whole:
                    ignored.append(f"{name}({argument})")
    assert not ignored
