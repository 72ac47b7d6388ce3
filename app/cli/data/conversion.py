"""`stoker data convert`: windows, rows in time, bars, ragged arrays and molecules, written anew."""

import json
import re
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.cli.connect import read_settings
from app.cli.data.made import Document, as_graphs, converted, cut, cut_bars, cut_panel, written
from app.cli.data.worker_module import run_worker_module
from app.cli.failures import CommandFailed
from app.cli.output import JsonOption, print_json

# Files that may hold windows: HDF5, and Arrow IPC.
WINDOWS = (".h5", ".hdf5", ".hdf", ".feather", ".arrow", ".ipc")
NUMPY = (".npz", ".npy")
# What does the work.
BARS, SAMPLES = "worker.trainer.tools.bars", "worker.trainer.tools.samples"
PADDING, PANEL = "worker.trainer.tools.padding", "worker.trainer.tools.panel.panel_rows"
ARRAYS, OVERLAPPING = "worker.trainer.tools.numpy_arrays", "worker.trainer.tools.convert"
MOLECULES = "worker.trainer.tools.molecules.convert"
# Files of nothing else than molecules.
OF_MOLECULES = (".sdf", ".sd", ".smi", ".smiles")
NAMELESS = "The column without a name (row numbers of pandas? index=False leaves them out)"


Window = Annotated[
    int | None,
    typer.Option(min=1, help="Cut rows in time into samples: how many rows each looks back on."),
]
Timeframes = Annotated[
    str | None,
    typer.Option(
        help="Cut bars (CSV: time, open, high, low, close, volume) into samples of several "
        "timeframes: label and bars of each, such as M1:480,M5:288,H1:96."
    ),
]
Horizon = Annotated[
    list[int] | None,
    typer.Option(
        min=1,
        help="With --window or --timeframes: how many of the following rows to forecast; with "
        "--entity over how many dates, and it may be given several times.",
    ),
]
Entity = Annotated[
    str | None,
    typer.Option(
        help="With --window: the column that says whose row it is. Rows of many entities (CSV) "
        "become samples that are all entities of a date, with masks for those that are absent."
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        help="The column to forecast; with --timeframes also `range`, ln((high - low) / close) of "
        "each bar, which is the default there; with --entity the mean of the column over the "
        "horizon, or `volatility`, the default there: ln of a price's realized volatility. Of "
        "molecules: the column or property to learn."
    ),
]
Every = Annotated[
    int,
    typer.Option(
        min=1,
        help="With --window or --timeframes: how many rows lie between one sample and the next.",
    ),
]
Source = Annotated[
    Path,
    typer.Argument(
        help="HDF5, NumPy (.npz, .npy), or Arrow files in a folder; with --window also CSV and "
        "Parquet; with --timeframes CSV, a file or a folder; molecules as SDF, SMILES (.smi) or, "
        "with --smiles, CSV."
    ),
]
Out = Annotated[
    Path | None,
    typer.Argument(help="The HDF5 file to write; default: of the same name, in DATA_ROOT."),
]
OfArray = Annotated[
    str | None,
    typer.Option(help="With --window the series of an HDF5 file, with --pad the ragged array."),
]
Pad = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Bring the samples of ragged arrays to this length: shorter ones are filled with "
        "zeros, longer ones cut.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")]
MaxGap = Annotated[
    str | None,
    typer.Option(
        help="With --window or --timeframes: the longest time from one row to the next that is no "
        "gap, such as 3d for weekends; else about that of one row."
    ),
]


class OnBad(StrEnum):
    """What becomes of rows that cannot be used."""

    stop = "stop"
    skip = "skip"


WhenBad = Annotated[
    OnBad | None,
    typer.Option(
        help="With --window, --timeframes or molecules: at what cannot be used, or a gap in times, "
        "stop (the default) or skip it and count."
    ),
]
Smiles = Annotated[
    str | None, typer.Option(help="Molecules of a CSV file: the column of their SMILES.")
]
MaxAtoms = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of molecules: one with more atoms cannot be used, hydrogens aside; default 256.",
    ),
]


