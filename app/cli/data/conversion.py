"""`stoker data convert`: windows, rows in time, bars, ragged arrays and molecules, written anew."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import typer

from app.cli.connect import read_settings
from app.cli.data.made import (
    Document,
    as_graphs,
    converted,
    cut,
    cut_bars,
    cut_panel,
    rows_of,
    written,
)
from app.cli.data.options import (
    Classes,
    Decimal,
    Entity,
    Every,
    Force,
    Horizon,
    MaxAtoms,
    MaxGap,
    NoHeader,
    NoTime,
    OfArray,
    OnBad,
    Out,
    Pad,
    Rows,
    Smiles,
    Source,
    Target,
    Thousands,
    Time,
    TimeFormat,
    Timeframes,
    WhenBad,
    Window,
)
from app.cli.data.worker_module import run_worker_module
from app.cli.failures import CommandFailed
from app.cli.output import JsonOption, print_json
from app.spec.suffixes import ARROW, HDF5, NUMPY, dataset_name_of

# What does the work.
BARS, SAMPLES = "worker.trainer.tools.bars", "worker.trainer.tools.samples"
ROWS = "worker.trainer.tools.plain_rows"
PADDING, PANEL = "worker.trainer.tools.padding", "worker.trainer.tools.panel.panel_rows"
ARRAYS, OVERLAPPING = "worker.trainer.tools.numpy_arrays", "worker.trainer.tools.convert"
MOLECULES = "worker.trainer.tools.molecules.convert"
# Files of nothing else than molecules.
OF_MOLECULES = (".sdf", ".sd", ".smi", ".smiles")
# Tells a module that OUT may not be replaced.
NEW = "--new"
NAMELESS = "The column without a name (row numbers of pandas? index=False leaves them out)"


def convert(
    path: Source,
    out: Out = None,
    window: Window = None,
    timeframes: Timeframes = None,
    horizon: Horizon = None,
    target: Target = None,
    rows: Rows = False,
    classes: Classes = False,
    entity: Entity = None,
    every: Every = 1,
    array: OfArray = None,
    on_bad: WhenBad = None,
    max_gap: MaxGap = None,
    pad: Pad = None,
    smiles: Smiles = None,
    max_atoms: MaxAtoms = None,
    time: Time = None,
    time_format: TimeFormat = None,
    no_time: NoTime = False,
    decimal: Decimal = None,
    thousands: Thousands = None,
    no_header: NoHeader = False,
    force: Force = False,
    as_json: JsonOption = False,
) -> None:
    """Write data as series and the windows that are cut out of them.

    Of windows that overlap, in HDF5 or Arrow files: the same samples to the last bit, far smaller.
    With --window, of rows in time: samples of `features` and of the `targets` that follow them.
    With --rows, of rows that are samples by themselves: their `features`, and a number or a class.
    With --timeframes, of bars: an array each, of bars that have closed when the sample ends.
    With --window and --entity, of rows of many entities: a sample is all entities of a date.
    Of NumPy's files: the same arrays.
    With --pad, of ragged arrays: arrays whose samples have one length; others as they are.
    Of molecules: packed graphs of their atoms and bonds, and the part that each is in by scaffold.
    """
    out = out or _in_data_root(path)
    _require_convertible(path, out)
    asked = Asked(
        path, window, timeframes, horizon or None, target or [], entity, every, array,
        on_bad, max_gap, pad, smiles, max_atoms, rows, classes,
    )  # fmt: skip
    form = _form(time, time_format, decimal, thousands, no_time=no_time, no_header=no_header)
    module, how = _work(asked, form)
    made, lines = _run(module, path, out, *how, *(() if force else (NEW,)))
    _tell(made, lines, out, as_json=as_json)


@dataclass(frozen=True)
class Asked:
    """The options, as they were given."""

    path: Path
    window: int | None
    timeframes: str | None
    horizon: list[int] | None
    targets: list[str]
    entity: str | None
    every: int
    array: str | None
    on_bad: OnBad | None
    max_gap: str | None
    pad: int | None
    smiles: str | None
    max_atoms: int | None
    rows: bool = False
    classes: bool = False

    @property
    def column(self) -> str | None:
        """The target, where there is one at most."""
        return self.targets[0] if self.targets else None

    @property
    def names_labels(self) -> bool:
        """True if the target is an array of a NumPy file whose values are classes."""
        is_numpy = self.path.suffix.lower() in NUMPY and not self.path.is_dir()
        return self.classes and is_numpy and self.column is not None and not self.is_cut

    @property
    def is_cut(self) -> bool:
        """Whether samples are cut out of rows."""
        return self.timeframes is not None or self.window is not None


def _work(asked: Asked, form: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The module that does it, and its options. CommandFailed."""
    targets = tuple(f"--target={name}" for name in asked.targets)
    others = _given(
        entity=asked.entity, array=asked.array, on_bad=asked.on_bad, max_gap=asked.max_gap
    )
    names = (*targets, *others)
    if asked.rows or asked.classes:
        _require_rows_or_windows(asked, form)
        _require_one_target(asked.targets)
    if asked.rows:
        return ROWS, (*names, *form, *_flags(classes=asked.classes))
    if form and not asked.is_cut:
        raise CommandFailed(
            f"{form[0].partition('=')[0]} goes with --window, --timeframes or --rows."
        )
    if asked.smiles is not None or asked.path.suffix.lower() in OF_MOLECULES:
        _require_molecules_alone(asked)
        return MOLECULES, (*names, *_given(smiles=asked.smiles, max_atoms=asked.max_atoms))
    _require_one_target(asked.targets)
    if asked.max_atoms is not None:
        raise CommandFailed("--max-atoms is for molecules: SDF, SMILES, or CSV with --smiles.")
    _require_one_way(asked, form)
    if asked.is_cut:
        cutter, how = _cut_by(asked)
        classes = _flags(classes=asked.classes)
        return cutter, (*how, f"--every={asked.every}", *names, *form, *classes)
    if asked.pad is not None:
        _require_no_cut(asked.horizon, asked.column, None, asked.every)
        return PADDING, (f"--pad={asked.pad}", *names)
    if asked.names_labels:
        _require_no_cut(asked.horizon, asked.array, asked.every)
        return ARRAYS, (f"--labels={asked.column}",)
    return _without_cut(asked), names


