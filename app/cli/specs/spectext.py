"""A changed spec in the words of its file: lines that did not change stay as they were written."""

import json
import os
import re
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from stat import S_IMODE
from tempfile import NamedTemporaryFile

from app.cli.failures import CommandFailed
from app.cli.specs.ownlines import with_own_lines
from app.cli.specs.specfile import Document, Format, SpecFile
from app.cli.specs.yamltext import comments_of, dump_yaml, rewritten, same
from app.durable import sync
from app.errors import InvalidRequest
from app.spec.reading import read_json, read_yaml


def before_and_after(spec: SpecFile, changed: Document) -> tuple[str, str]:
    """The text of a spec and of what became of it, to be compared line by line.

    TOML, which nothing here writes, is shown as JSON.
    """
    if spec.format == "toml":
        return _json(spec.document), _json(changed)
    return spec.text, written_as(spec.format, spec, changed)


def written_as(target: Format, spec: SpecFile, changed: Document) -> str:
    """The changed spec as YAML or JSON; a file of the same format keeps its look."""
    if target != spec.format:
        return _json(changed) if target == "json" else dump_yaml(changed)
    kept = kept_text(spec, changed)
    if kept is not None:
        return kept
    return _ended_as(spec.text, _lines(dump_yaml(changed)))


def write(path: Path, kind: Format, spec: SpecFile, changed: Document, *, over: bool) -> None:
    """Write the changed spec to a new file, or over its own; CommandFailed and OSError.

    A file that is written over keeps its comments, its owner and its rights.
    """
    if not over:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(written_as(kind, spec, changed))
        return
    text = kept_text(spec, changed)
    lost = _lost_comment(spec, changed, text)
    if text is None or lost is not None:
        raise CommandFailed(
            f"{spec.name} cannot be changed in place without losing its comments"
            + (f": {lost} would be lost or moved. Move it to a line above, or " if lost else "; ")
            + "write another file with -o FILE."
        )
    _replace(path, spec, text.encode())


def _lost_comment(spec: SpecFile, changed: Document, kept: str | None) -> str | None:
    """The first comment that is not, in its order, in what is kept; or, where nothing can be, in
    what a round trip makes of the text.
    """
    if _is_json(spec):
        return None
    own = _plain(spec.text)
    new = rewritten(own, spec.document, changed)[1] if kept is None else _plain(kept)
    left = (comment for _, comment in comments_of(new))
    for line, comment in comments_of(own):
        if comment not in left:  # which reads on behind the one before
            return f"the comment in line {line} ({comment})"
    return None


def _plain(text: str) -> str:
    """A text without a mark at its start, its lines ended as on Linux."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _replace(path: Path, spec: SpecFile, content: bytes) -> None:
    """Put other content into a spec's own file, the whole of it or nothing."""
    with path.open("r+b") as file:  # which asks whether it may be written, too
        if file.read() != spec.content:
            raise CommandFailed(
                f"{spec.name} was changed while its plan was made, and is left as it is; "
                "give the command again."
            )
        status = os.fstat(file.fileno())
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as incoming:
        try:
            incoming.write(content)
            incoming.flush()
            os.fchown(incoming.fileno(), status.st_uid, status.st_gid)
            os.fchmod(incoming.fileno(), S_IMODE(status.st_mode))
            os.fsync(incoming.fileno())
            Path(incoming.name).replace(path)
        except PermissionError:
            raise CommandFailed(
                f"{spec.name} belongs to another user or group, and a changed file could not be "
                "given to them; it is left as it is. -o FILE writes another file."
            ) from None
        finally:
            Path(incoming.name).unlink(missing_ok=True)
    sync(path.parent)


def kept_text(spec: SpecFile, changed: Document) -> str | None:
    """The file's text with the change in it; None where comments of its author would be lost.

    One behind a value that goes may go with it. What comes out is read again: it says what it
    should, or is not given.
    """
    text = _plain(spec.text)
    if _is_json(spec):
        return _ended_as(spec.text, _lines(_json(changed, _indent_of(text))))
    before, after = rewritten(text, spec.document, changed)
    candidates = []
    with suppress(ValueError):
        candidates.append(with_own_lines(_lines(text), _lines(before), _lines(after)))
    if before.count("#") == text.count("#"):
        candidates.append(_lines(after))
    texts = (_ended_as(spec.text, lines) for lines in candidates)
    return next((one for one in texts if _reads_as(changed, one)), None)


def _is_json(spec: SpecFile) -> bool:
    """Whether it is JSON, as a YAML file may be too."""
    if spec.format == "json":
        return True
    try:
        read_json(spec.content)
    except InvalidRequest:
        return False
    return True


def _reads_as(document: Document, text: str) -> bool:
    try:
        return same(read_yaml(text.encode()), document)
    except InvalidRequest:
        return False


def diff_of(before: str, after: str, old: str, new: str) -> list[str]:
    """The lines of a unified diff; none when nothing has changed."""
    return list(unified_diff(before.splitlines(), after.splitlines(), old, new, n=3, lineterm=""))


def _json(document: Document, indent: int | str | None = 2) -> str:
    return json.dumps(document, indent=indent, ensure_ascii=False) + "\n"


def _indent_of(text: str) -> str | None:
    """What the first line in a block of JSON is indented with; None where there is one line."""
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found else None


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def _ended_as(text: str, lines: list[str]) -> str:
    """Lines as a text with the start and the line ends of another one, the last included."""
    end = "\r\n" if "\r\n" in text else "\n"
    start = "\ufeff" if text.startswith("\ufeff") else ""
    return start + end.join(lines) + (end if text.endswith("\n") else "")
