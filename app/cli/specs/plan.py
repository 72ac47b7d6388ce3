"""`stoker plan`: what a submission would become, what is wrong with it, and its fixes."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.connect import connect
from app.cli.failures import CommandFailed, ExitCode, issue_lines
from app.cli.output import JsonOption, print_json, print_lines
from app.cli.specs.assigned import with_own_fixes
from app.cli.specs.planview import print_plan
from app.cli.specs.specfile import (
    NO_CHANGES,
    Format,
    SetOption,
    SpecFile,
    SpecPath,
    format_of,
    read_spec,
    with_assignments,
)
from stoker import Problem

if TYPE_CHECKING:
    from app.cli.specs.fixing import Mended, Planner
    from stoker import Client

Document = dict[str, Any]
# A worker gives a probe 240; what is before it in its queue needs some too.
PROBE_SECONDS = 300.0

FixOption = Annotated[
    bool, typer.Option("--fix", help="Fix what would be refused, and show the diff.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="With --fix: write the fixed spec to this new file."
    ),
]


def plan(
    spec: SpecPath,
    assignments: SetOption = NO_CHANGES,
    fix: FixOption = False,
    warnings: Annotated[
        bool, typer.Option("--warnings", help="With --fix: fix the warnings, too.")
    ] = False,
    output: OutputOption = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="With --fix: write it over SPEC.")
    ] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Have a worker measure the memory of one real step.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every value, defaults too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a spec and show what it would become, without submitting it."""
    if (output is not None or in_place) and not fix:
        raise typer.BadParameter(
            "these write what --fix makes, so give --fix too", param_hint="-o, --in-place"
        )
    if warnings and not fix:
        raise typer.BadParameter("it goes with --fix", param_hint="--warnings")
    source = read_spec(spec)
    target = _target(source, output, in_place) if fix else None
    request = with_assignments(source.document, assignments)
    with connect() as client:
        ask = partial(planned, client, probe=probe)
        if fix:
            _mend(ask, source, request, target, warnings=warnings, as_json=as_json)
            return
        answer = ask(request)
    if as_json:
        print_json(answer)
    else:
        issues = with_own_fixes(answer["issues"], request, assignments)
        print_plan({**answer, "issues": issues}, everything=everything)
    errors = [issue for issue in answer["issues"] if issue["severity"] == "error"]
    if not as_json and any(issue["fix"] for issue in errors):
        typer.echo(
            "\n--fix applies these fixes and shows the diff; --warnings fixes the warnings, too."
        )
    if errors:
        raise typer.Exit(ExitCode.refused)


def planned(client: "Client", request: Document, *, probe: bool = False) -> Document:
    """The plan, also of what the service cannot parse: then it is its findings alone."""
    try:
        return client.plan(request, probe_seconds=PROBE_SECONDS if probe else None)
    except Problem as problem:
        if not problem.issues:
            raise
        return problem.document


@dataclass(frozen=True)
class _Target:
    """Where the mended spec goes; `is_source`: over the file that it came from."""

    path: Path
    format: Format
    is_source: bool = False


def _target(source: SpecFile, output: Path | None, in_place: bool) -> _Target | None:
    """What -o and --in-place say; refused before anything is done."""
    if output is not None and in_place:
        raise typer.BadParameter("give one of the two", param_hint="-o, --in-place")
    if in_place:
        if source.path is None:
            raise CommandFailed(
                "--in-place needs a file, and this spec came from standard input; use -o FILE."
            )
        return _Target(source.path.resolve(), source.format, is_source=True)
    if output is None:
        return None
    if output.exists():
        raise CommandFailed(f"{output} exists already; -o writes new files only.")
    if not output.parent.is_dir():
        raise CommandFailed(f"There is no folder {output.parent}.")
    if output.suffix.lower() not in (".yaml", ".yml", ".json"):
        raise CommandFailed(f"{output}: a spec is written as .yaml, .yml or .json.")
    return _Target(output, format_of(str(output)))


def _mend(
    ask: "Planner",
    source: SpecFile,
    request: Document,
    target: _Target | None,
    *,
    warnings: bool,
    as_json: bool,
) -> None:
    # Imported late: the guard's own patches, which bring pydantic.
    from app.cli.specs.fixing import mend
    from app.cli.specs.spectext import before_and_after, diff_of, write
    from app.cli.specs.yamltext import dump_yaml

    mended = mend(request, ask, warnings=warnings)
    before, after = before_and_after(source, mended.request)
    diff = diff_of(before, after, source.name, f"{target.path if target else source.name} (fixed)")
    # Nothing here writes TOML.
    is_shown = target is not None and target.is_source and source.format == "toml" and bool(diff)
    written = None
    if target is not None and not is_shown and (diff or not target.is_source):
        written = target.path
        write(written, target.format, source, mended.request, over=target.is_source)
    if as_json:
        print_json(
            {
                "accepted": mended.is_accepted,
                "rounds": mended.rounds,
                "mended": mended.issues,
                "request": mended.request,
                "diff": "\n".join(diff),
                "plan": mended.plan,
                "written": str(written) if written else None,
            }
        )
    else:
        _print_diff(diff)
        _print_outcome(mended, warnings=warnings)
        if not is_shown:
            _print_written(written, source.format, is_mended=bool(mended.issues))
    if is_shown:
        if not as_json:
            typer.echo(f"\nThe fixed spec as YAML:\n\n{dump_yaml(mended.request)}", nl=False)
        raise CommandFailed(
            f"{source.name} is TOML, which cannot be edited in place, so it is unchanged. Edit it "
            "by hand as the diff shows, or write another file with -o FILE.yaml or -o FILE.json."
        )
    if not mended.is_accepted:
        raise typer.Exit(ExitCode.refused)


def _print_diff(diff: list[str]) -> None:
    colors = {"+": typer.colors.GREEN, "-": typer.colors.RED, "@": typer.colors.CYAN}
    for line in diff:
        typer.secho(line, fg=colors.get(line[:1]))


def _print_outcome(mended: "Mended", *, warnings: bool) -> None:
    if mended.issues:
        rounds = "1 round" if mended.rounds == 1 else f"{mended.rounds} rounds"
        codes = ", ".join(dict.fromkeys(issue["code"] for issue in mended.issues))
        print_lines(["", f"Fixed in {rounds}: {codes}."])
    left = [issue for issue in mended.plan["issues"] if not issue["accepted"]]
    spared = [i for i in left if i["severity"] == "warning" and i["fix"] and not warnings]
    for heading, issues in (
        ("These have no fix that could be applied", [i for i in left if i not in spared]),
        ("Warnings are left to you; --warnings fixes these too", spared),
    ):
        if issues:
            typer.echo(f"\n{heading}:")
            print_lines(issue_lines(issues))
    said = "be accepted" if mended.is_accepted else "still be refused"
    typer.echo(
        f"\nIt would {said}." if mended.issues or left else f"Nothing to fix: it would {said}."
    )


def _print_written(written: Path | None, source: Format, *, is_mended: bool) -> None:
    if written is not None:
        typer.echo(f"Written to {written}.")
    elif is_mended and source == "toml":
        typer.echo("Nothing was written: -o FILE.yaml or -o FILE.json writes it.")
    elif is_mended:
        typer.echo("Nothing was written: -o FILE writes it, --in-place over the spec.")
