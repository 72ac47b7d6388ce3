"""The doctor's checks: each looks at one thing and returns what it found."""

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from app import __version__
from app.cli.db.storage import check_artifacts, check_database
from app.cli.host.findings import DoctorFinding
from app.cli.host.home_lock import holder_of
from app.cli.host.machine import ask_without_metrics
from app.cli.host.notifying import check_notifications
from app.cli.host.ports import why_not_bindable
from app.cli.host.programs import ask
from app.cli.host.recipe_checks import ask_of_recipes, check_recipes
from app.cli.output import size
from app.guard.presets.catalog import load_catalog
from app.installing import pip_install
from stoker import ClientError, Problem, find_token, read_api_file

if TYPE_CHECKING:
    from app.settings import Settings
    from stoker import Client

NOT_RUNNING = DoctorFinding("service", "warning", "it is not running", "to start it: stoker up")
LEAST_FREE_BYTES = 5 * 2**30
DRIVER_TIMEOUT_SECONDS = 20
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
WORKER_PACKAGES = ("torch", "numpy", "h5py", "safetensors", "nvidia-ml-py")


def run_machine_checks() -> list[DoctorFinding]:
    """What can be said of the machine without any settings."""
    checks = (check_environment, check_worker_extra, check_driver, check_pages, check_recipes)
    return [finding for check in checks for finding in check()]


def run_checks(settings: "Settings") -> list[DoctorFinding]:
    """Every finding, in the order in which a person would look."""
    checks: tuple[Callable[[Settings], Iterable[DoctorFinding]], ...] = (
        check_home,
        check_token,
        check_presets,
        check_guard,
        check_disk,
        check_caches,
        check_database,
        check_artifacts,
        check_service,
        check_ports,
        check_notifications,
    )
    return run_machine_checks() + [finding for check in checks for finding in check(settings)]


def check_environment() -> Iterator[DoctorFinding]:
    python = ".".join(str(part) for part in sys.version_info[:3])
    yield DoctorFinding(
        "environment", "ok", f"Stoker {__version__}, Python {python}, {sys.executable}"
    )


def check_worker_extra() -> Iterator[DoctorFinding]:
    found, missing = [], []
    for name in WORKER_PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield DoctorFinding(
            "worker extra",
            "warning",
            f"missing: {', '.join(missing)}",
            f"to train on this machine: {pip_install('stoker[worker]')}; an API alone needs none",
        )
    else:
        yield DoctorFinding("worker extra", "ok", ", ".join(found))