def convert(
    path: Source,
    out: Out = None,
    window: Window = None,
    timeframes: Timeframes = None,
    horizon: Horizon = None,
    target: Target = None,
    entity: Entity = None,
    every: Every = 1,
    array: OfArray = None,
    on_bad: WhenBad = None,
    max_gap: MaxGap = None,
    pad: Pad = None,
    smiles: Smiles = None,
    max_atoms: MaxAtoms = None,
    force: Force = False,
    as_json: JsonOption = False,
) -> None:
    """Write data as series and the windows that are cut out of them.

    Of windows that overlap, in HDF5 or Arrow files: the same samples to the last bit, far smaller.
    With --window, of rows in time: samples of `features` and of the `targets` that follow them.
    With --timeframes, of bars: an array each, of bars that have closed when the sample ends.
    With --window and --entity, of rows of many entities: a sample is all entities of a date.
    Of NumPy's files: the same arrays.
    With --pad, of ragged arrays: arrays whose samples have one length; others as they are.
    Of molecules: packed graphs of their atoms and bonds, and the part that each is in by scaffold.
    """
    out = out or read_settings().data_root / f"{path.name if path.is_dir() else path.stem}.h5"
    _require_convertible(path, out)
    column, horizon = _only_one(target), horizon or None
    new = () if force else ("--new",)
    names = _given(*new, target=column, entity=entity, array=array, on_bad=on_bad, max_gap=max_gap)
    if smiles is not None or path.suffix.lower() in OF_MOLECULES:
        _require_molecules_alone(window, timeframes, horizon, entity, array, max_gap, pad, every)
        names += _given(smiles=smiles, max_atoms=max_atoms)
        made, lines = _run(MOLECULES, path, out, *names)
    elif max_atoms is not None:
        raise CommandFailed("--max-atoms is for molecules: SDF, SMILES, or CSV with --smiles.")
    elif _is_cut(window, timeframes, entity, pad, on_bad, max_gap):
        cutter, how = _cut_by(window, timeframes, horizon, column, entity, array)
        made, lines = _run(cutter, path, out, *how, f"--every={every}", *names)
    elif pad is not None:
        _require_no_cut(horizon, column, None, every)
        made, lines = _run(PADDING, path, out, f"--pad={pad}", *names)
    else:
        _require_no_cut(horizon, column, array, every)
        made, lines = _run(_without_cut(path), path, out, *new)
    _tell(made, lines, out, as_json=as_json)


def _cut_by(
    window: int | None,
    timeframes: str | None,
    horizon: list[int] | None,
    column: str | None,
    entity: str | None,
    array: str | None,
) -> tuple[str, tuple[str, ...]]:
    """The module that cuts rows in time, and what it cuts by. CommandFailed."""
    horizons = tuple(f"--horizon={one}" for one in horizon or ())
    if entity is None and len(horizons) > 1:
        raise CommandFailed("--horizon is given several times, which goes with --entity alone.")
    if timeframes is not None:
        if not horizons or array is not None:
            raise CommandFailed("--timeframes needs --horizon, and has no --array.")
        return BARS, (f"--timeframes={timeframes}", *horizons)
    if entity is not None and (not horizons or array is not None):
        raise CommandFailed("--entity needs --horizon, and has no --array.")
    if not horizons or (column is None and entity is None):
        raise CommandFailed("--window needs --horizon and --target: what is to be forecast.")
    return SAMPLES if entity is None else PANEL, (f"--window={window}", *horizons)