def _form(
    time: list[str] | None,
    time_format: str | None,
    decimal: str | None,
    thousands: str | None,
    *,
    no_time: bool,
    no_header: bool,
) -> tuple[str, ...]:
    """How a table is written, as it is passed on. CommandFailed."""
    wrong = []
    if no_time and (time or time_format is not None):
        wrong.append(
            "--no-time says that there is none: leave it out, or --time and --time-format."
        )
    if decimal not in (None, ",", "."):
        wrong.append(f"--decimal is a comma or a point, not {decimal!r}.")
    if thousands is not None and (len(thousands) != 1 or thousands.isalnum()):
        wrong.append(f"--thousands is one mark, such as , or ., not {thousands!r}.")
    if thousands is not None and thousands == (decimal or "."):
        wrong.append(
            f"--thousands is {thousands!r}, which is the decimal mark: pass --decimal too."
        )
    if wrong:
        raise CommandFailed(" ".join(wrong))
    flags = (*(("--no-time",) if no_time else ()), *(("--no-header",) if no_header else ()))
    named = _given(*flags, time_format=time_format, decimal=decimal, thousands=thousands)
    return (*(f"--time={name}" for name in time or ()), *named)


def _in_data_root(path: Path) -> Path:
    """OUT where none is named; of a folder by its own name, also of `.`."""
    name = (path.resolve().name or "data") if path.is_dir() else path.stem
    return read_settings().data_root / f"{name}.h5"


def _cut_by(asked: Asked) -> tuple[str, tuple[str, ...]]:
    """The module that cuts rows in time, and what it cuts by. CommandFailed."""
    entity, array = asked.entity, asked.array
    horizons = tuple(f"--horizon={one}" for one in asked.horizon or ())
    if entity is None and len(horizons) > 1:
        raise CommandFailed("--horizon is given several times, which goes with --entity alone.")
    if asked.timeframes is not None:
        if not horizons or array is not None:
            raise CommandFailed("--timeframes needs --horizon, and has no --array.")
        return BARS, (f"--timeframes={asked.timeframes}", *horizons)
    if entity is not None and (not horizons or array is not None):
        raise CommandFailed("--entity needs --horizon, and has no --array.")
    if not horizons or (asked.column is None and entity is None):
        raise CommandFailed(_to_add(asked.window, asked.horizon, asked.column))
    return SAMPLES if entity is None else PANEL, (f"--window={asked.window}", *horizons)


def _require_one_way(asked: Asked, form: tuple[str, ...]) -> None:
    """CommandFailed for options that go with another way to cut, or with none."""
    if asked.entity is not None and asked.window is None:
        raise CommandFailed("--entity needs --window: how many dates a sample looks back on.")
    if asked.window is not None and asked.timeframes is not None:
        raise CommandFailed("--window and --timeframes are two ways to cut; give one of them.")
    if asked.is_cut and asked.pad is not None:
        raise CommandFailed("--pad and --window or --timeframes are two steps: convert twice.")
    if not asked.is_cut and (asked.on_bad is not None or asked.max_gap is not None):
        raise CommandFailed("--on-bad and --max-gap go with --window or --timeframes.")
    if "--no-time" in form and (asked.timeframes is not None or asked.entity is not None):
        raise CommandFailed("--no-time goes with --window alone: bars and panels need times.")


def _require_one_target(targets: list[str]) -> None:
    if len(targets) > 1:
        raise CommandFailed(
            f"--target is given {len(targets)} times ({', '.join(targets)}), and one column is "
            "forecast. Give it once, and convert once more for another."
        )


