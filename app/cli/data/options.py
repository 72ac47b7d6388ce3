"""The options of `stoker data convert`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Window = Annotated[
    int | None,
    typer.Option(min=1, help="Cut rows in time into samples: how many rows each looks back on."),
]
Timeframes = Annotated[
    str | None,
    typer.Option(
        help="Cut bars (CSV: time, open, high, low, close, volume) into samples of several "
        "timeframes: label and bars of each, such as M1:480,M5:288,H1:96. Units: M minutes, H "
        "hours, D days, W weeks, MN calendar months, T trading days, which have rows."
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
        "molecules: the column or property to learn; several times for several targets, where an "
        "empty cell is a label that is not known."
    ),
]
Rows = Annotated[
    bool,
    typer.Option(
        "--rows",
        help="Each row of a table is a sample by itself: all other columns of numbers are its "
        "features, and --target what to learn.",
    ),
]
Classes = Annotated[
    bool,
    typer.Option(
        "--classes",
        help="With --rows or --window, or of NumPy's files: the values of --target, texts or "
        "numbers, are classes. They are numbered in their order, and the file names them. A "
        "window's class is that of the row which lies --horizon behind its end.",
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
        help="HDF5, NumPy (.npz, .npy), or Arrow files in a folder; with --window or --rows also "
        "CSV and Parquet; with --timeframes CSV, a file or a folder; molecules as SDF, SMILES "
        "(.smi) or, with --smiles, CSV."
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
        "gap, such as 3d for weekends; else about that of one row, or 5d with trading days."
    ),
]


class OnBad(StrEnum):
    """What becomes of rows that cannot be used."""

    stop = "stop"
    skip = "skip"


WhenBad = Annotated[
    OnBad | None,
    typer.Option(
        help="With --window, --timeframes, --rows or molecules: at what cannot be used, or a gap "
        "in times, stop (the default) or skip it and count."
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
Time = Annotated[
    list[str] | None,
    typer.Option(
        help="The column that says when a row was, where it is not called time, timestamp, "
        "datetime or date; several times where it is in pieces: --time date --time hour."
    ),
]
TimeFormat = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="How times are written, as Python's strptime takes it, such as '%d.%m.%Y %H:%M'; "
        "or the unit of numbers since 1970: seconds, milliseconds, microseconds, nanoseconds.",
    ),
]
NoTime = Annotated[
    bool,
    typer.Option("--no-time", help="Rows have no time: gaps between them are not looked for."),
]
Decimal = Annotated[
    str | None, typer.Option(help="Of CSV: the decimal mark, a comma or a point (the default).")
]
Thousands = Annotated[
    str | None, typer.Option(help="Of CSV: the mark between thousands; default: there is none.")
]
NoHeader = Annotated[
    bool,
    typer.Option("--no-header", help="Of CSV: no line of names; columns are c0, c1, …"),
]