def _is_cut(
    window: int | None,
    timeframes: str | None,
    entity: str | None,
    pad: int | None,
    on_bad: OnBad | None,
    max_gap: str | None,
) -> bool:
    """Whether samples are cut out of rows, and in one way. CommandFailed."""
    if entity is not None and window is None:
        raise CommandFailed("--entity needs --window: how many dates a sample looks back on.")
    if window is not None and timeframes is not None:
        raise CommandFailed("--window and --timeframes are two ways to cut; give one of them.")
    is_cut = timeframes is not None or window is not None
    if is_cut and pad is not None:
        raise CommandFailed("--pad and --window or --timeframes are two steps: convert twice.")
    if not is_cut and (on_bad is not None or max_gap is not None):
        raise CommandFailed("--on-bad and --max-gap go with --window or --timeframes.")
    return is_cut


def _only_one(targets: list[str] | None) -> str | None:
    if targets and len(targets) > 1:
        raise CommandFailed(
            f"--target is given {len(targets)} times ({', '.join(targets)}), and one column is "
            "forecast. Give it once, and convert once more for another."
        )
    return targets[0] if targets else None


def _require_molecules_alone(*options: object) -> None:
    *others, every = options
    if any(option is not None for option in others) or every != 1:
        raise CommandFailed(
            "Molecules are no rows in time: --smiles, --target, --max-atoms and --on-bad go with "
            "them, and no other option that cuts or pads."
        )


def _given(*flags: str, **options: object) -> tuple[str, ...]:
    """As they are passed on."""
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return (*(f"--{name}={value}" for name, value in named.items() if value is not None), *flags)


def _tell(made: Document, lines: list[str], out: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    for name in made.get("left_out", ()):
        told = f"{name} holds no numbers and" if name else NAMELESS
        typer.secho(f"warning: {told} is left out.", err=True, fg="yellow")
    for sentence in made.get("told", ()):
        typer.secho(f"warning: {sentence}", err=True, fg="yellow")
    for line in lines:
        typer.echo(line)
    typer.echo(f"Then: {_registered_by(out)}")


def _registered_by(out: Path) -> str:
    """The command that registers the file, with a name that the service takes."""
    name = re.sub(r"[^a-z0-9._-]+", "-", out.stem.lower()).strip("._-")[:64] or "data"
    root = read_settings().data_root.resolve()
    full = out.resolve()
    if full.is_relative_to(root):
        return f"stoker data register {name} {shlex.quote(str(full.relative_to(root)))}"
    moved = f"mv {shlex.quote(str(out))} {shlex.quote(f'{root}/')}"
    return f"{moved} && stoker data register {name} {shlex.quote(out.name)}"


def _require_convertible(path: Path, out: Path) -> None:
    if not path.exists():
        raise CommandFailed(f"There is no file {path}.")
    if out.exists() and out.samefile(path):
        raise CommandFailed("A file cannot be converted into itself; name another for OUT.")


def _require_no_cut(*options: object) -> None:
    *others, every = options
    if any(option is not None for option in others) or every != 1:
        raise CommandFailed(
            "--horizon, --target, --every and --array go with --window (--timeframes for bars; "
            "--array also with --pad)."
        )


def _without_cut(path: Path) -> str:
    """The module that writes such a file as it is. CommandFailed for a table, which is cut."""
    if path.is_dir() or path.suffix.lower() in WINDOWS:
        return OVERLAPPING
    if path.suffix.lower() in NUMPY:
        return ARRAYS
    raise CommandFailed(
        f"{path} is no file of windows. Rows in time become samples by --window, --horizon and "
        "--target: how many rows to look back on, how many to forecast, and of which column."
    )


def _run(module: str, path: Path, out: Path, *options: str) -> tuple[Document, list[str]]:
    """What the module says that it made, and that in lines for a person."""
    answer = run_worker_module(module, str(path), str(out), *options, timeout_seconds=None)
    made = dict(json.loads(answer))
    told = {
        BARS: cut_bars,
        SAMPLES: cut,
        PANEL: cut_panel,
        ARRAYS: written,
        PADDING: written,
        OVERLAPPING: converted,
        MOLECULES: as_graphs,
    }
    return made, told[module](made)
