"""The doctor's checks of recipes: both halves of each, and what the running service has of them."""

import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from app.cli.host.findings import DoctorFinding
from app.cli.host.machine import PRESENT
from app.cli.host.programs import ask
from stoker import ClientError

if TYPE_CHECKING:
    from stoker import Client

# PyTorch alone takes seconds to import, and ten times as many from a cold disk.
IMPORT_TIMEOUT_SECONDS = 120


def check_recipes() -> Iterator[DoctorFinding]:
    """Both halves of every installed recipe can be imported; one that cannot keeps nothing else
    from working.
    """
    from app.spec.installed import INSTALLED  # imports plugins: late

    trains = find_spec("torch") is not None  # else the worker extra's finding says so
    broken, usable = dict(INSTALLED.broken), []
    for kind, package in INSTALLED.packages.items():
        if trains and INSTALLED.is_plugin(kind) and (why := _why_it_cannot_train(kind)):
            broken[kind] = f"{package}: {why}"
        else:
            usable.append(f"{kind} {INSTALLED.versions[kind]}")
    for kind, why in broken.items():
        yield DoctorFinding(
            "recipes", "problem", f"the recipe {kind} cannot be used: {why}",
            "Mend or uninstall its package; every other recipe works.",
        )  # fmt: skip
    for kind, package in INSTALLED.packages.items():
        if INSTALLED.is_plugin(kind) and (imported := _imported_too_early(kind)):
            yield DoctorFinding(
                "recipes", "warning",
                f"the half of {kind} ({package}) that the API asks imports {imported}",
                "The half that the API imports must not: it slows the start of the API, or breaks "
                "the recipe where that is missing. Import it in the half that trains "
                "(docs/recipes.md).",
            )  # fmt: skip
    if usable:
        yield DoctorFinding("recipes", "ok", ", ".join(usable))


def _why_it_cannot_train(kind: str) -> str | None:
    """Asked in a child for each: the half that trains imports torch, and whatever else it likes."""
    code, said = _ask("worker.trainer.tools.task", kind)
    last = said.splitlines()[-1] if said else ""
    if (code, last) == (0, kind):
        return None
    if code == 1 and last:
        return last
    return f"the process that imported the half that trains ended with {code}. {last}".rstrip()


def _imported_too_early(kind: str) -> str | None:
    """What the first half imports and must not, each with its place; None where it is nothing."""
    code, said = _ask("app.cli.host.first_half", kind)
    return ", and ".join(said.splitlines()) or None if code == 0 else None


def _ask(module: str, kind: str) -> tuple[int, str]:
    return ask([sys.executable, "-P", "-m", module, kind], IMPORT_TIMEOUT_SECONDS)


def ask_of_recipes(client: "Client") -> list[DoctorFinding]:
    """Whether API and workers, here, have the versions that are installed here; a service that does
    not answer is told of elsewhere.
    """
    with suppress(ClientError):
        return list(_check_versions(client))
    return []


def _check_versions(client: "Client") -> Iterator[DoctorFinding]:
    from app.spec.installed import INSTALLED  # imports plugins: as above

    known = {"the API": {one["kind"]: one["version"] for one in client.recipes()["data"]}}
    for worker in client.every(client.workers):
        if worker["state"] in PRESENT and worker["facts"].get("host") == socket.gethostname():
            known[f"worker {worker['name']}"] = worker["facts"].get("recipes", {})
    plugins = {kind: one for kind, one in INSTALLED.versions.items() if INSTALLED.is_plugin(kind)}
    for who, has in known.items():
        if told := ", ".join(_differences(plugins, has)):
            yield DoctorFinding(
                "recipes", "warning", f"{who} has {told}",
                "it began before that was installed, or runs in another environment: `stoker "
                "down`, then `stoker up --detach`",
            )  # fmt: skip


def _differences(installed: Mapping[str, str], known: Mapping[str, str]) -> Iterator[str]:
    for kind, version in installed.items():
        if kind not in known:
            yield f"no {kind}, of which {version} is installed here"
        elif known[kind] != version:
            yield f"{kind} {known[kind]}, and {version} is installed here"
