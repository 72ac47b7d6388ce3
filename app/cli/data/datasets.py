"""`stoker data`: a sample, a look into a file, registering and forgetting it, the list."""

import errno
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.arguments import parse_seconds
from app.cli.connect import connect, read_settings
from app.cli.data import cache
from app.cli.data.conversion import convert
from app.cli.data.worker_module import run_worker_module
from app.cli.failures import CommandFailed, ExitCode, StokerGroup
from app.cli.output import JsonOption, ago, number, print_facts, print_json, print_table, size
from app.errors import NotFound
from app.samples import SAMPLES
from stoker import ServiceUnreachable

if TYPE_CHECKING:
    from app.settings import Settings

Document = dict[str, Any]

app = typer.Typer(
    cls=StokerGroup, no_args_is_help=True, help="Sample, inspect, convert and register datasets."
)
app.command()(convert)
app.add_typer(cache.app, name="cache")

# What the service takes as a name, for it stands in addresses and specs.
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
REGISTRATION_WAIT_SECONDS = 120.0
# Classes of an array whose samples are counted in its line.
MOST_CLASSES = 10


@app.command()
def sample(
    name: Annotated[
        str,
        typer.Argument(
            help="weather: hourly measurements of a TMY3 station. bars: the same in bars of 1 to "
            "24 hours. board: positions of chess games. panel: prices of 20 stocks since 1990. "
            "molecules: 4,991 of them, and 1,282 with their solubility."
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Write the file again, even if it is there.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Prepare a sample dataset to try Stoker with, and register it."""
    if name not in SAMPLES:
        raise CommandFailed(f"There is no sample {name!r}; the samples are: {', '.join(SAMPLES)}.")
    settings = read_settings()
    made = SAMPLES[name]
    path = settings.data_root / made.path
    if force or not path.exists():
        settings.data_root.mkdir(parents=True, exist_ok=True)
        run_worker_module(made.module, str(path))
    found = {
        dataset: _register_if_service_runs(settings, dataset, settings.data_root / file)
        for dataset, file in made.datasets.items()
    }
    if as_json:
        first, *others = found.values()
        more = {"datasets": [first, *others]} if others else {}
        print_json({"name": name, "path": str(path), "dataset": first, **more})
        return
    files = path.iterdir() if path.is_dir() else [path]
    typer.echo(f"{path} is ready, {size(sum(file.stat().st_size for file in files))}.")
    for dataset, outcome in found.items():
        if outcome is None:
            told = f"stoker data register {dataset} {made.datasets[dataset]}"
            typer.echo(f"No service is running. When one is: {told}")
        else:
            _say_outcome(outcome)


def _register_if_service_runs(settings: "Settings", name: str, path: Path) -> Document | None:
    """The dataset as the service has it; it refuses a file outside its own DATA_ROOT."""
    from stoker import Client  # httpx: late, as in connect

    try:
        with Client(home=settings.home) as client:
            return client.register_dataset(
                name, str(path.resolve()), wait_seconds=REGISTRATION_WAIT_SECONDS
            )
    except ServiceUnreachable:
        return None


@app.command()
def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            help="A data file, a folder of Arrow files or a registered dataset; a relative path is "
            "looked up here, then in DATA_ROOT."
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show what is in a data file, without registering it."""
    path = _found(path) or _file_of(path)
    document = json.loads(run_worker_module("worker.trainer.tools.inspect", str(path), "--json"))
    problems = document.get("problems") or []
    if as_json:
        print_json(document)
    else:
        _print_inspection(path, document)
    if problems:
        raise typer.Exit(ExitCode.refused)


def _found(path: Path) -> Path | None:
    """What lies there, seen from where one is, else from DATA_ROOT; None: there is nothing."""
    for place in (path, read_settings().data_root / path):
        try:
            place.stat()
        except FileNotFoundError:
            if place.is_symlink():
                raise CommandFailed(
                    f"{place} is a link to {place.readlink()}, which is not there."
                ) from None
        except NotADirectoryError:
            continue
        except OSError as error:
            in_circle = "its links lead in a circle; point them to the data"
            why = in_circle if error.errno == errno.ELOOP else error.strerror
            raise CommandFailed(f"{place} cannot be read: {why}.") from None
        else:
            return place
    return None


def _file_of(name: Path) -> Path:
    """What a registered dataset of that name has; CommandFailed where nothing is called so."""
    from stoker import Problem  # httpx: late, as in connect

    settings = read_settings()
    try:
        with connect() as client:
            given = client.dataset(str(name))["path"]
    except (ServiceUnreachable, Problem) as error:
        is_known = isinstance(error, Problem) and error.status == NotFound.status
        other = ", nor a dataset of that name" if is_known else ""
        inside = settings.data_root / name
        raise CommandFailed(f"There is no file {name}, and no {inside}{other}.") from None
    path = _found(Path(given))
    if path is None:
        raise CommandFailed(f"The dataset {name} is {given} in DATA_ROOT, which is not there.")
    return path


def _print_inspection(path: Path, document: Document) -> None:
    typer.echo(str(path))
    print_facts(
        [
            ("samples", number(document.get("samples"))),
            ("size", size(document.get("size_bytes") or path.stat().st_size)),
        ]
    )
    fields: Document = document.get("fields") or {}
    print_table(
        ["field", "shape of a sample", "dtype"],
        [(name, _shape(field), field["dtype"]) for name, field in fields.items()],
        "No fields that could be read.",
    )
    _say_smaller(document)
    for warning in document.get("warnings") or []:
        typer.echo(f"warning: {_problem_text(warning)}", err=True)
    for problem in document.get("problems") or []:
        typer.secho(f"problem: {_problem_text(problem)}", err=True, fg=typer.colors.RED)


def _say_smaller(document: Document) -> None:
    """What `stoker data convert` would do for windows that are stored one by one."""
    moved_on: dict[str, int] = (document.get("layout") or {}).get("window_steps") or {}
    fields, samples = document.get("fields") or {}, document.get("samples") or 0
    expanded = [name for name in moved_on if fields[name].get("series_steps") is None]
    if not expanded:
        return
    lengths = {name: fields[name]["shape"][0] for name in expanded}
    smaller = max(
        samples * length / (samples * moved_on[name] + length - moved_on[name])
        for name, length in lengths.items()
    )
    typer.echo(
        f"{', '.join(expanded)}: windows that overlap. As the series that they slide over they "
        f"take down to 1/{smaller:,.0f}: stoker data convert"
    )


def _shape(field: Document) -> str:
    if field.get("lengths"):
        return _ragged_shape(field)
    shape = " × ".join(map(str, field["shape"])) or "scalar"
    if parts := field.get("parts"):
        counts = (f"{number(parts[name])} {name}" for name in ("training", "validation", "test"))
        return f"{shape}: {', '.join(counts)}"
    if classes := field.get("classes"):
        counts = (f"{number(one['samples'])} × {one['label']}" for one in classes[:MOST_CLASSES])
        more = f" and {len(classes) - MOST_CLASSES} more" if len(classes) > MOST_CLASSES else ""
        return f"{shape}: {', '.join(counts)}{more}"
    steps = field.get("series_steps")
    return shape if steps is None else f"{shape}, kept as a series of {number(steps)}"


def _ragged_shape(field: Document) -> str:
    lengths, edges = field["lengths"], field.get("edges")
    if edges:
        each = (f"{number(one['min'])} to {number(one['max'])}" for one in (lengths, edges))
        nodes, between = each
        features = " × ".join(map(str, field["shape"]))
        return (
            f"graphs of {nodes} nodes × {features} and {between} edges: {lengths['mean']:,.1f} and "
            f"{edges['mean']:,.1f} on average, {size(field['stored_bytes'])}"
        )
    between = f"{number(lengths['min'])} to {number(lengths['max'])}"
    shape = " × ".join([between, *map(str, field["shape"])])
    return f"{shape}, ragged: {lengths['mean']:,.1f} on average, {size(field['stored_bytes'])}"


def _problem_text(problem: object) -> str:
    return str(problem.get("message", problem)) if isinstance(problem, dict) else str(problem)


@app.command()
def register(
    name: Annotated[str, typer.Argument(help="The name for it in specs.")],
    path: Annotated[
        str,
        typer.Argument(
            help="The file, or the folder of Arrow files: absolute, or relative to the service's "
            "DATA_ROOT."
        ),
    ],
    wait: Annotated[
        float,
        typer.Option(
            parser=parse_seconds, metavar="SECONDS", help="Wait so long for the inspection."
        ),
    ] = REGISTRATION_WAIT_SECONDS,
    as_json: JsonOption = False,
) -> None:
    """Register a data file under a name for specs; a worker inspects it first."""
    if not NAME.fullmatch(name):
        raise CommandFailed(
            f"{name!r} cannot be a dataset's name: it has up to 64 small letters, digits, dots, "
            "dashes and underscores, and begins with a letter or digit."
        )
    with connect() as client:
        # As it was given: DATA_ROOT is the service's, which may differ from this command's.
        known = client.every(client.datasets)
        before = {row["name"]: row["path"] for row in known}.get(name)
        dataset = client.register_dataset(name, path, wait_seconds=wait or None)
    if as_json:
        print_json(dataset)
    else:
        if before not in (None, dataset["path"]):
            typer.echo(f"Dataset {name} was {before} until now, and is now {dataset['path']}.")
        _say_outcome(dataset)
        _say_smaller(dataset)
    if dataset["state"] == "invalid":
        raise typer.Exit(ExitCode.refused)


def _say_outcome(dataset: Document) -> None:
    name = dataset["name"]
    if dataset["state"] == "ready":
        plural = "" if dataset["samples"] == 1 else "s"
        typer.echo(f"Dataset {name} is ready: {number(dataset['samples'])} sample{plural}.")
        for problem in dataset["problems"]:
            typer.secho(f"warning: {_problem_text(problem)}", err=True, fg="yellow")
    elif dataset["state"] == "inspecting":
        typer.echo(
            f"Dataset {name} is waiting for a worker to inspect it; `stoker data ls` shows "
            "its state."
        )
    else:
        typer.secho(f"Dataset {name} is invalid: {dataset['message']}", err=True, fg="red")
        for problem in dataset["problems"]:
            if _problem_text(problem) != dataset["message"]:
                typer.echo(f"  {_problem_text(problem)}", err=True)
        if not any(problem.get("code") == "not_converted" for problem in dataset["problems"]):
            typer.echo(f"Fix it, then run: stoker data register {name} {dataset['path']}", err=True)


@app.command()
def ls(as_json: JsonOption = False) -> None:
    """List registered datasets."""
    with connect() as client:
        rows = list(client.every(client.datasets))
    if as_json:
        print_json({"data": rows})
        return
    print_table(
        ["dataset", "state", "samples", "fields", "size", "registered"],
        [
            (
                row["name"],
                row["state"],
                number(row["samples"]),
                ", ".join(row["fields"] or ()) or None,
                size(row["size_bytes"]),
                ago(row["created_at"]),
            )
            for row in rows
        ],
        "No datasets. `stoker data sample weather` prepares one.",
    )


@app.command()
def forget(
    name: Annotated[str, typer.Argument(help="A registered dataset.")],
    as_json: JsonOption = False,
) -> None:
    """Remove a dataset from the list; its file stays. Refused while a run's record names it."""
    with connect() as client:
        client.forget_dataset(name)
    if as_json:
        print_json({"forgotten": name})
    else:
        typer.echo(f"Dataset {name} is forgotten; its file stays where it is.")
