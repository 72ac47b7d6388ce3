"""Takes commands of this host's own user: `stoker run` speaks to the agent over a Unix socket.

The folder is 0700, the socket 0600, and the kernel says who is at the other end: nobody but the
user whose agent this is. One JSON object a connection: {"request", "environment", "code",
"shell", "stdin", "database_id"}, and the answer {"run": id} or {"problem": {…}}. It has threads of
its own: nothing here may hold up the agent's loop.
"""

import json
import os
import secrets
import socket
import socketserver
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from app.codestate import KEY
from app.durable import socket_address
from app.errors import InvalidRequest, OtherService, StokerError
from app.planning.requirements import Owner
from app.service.scripts import Admission, among, new_script_run, plan_script
from app.settings import Settings
from app.spec.script import SubmittedCode, is_script
from app.store.identity import this_process
from app.store.store import Store
from worker.agent.home_id import home_id
from worker.kept import NO_ENVIRONMENT, forget, keep

log = structlog.get_logger("stoker.worker")

Document = dict[str, Any]
MOST_BYTES = 8 * 2**20
SECONDS = 10.0
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class AdmissionSocket:
    """Listens while the agent lives."""

    def __init__(self, settings: Settings, store: Store, number: int) -> None:
        """`number`: of this agent among those of the home. OSError."""
        settings.sockets_dir.mkdir(mode=0o700, exist_ok=True)
        settings.sockets_dir.chmod(0o700)
        self.path = settings.sockets_dir / f"agent-{number}.sock"
        self.path.unlink(missing_ok=True)
        handler = _handler(lambda asked: admit(settings, store, asked))
        before = os.umask(0o177)
        try:
            self._server = socketserver.ThreadingUnixStreamServer(
                socket_address(self.path), handler
            )
        finally:
            os.umask(before)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.5,), name="admission", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.path.unlink(missing_ok=True)


def admit(settings: Settings, store: Store, asked: Document) -> int:
    """Plan and queue a command; the run's id. StokerError when it is refused."""
    _require_database(asked.get("database_id"), store)
    request = asked.get("request")
    if not isinstance(request, dict) or not is_script(request):
        raise InvalidRequest("Only scripts are taken here: recipe.kind has to be script.")
    recipe, kept = {**request["recipe"]}, None
    _require_copy(recipe, settings)
    env = recipe.get("env")
    environment = _environment_of(recipe, asked.get("environment"))
    if environment is not None:
        kept = settings.environments_dir / f"{_key_of(recipe, settings)}.json"
        recipe["environment"] = kept.stem
    code = asked.get("code")
    owner = Owner(this_process().host, os.getuid(), home_id(settings.home))
    admission = Admission(
        owner,
        code=None if code is None else checked_code(code),
        env=tuple(env or ()) if environment is not None else (),
        gpus_of_shell=_gpus_of(asked.get("shell")),
    )
    admission = among(admission, store.workers.list(alive_only=True), owner)
    plan = plan_script({**request, "recipe": recipe}, settings, store.profiles, admission)
    new = new_script_run(plan, admission=admission)
    if kept is None or environment is None:
        return store.runs.create(new)[0].id
    keep(kept, environment, asked)
    try:
        return store.runs.create(new)[0].id
    except Exception:
        forget(kept)
        raise


def _gpus_of(shell: Any) -> str | None:
    gpus = shell.get("gpus") if isinstance(shell, dict) else None
    return gpus if isinstance(gpus, str) else None


def _require_database(database_id: Any, store: Store) -> None:
    """Refuses a command whose sender looks at runs of another database. OtherService."""
    if database_id is not None and database_id != store.database.id:
        raise OtherService("The worker of this home writes into the database of another service.")


def checked_code(code: Any) -> Document:
    """What git said of the code, as `app.codestate` tells it. InvalidRequest."""
    try:
        known = SubmittedCode.model_validate(code)
        return known.model_dump(exclude=None if known.sources else {"sources"})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "it"
        raise InvalidRequest(f"The code of a command: {where}: {first['msg']}.") from None


def _environment_of(recipe: Document, given: Any) -> Document | None:
    """Of a free command: `env` of its recipe, which goes no further, on top of what was given."""
    if recipe.get("command") is not None:
        return None
    env = recipe.pop("env", {})
    if not isinstance(env, dict):
        raise InvalidRequest(NO_ENVIRONMENT)
    if not isinstance(given, dict):
        return env or None
    return {**given, **env}


def _key_of(recipe: Document, settings: Settings) -> str:
    """Under which key it is kept what came with the command: that of the copy of its code, where
    it runs in one. InvalidRequest for the copy of another run.
    """
    cwd = Path(str(recipe.get("cwd")))
    if not cwd.is_relative_to(settings.snapshots_dir):
        return secrets.token_hex(16)
    key = next(iter(cwd.relative_to(settings.snapshots_dir).parts), "")
    is_new = KEY.fullmatch(key) is not None and recipe.get("snapshot")
    if not is_new or (settings.environments_dir / f"{key}.json").exists():
        raise InvalidRequest(
            f"{cwd} is the copy of the code of another run, and is removed with it. Go to a folder "
            "of your own, or start that run again: stoker restart RUN"
        )
    return key


def _require_copy(recipe: Document, settings: Settings) -> None:
    """InvalidRequest for one that says it runs in a copy, and does not."""
    is_copy = Path(str(recipe.get("cwd"))).is_relative_to(settings.snapshots_dir)
    if recipe.get("snapshot") and not is_copy:
        raise InvalidRequest(
            "recipe.snapshot says that the command runs in a copy of its code, and "
            f"{recipe.get('cwd')} is none. `stoker run --snapshot` makes that copy; or leave "
            "snapshot out."
        )


def _handler(take: Callable[[Document], int]) -> type[socketserver.StreamRequestHandler]:
    class CommandHandler(socketserver.StreamRequestHandler):
        timeout = SECONDS

        def handle(self) -> None:
            with suppress(OSError):  # whoever asked has gone
                answer = self._answer()
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        def _answer(self) -> Document:
            found = self.request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            _, uid, _ = CREDENTIALS.unpack(found)
            # Read in any case: who is refused in mid-sentence sees a broken pipe, not the answer.
            line = self.rfile.readline(MOST_BYTES + 1)
            if uid != os.getuid():
                return _problem(f"This agent takes commands of user {os.getuid()}, not of {uid}.")
            if len(line) > MOST_BYTES:
                return _problem(
                    f"A command has {MOST_BYTES:,} bytes at most, with its environment."
                )
            try:
                asked = json.loads(line)
                return {"run": take(asked if isinstance(asked, dict) else {})}
            except StokerError as error:
                known = {"detail": error.detail, "code": error.problem_code}
                return {"problem": {**known, **error.extensions}}
            except (ValueError, RecursionError) as error:
                return _problem(f"That is no JSON object: {error}.")
            except Exception as error:
                log.exception("a command could not be taken")
                return _problem(f"The agent could not take the command: {error}.")

    return CommandHandler


def _problem(detail: str) -> Document:
    return {"problem": {"detail": detail}}