def _require_molecules_alone(asked: Asked) -> None:
    others = (asked.horizon, asked.entity, asked.array, asked.max_gap, asked.pad)
    if asked.is_cut or any(option is not None for option in others) or asked.every != 1:
        raise CommandFailed(
            "Molecules are no rows in time: --smiles, --target, --max-atoms and --on-bad go with "
            "them, and no other option that cuts or pads."
        )
    if asked.smiles is not None and (kind := asked.path.suffix.lower()) in OF_MOLECULES:
        raise CommandFailed(
            f"--smiles names a column of a table, and a {kind} file has none: leave it out."
        )


def _require_rows_or_windows(asked: Asked, form: tuple[str, ...]) -> None:
    """CommandFailed for options that do not go with --rows, or with --classes."""
    if asked.rows:
        others = _given(
            window=asked.window, timeframes=asked.timeframes, horizon=asked.horizon,
            entity=asked.entity, array=asked.array, max_gap=asked.max_gap, pad=asked.pad,
            smiles=asked.smiles, max_atoms=asked.max_atoms,
        )  # fmt: skip
        others += tuple(one for one in form if one.startswith(("--time", "--no-time")))
        if asked.every != 1:
            others += ("--every",)
        if others:
            raise CommandFailed(
                f"{others[0].partition('=')[0]} does not go with --rows: each row is a sample by "
                "itself, at no time. Leave one of both out."
            )
        if asked.path.suffix.lower() in (*HDF5, *NUMPY):
            raise CommandFailed(
                f"--rows is for tables, and the arrays of {asked.path} are read as they are: rows "
                "of features (samples, columns) beside their targets. Leave it out."
            )
        if asked.column is None:
            raise CommandFailed("--rows needs --target COLUMN: what to learn of each row.")
    elif not asked.names_labels and (asked.window is None or asked.entity is not None):
        raise CommandFailed(
            "--classes goes with --rows, with --window without --entity, or with --target ARRAY of "
            "a NumPy file: the values of the target are classes."
        )


def _flags(**flags: bool) -> tuple[str, ...]:
    """Returns the flags that are given, as arguments of the converter."""
    return tuple(f"--{name}" for name, is_given in flags.items() if is_given)


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
    name = dataset_name_of(out)
    root = read_settings().data_root.resolve()
    full = out.resolve()
    if full.is_relative_to(root):
        return f"stoker data register {name} {shlex.quote(str(full.relative_to(root)))}"
    moved = f"mv {shlex.quote(str(out))} {shlex.quote(f'{root}/')}"
    return f"{moved} && stoker data register {name} {shlex.quote(out.name)}"


def _require_convertible(path: Path, out: Path) -> None:
    """CommandFailed for what is known before any of the data is read."""
    if not path.exists():
        raise CommandFailed(f"There is no file {path}.")
    if not out.exists():
        return
    if out.samefile(path):
        raise CommandFailed("A file cannot be converted into itself; name another for OUT.")
    if out.is_dir():
        raise CommandFailed(f"{out} is a folder; name a file in it for OUT.")


def _require_no_cut(*options: object) -> None:
    *others, every = options
    if any(option is not None for option in others) or every != 1:
        raise CommandFailed(
            "--horizon, --target, --every and --array go with --window (--timeframes for bars; "
            "--array also with --pad)."
        )


def _to_add(window: int | None, horizon: list[int] | None, column: str | None) -> str:
    """The options that rows in time lack to become samples, and what each is."""
    wanted = (
        (window, "--window N", "how many rows to look back on"),
        (horizon, "--horizon M", "how many rows to forecast"),
        (column, "--target COLUMN", "which column to forecast"),
    )
    options, meanings = zip(*(words for given, *words in wanted if given is None), strict=True)
    return f"Add {' '.join(options)}: {', '.join(meanings)}."


def _without_cut(asked: Asked) -> str:
    """The module that writes such a file as it is. CommandFailed for a table, which is cut, and
    where an option says how to cut.
    """
    path = asked.path
    if not path.is_dir() and path.suffix.lower() not in (*HDF5, *ARROW, *NUMPY):
        needed = _to_add(None, asked.horizon, asked.column)
        raise CommandFailed(
            f"{path} holds rows, and samples have to be cut out of them. {needed} If each row is a "
            "sample by itself, pass --rows --target COLUMN."
        )
    _require_no_cut(asked.horizon, asked.column, asked.array, asked.every)
    return ARRAYS if path.suffix.lower() in NUMPY and not path.is_dir() else OVERLAPPING


def _run(module: str, path: Path, out: Path, *options: str) -> tuple[Document, list[str]]:
    """What the module says that it made, and that in lines for a person."""
    answer = run_worker_module(module, str(path), str(out), *options, timeout_seconds=None)
    made = dict(json.loads(answer))
    told = {
        BARS: cut_bars,
        SAMPLES: cut,
        ROWS: rows_of,
        PANEL: cut_panel,
        ARRAYS: written,
        PADDING: written,
        OVERLAPPING: converted,
        MOLECULES: as_graphs,
    }
    return made, told[module](made)