def check_driver() -> Iterator[DoctorFinding]:
    """The GPUs as the driver's own program sees them, and whether torch can use them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
        if devices:
            yield DoctorFinding(
                "driver",
                "problem",
                f"{len(devices)} GPU devices are there, but no nvidia-smi",
                "install the user-space part of the NVIDIA driver in the kernel module's version",
            )
        else:
            yield DoctorFinding(
                "driver", "ok", "no NVIDIA GPU on this machine: runs train on the CPU"
            )
        return
    query = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    code, said = ask(query, DRIVER_TIMEOUT_SECONDS)
    if code != 0:
        yield DoctorFinding(
            "driver",
            "problem",
            f"nvidia-smi does not answer: {said or 'no output'}",
            "the driver and its kernel module may differ since an update: reboot, or reload it",
        )
        return
    for line in said.splitlines():
        yield DoctorFinding("driver", "ok", line)
    yield from _check_torch_sees_gpus()


def check_pages() -> Iterator[DoctorFinding]:
    """Whether the kernel gives a trainer pages of 2 MiB; some have no such thing to say."""
    try:
        chosen = HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return
    if chosen == "never":
        yield DoctorFinding(
            "pages",
            "warning",
            "transparent huge pages are off: training on the CPU may take half as long again",
            f"echo madvise | sudo tee {HUGE_PAGES}",
        )
    else:
        yield DoctorFinding("pages", "ok", f"transparent huge pages: {chosen}")


def _check_torch_sees_gpus() -> Iterator[DoctorFinding]:
    """Asked in a child: torch takes seconds to import, and a wedged driver would hang it."""
    probe = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.device_count())"
    code, said = ask([sys.executable, "-c", probe], DRIVER_TIMEOUT_SECONDS)
    if code != 0:
        return  # torch is not installed: the worker extra's finding says so
    torch_version, cuda, count = said.splitlines()[-1].split()
    if int(count) > 0:
        yield DoctorFinding("torch", "ok", f"{torch_version} with CUDA {cuda} sees {count} GPUs")
    else:
        yield DoctorFinding(
            "torch",
            "problem",
            f"{torch_version} (CUDA {cuda}) sees no GPU although the driver does",
            "install a CUDA build of torch that this driver supports "
            "(pytorch.org/get-started), or look at CUDA_VISIBLE_DEVICES",
        )


def check_home(settings: "Settings") -> Iterator[DoctorFinding]:
    for name, path in (
        ("home", settings.home),
        ("data root", settings.data_root),
        ("artifacts", settings.artifact_root),
    ):
        existing = _existing(path)
        if not os.access(existing, os.W_OK | os.X_OK):
            yield DoctorFinding(
                name,
                "problem",
                f"{path} cannot be written by this user",
                f"chown it, or set STOKER_HOME to a folder of yours (blocked at {existing})",
            )
        else:
            yield DoctorFinding(
                name, "ok", str(path) + ("" if path.exists() else " (not there yet)")
            )


def check_token(settings: "Settings") -> Iterator[DoctorFinding]:
    path = settings.token_path
    if settings.auth == "none":
        yield DoctorFinding("token", "warning", "AUTH=none: every local user can start runs")
        return
    if not path.exists():
        yield DoctorFinding("token", "ok", f"{path} will be written at the first start")
        return
    status = path.stat()
    if stat.S_IMODE(status.st_mode) & 0o077:
        yield DoctorFinding(
            "token",
            "problem",
            f"{path} can be read by other users ({stat.filemode(status.st_mode)})",
            f"chmod 600 {path}, then `stoker token create` and `revoke` if others could log in",
        )
    elif not os.access(path, os.R_OK):
        yield DoctorFinding("token", "problem", f"{path} belongs to another user", "use its owner")
    else:
        yield DoctorFinding("token", "ok", f"{path} ({stat.filemode(status.st_mode)})")


def check_presets(settings: "Settings") -> Iterator[DoctorFinding]:
    catalog = load_catalog(settings.presets_dir)
    for sentence in catalog.broken.values():
        yield DoctorFinding("presets", "problem", sentence, "fix the file or remove it")
    if not catalog.broken:
        yield DoctorFinding("presets", "ok", ", ".join(catalog.names))


def check_guard(settings: "Settings") -> Iterator[DoctorFinding]:
    if settings.guard == "warn":
        found = "STOKER_GUARD=warn: specs that would run slowly only get a warning"
        yield DoctorFinding("guard", "warning", found, "to have them refused: STOKER_GUARD=enforce")
    else:
        yield DoctorFinding("guard", "ok", "specs that would run slowly or wrongly are refused")


def check_disk(settings: "Settings") -> Iterator[DoctorFinding]:
    usage = shutil.disk_usage(_existing(settings.artifact_root))
    found = f"{usage.free / 2**30:.1f} GiB of {usage.total / 2**30:.0f} free for artifacts"
    if usage.free < LEAST_FREE_BYTES:
        yield DoctorFinding(
            "disk",
            "warning",
            found,
            "`stoker db prune --older-than 30d` removes old runs; STOKER_ARTIFACT_ROOT moves them",
        )
    else:
        yield DoctorFinding("disk", "ok", found)


def check_caches(settings: "Settings") -> Iterator[DoctorFinding]:
    """What runs have compiled, and do not compile again."""
    folder = settings.home / "caches"
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # a worker that starts removes what is old
            total += path.stat().st_size
    if total:
        yield DoctorFinding("caches", "ok", f"{size(total)} of compiled steps in {folder}")


def check_service(settings: "Settings") -> Iterator[DoctorFinding]:
    from stoker import Client  # httpx: late, as in connect

    written = read_api_file(settings.home)
    if written is None:
        yield NOT_RUNNING
        return
    with Client(written["url"], find_token(settings.home)) as client:
        is_ready, is_alive = client.ready(), client.alive()
        refusal = _token_refusal(client) if is_alive else None
        lacking = ask_without_metrics(client) if is_ready else []
        of_recipes = ask_of_recipes(client) if is_ready else []
    if is_ready:
        yield DoctorFinding("service", "ok", f"ready at {written['url']}")
    elif is_alive:
        yield DoctorFinding(
            "service",
            "problem",
            f"the API at {written['url']} is not ready",
            "its /readyz says which part is missing; `stoker workers` shows whether one is alive",
        )
    else:
        yield NOT_RUNNING
    if refusal is not None:
        yield DoctorFinding(
            "token",
            "problem",
            f"the API at {written['url']} refuses it: {refusal}",
            "export STOKER_TOKEN=$(stoker token create NAME), or restart the service, which "
            "writes a new one into its home",
        )
    yield from of_recipes
    for why in lacking:
        yield DoctorFinding("metrics", "warning", why)


def _token_refusal(client: "Client") -> str | None:
    """Why a running API does not take the token of this command line; None when it does."""
    try:
        client.version()
    except Problem as problem:
        return problem.detail if problem.status == HTTPStatus.UNAUTHORIZED else None
    except ClientError:
        return None  # it went away meanwhile; the service's finding says how it is
    return None


def check_ports(settings: "Settings") -> Iterator[DoctorFinding]:
    """Whether the ports can be had; those that our own service has are well."""
    if holder_of(settings) is not None:
        yield DoctorFinding("ports", "ok", "in use by this service")
        return
    for name, host, port in (
        ("PORT", settings.host, settings.port),
        ("EXPORTER_PORT", settings.exporter_host, settings.exporter_port),
    ):
        taken = why_not_bindable(host, port)
        if taken is None:
            yield DoctorFinding("ports", "ok", f"{host}:{port} is free for {name}")
        else:
            yield DoctorFinding(
                "ports",
                "problem",
                f"{host}:{port} for {name}: {taken}",
                f"end what uses it, or set STOKER_{name} to another one, or to 0 for a free one",
            )


def _existing(path: Path) -> Path:
    """The path, or its nearest ancestor that is there."""
    while not path.exists():
        path = path.parent
    return path
