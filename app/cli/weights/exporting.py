"""`stoker export`: a checkpoint as safetensors or ONNX, and what it is beside the original."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from app.cli.arguments import RunId
from app.cli.connect import connect
from app.cli.failures import CommandFailed, ExitCode
from app.cli.output import (
    JsonOption,
    ago,
    number,
    print_facts,
    print_json,
    print_table,
    size,
)
from app.cli.results import download_bar
from stoker.states import ExportFormat

if TYPE_CHECKING:
    from stoker import Client

Document = dict[str, Any]
WAIT_SECONDS = 20.0
FORMATS = "safetensors is the weights, onnx the model, int8 the model with weights of 8 bits"
FormatOption = Annotated[
    ExportFormat | None, typer.Option("--format", help=f"Required: {FORMATS}.")
]


def export(
    run_id: RunId,
    format_: FormatOption = None,
    latest: Annotated[
        bool, typer.Option("--latest", help="The latest checkpoint, not the best.")
    ] = False,
    checkpoint: Annotated[
        int | None, typer.Option(min=1, help="This checkpoint of the run, by its id.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Download it into this folder, too.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Export the best checkpoint of a run, for use elsewhere.

    A worker makes it, and keeps it beside the run. Of onnx and int8 it measures the run's metrics
    and the time a batch on the validation part, beside PyTorch's.
    """
    if format_ is None:
        said = f"say which, such as stoker export {run_id} --format onnx: {FORMATS}"
        raise typer.BadParameter(said, param_hint="--format")
    if latest and checkpoint is not None:
        raise typer.BadParameter("give one of the two", param_hint="--latest, --checkpoint")
    if output is not None:
        from stoker.download import require_room  # httpx: late, as in connect

        require_room(output)
    with connect() as client:
        chosen = checkpoint or client.chosen_checkpoint(run_id, "latest" if latest else "best")
        if checkpoint is not None:
            _require_own(client, run_id, checkpoint)
        made = _made(client, chosen, format_, is_quiet=as_json)
        if output is not None:
            with download_bar(as_json) as told:
                client.save_export(made["id"], output, told)
    if as_json:
        print_json(made)
        return
    _print_export(made)
    if output is None:
        typer.echo(f"  stoker download {run_id} --export {made['id']}")
    else:
        typer.echo(f"{output}: {size(made['bytes'])}")


def _require_own(client: "Client", run_id: int, checkpoint_id: int) -> None:
    own = client.checkpoint(checkpoint_id)["run_id"]
    if own != run_id:
        raise CommandFailed(
            f"Checkpoint {checkpoint_id} is of run {own}: stoker export {own} --checkpoint "
            f"{checkpoint_id}"
        )


def _made(
    client: "Client", checkpoint_id: int, format_: ExportFormat, *, is_quiet: bool
) -> Document:
    """The export, once a worker has made it. CommandFailed with what the worker says."""
    job = client.export_checkpoint(checkpoint_id, format_)
    job = wait_for(client, job, f"Exporting checkpoint {checkpoint_id}", is_quiet=is_quiet)
    if job["result"] is None:
        raise CommandFailed(str(job["error"]), ExitCode.failed)
    return client.export(job["result"]["export_id"])


def wait_for(client: "Client", job: Document, what: str, *, is_quiet: bool) -> Document:
    """A job at its end, however long that takes; on a terminal with how far it is."""
    with _told(what, is_quiet) as tell:
        try:
            while job["finished_at"] is None:
                tell(job)
                job = client.job(job["id"], wait_seconds=WAIT_SECONDS)
        except KeyboardInterrupt:
            typer.echo("The worker goes on with it; the same command shows what it made.", err=True)
            raise
    return job


class _Once:
    """Says, the first time that a job is found waiting, so."""

    def __init__(self, told: str) -> None:
        self._told: str | None = told

    def __call__(self, job: Document) -> None:
        if job["state"] == "queued" and self._told is not None:
            typer.echo(self._told, err=True)
            self._told = None


@contextmanager
def _told(what: str, is_quiet: bool) -> Iterator[Any]:
    """Says where a job is: on a line that turns, or where nobody looks once that it waits.

    Quiet, it says nothing: with --json, an error's document has stderr to itself.
    """
    if is_quiet:
        yield lambda _job: None
        return
    screen = Console(stderr=True)
    words = {"queued": "waits for a worker that has the artifacts", "running": "under way"}
    if not screen.is_terminal:
        yield _Once(f"{what}: {words['queued']} …")
        return
    with screen.status(f"{what} …") as status:
        yield lambda job: status.update(f"{what}: {words.get(job['state'], job['state'])} …")


def _print_export(made: Document) -> None:
    facts = made["facts"]
    typer.echo(
        f"Export {made['id']}: step {made['step']} of run {made['run_id']} as {made['format']}, "
        f"{size(made['bytes'])}."
    )
    if not facts["measured"]:
        return
    print_facts([(name, _tensors(facts[name])) for name in ("inputs", "outputs")])
    scores = list(facts["measured"][0]["scores"])
    print_table(
        ["model", *scores, "a batch", "size", "differs by"],
        [
            (
                one["model"],
                *(number(one["scores"][name]) for name in scores),
                _milliseconds(one["seconds_per_batch"]),
                size(one["bytes"]) if one["bytes"] else None,
                None if one["max_difference"] is None else f"{one['max_difference']:.2g}",
            )
            for one in facts["measured"]
        ],
        "",
    )
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    typer.echo(
        f"  on {number(facts['samples'])} samples of the {facts['part']} part; batches of "
        f"{number(facts['batch_size'])}, {threads} of the worker's CPU"
    )


def _tensors(named: list[Document]) -> str:
    return "; ".join(
        f"{one['name']}: {one['dtype']} ({', '.join(map(str, one['shape']))})" for one in named
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.2f} ms"


def exports(run_id: RunId, as_json: JsonOption = False) -> None:
    """List what was exported of a run."""
    with connect() as client:
        rows = list(client.every(client.exports, run_id))
    if as_json:
        print_json({"data": rows})
        return
    print_table(
        ["id", "format", "step", "checkpoint", "size", "made"],
        [
            (
                row["id"],
                row["format"],
                row["step"],
                row["checkpoint_id"],
                size(row["bytes"]),
                "being removed" if row["state"] == "removing" else ago(row["created_at"]),
            )
            for row in rows
        ],
        f"None yet. `stoker export {run_id} --format onnx` makes one.",
    )
