"""`stoker data convert`: windows that overlap, and rows in time, written as a series."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.failures import CommandFailed
from app.cli.output import JsonOption, number, print_json, size
from app.cli.worker_module import run_worker_module

Document = dict[str, Any]

# Files that may hold windows: HDF5, and Arrow IPC.
WINDOWS = (".h5", ".hdf5", ".hdf", ".feather", ".arrow", ".ipc")


Window = Annotated[
    int | None,
    typer.Option(min=1, help="Cut rows in time into samples: how many rows each looks back on."),
]
Horizon = Annotated[
    int | None,
    typer.Option(min=1, help="With --window: how many of the following rows to forecast."),
]
Every = Annotated[
    int,
    typer.Option(min=1, help="With --window: how many rows lie between one sample and the next."),
]


def convert(
    path: Annotated[
        Path,
        typer.Argument(help="HDF5, or Arrow files in a folder; with --window also CSV."),
    ],
    out: Annotated[Path, typer.Argument(help="The HDF5 file to write.")],
    window: Window = None,
    horizon: Horizon = None,
    target: Annotated[
        str | None, typer.Option(help="With --window: the column to forecast.")
    ] = None,
    every: Every = 1,
    array: Annotated[
        str | None, typer.Option(help="With --window: the series of an HDF5 file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write data as a series and the windows that are cut out of it.

    Of windows that overlap, in HDF5 or Arrow files: the same samples to the last bit, far smaller.
    With --window, of rows in time: samples of `features` and of the `targets` that follow them.
    """
    _require_convertible(path, out, force=force)
    if window is None:
        _require_no_table(path, horizon, target, array, every)
        made = _run_conversion("worker.trainer.convert", path, out)
        lines = _converted(made)
    else:
        if horizon is None or target is None:
            raise CommandFailed("--window needs --horizon and --target: what is to be forecast.")
        numbers = f"--window={window}", f"--horizon={horizon}", f"--every={every}"
        names = f"--target={target}", *([f"--array={array}"] if array is not None else [])
        made = _run_conversion("worker.trainer.cut", path, out, *numbers, *names)
        lines = _cut(made)
    if as_json:
        print_json(made)
        return
    for name in made["left_out"]:
        typer.secho(f"warning: {name} holds no numbers and is left out.", err=True, fg="yellow")
    for line in lines:
        typer.echo(line)
    typer.echo(f"Then: stoker data register NAME {out}")


def _require_convertible(path: Path, out: Path, *, force: bool) -> None:
    if not path.exists():
        raise CommandFailed(f"There is no file {path}.")
    if out.exists() and not force:
        raise CommandFailed(f"{out} exists already; --force replaces it.")
    if out.exists() and out.samefile(path):
        raise CommandFailed("A file cannot be converted into itself; name another for OUT.")


def _require_no_table(path: Path, *options: object) -> None:
    *others, every = options
    if any(option is not None for option in others) or every != 1:
        raise CommandFailed("--horizon, --target, --every and --array go with --window.")
    if not path.is_dir() and path.suffix.lower() not in WINDOWS:
        raise CommandFailed(
            f"{path} is no file of windows. Rows in time become samples by --window, --horizon and "
            "--target: how many rows to look back on, how many to forecast, and of which column."
        )


def _run_conversion(module: str, path: Path, out: Path, *options: str) -> Document:
    answer = run_worker_module(module, str(path), str(out), *options, timeout_seconds=None)
    return dict(json.loads(answer))


def _converted(made: Document) -> list[str]:
    smaller = made["bytes_before"] / made["bytes"]
    return [
        *(
            f"{name}: {number(one['samples'])} windows of {number(one['window_length'])} steps are "
            f"a series of {number(one['steps'])}."
            for name, one in made["series"].items()
        ),
        f"{made['path']}: {size(made['bytes'])} for {size(made['bytes_before'])}, "
        f"1/{smaller:,.0f}.",
    ]


def _cut(made: Document) -> list[str]:
    features, files = len(made["features"]), made["stretches"]
    of = f"{number(made['steps'])} rows" + (f" of {number(files)} files" if files > 1 else "")
    return [
        f"{number(made['samples'])} samples of {number(features)} features, cut out of {of}.",
        f"{made['path']}: {size(made['bytes'])}.",
    ]
