"""A text that a program wrote anew, with the lines that did not change as they were before."""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

COMMENT_BEHIND = re.compile(r"\s+#[^'\"]*$")
Lines = list[str]
Changes = Sequence[tuple[str, int, int, int, int]]


def with_own_lines(own: Lines, normal: Lines, new: Lines) -> Lines:
    """The new lines, but where they are as in `normal` those of `own`, which says the same.

    Comments and blank lines stay where they are. ValueError where a comment would be lost with the
    lines of a value that is written anew.
    """
    changes = SequenceMatcher(None, normal, new, autojunk=False).get_opcodes()
    words = _words_of_lines(own, normal, changes)
    written: Lines = []
    for tag, start, end, first, last in changes:
        old = [line for words_of_line in words[start:end] for line in words_of_line]
        if tag == "equal":
            written += old
        elif tag == "insert":
            _insert(written, new[first:last])
        else:
            _replace(written, old, new[first:last])
    return written


def _words_of_lines(own: Lines, normal: Lines, changes: Changes) -> list[Lines]:
    """What the author wrote for each normal line; where lines go together, the first has it all."""
    changed = {
        line for tag, start, end, *_ in changes if tag != "equal" for line in range(start, end)
    }
    words: list[Lines] = [[]]
    for mine, (first, last) in _side_by_side(own, normal):
        lines = range(first, last)
        if not lines:
            words[-1] += mine
        elif len(lines) == 1 == len(mine):
            words.append(mine)
        elif changed.isdisjoint(lines):
            words += [mine, *([] for _ in lines[1:])]
        elif any("#" in line for line in mine):
            raise ValueError("a comment would be lost")
        else:
            words += [[normal[line]] for line in lines]
    head, *words = words
    return [[*head, *words[0]], *words[1:]]


def _side_by_side(own: Lines, normal: Lines) -> Iterator[tuple[Lines, tuple[int, int]]]:
    """Lines of `own`, and the range of those in `normal` that say the same; singly if possible."""
    one, other = (["".join(line.split()) for line in lines] for lines in (own, normal))
    matched = SequenceMatcher(None, one, other, autojunk=False)
    for _, start, end, first, last in matched.get_opcodes():
        if end - start == last - first:
            for offset in range(end - start):
                yield [own[start + offset]], (first + offset, first + offset + 1)
        else:
            yield own[start:end], (first, last)


def _insert(written: Lines, fresh: Lines) -> None:
    """Put lines behind the last one of their block, not behind what stands above the next one."""
    outer = [line for line in range(len(fresh)) if -1 < _indent(fresh[line]) < _indent(fresh[0])]
    end = outer[0] if outer else len(fresh)
    depth = _indent(fresh[0]) + fresh[0].lstrip().startswith("-")
    place = len(written)
    while place and _is_loose(written[place - 1]) and _indent(written[place - 1]) < depth:
        place -= 1
    written[place:place] = fresh[:end]
    if outer:
        _insert(written, fresh[end:])


def _replace(written: Lines, old: Lines, fresh: Lines) -> None:
    """Put lines in the place of others, whose comments stay; where none come, the last of them."""
    end = len(old)
    while end and _is_loose(old[end - 1]):
        end -= 1
    if end == len(fresh):
        fresh = [_with_comment(*pair) for pair in zip(old[:end], fresh, strict=True)]
    within = [line for line in old[:end] if _is_loose(line) and line.strip()] if fresh else []
    behind = old[end:]
    written += fresh
    if behind and not behind[0].strip() and not (written and written[-1].strip()):
        behind = behind[1:]
    written += [line for line in within + behind if line not in fresh]


def _with_comment(old: str, fresh: str) -> str:
    """The fresh line with the comment of the old one, if it kept that, or the value behind it."""
    comment, found = COMMENT_BEHIND.search(old), COMMENT_BEHIND.search(fresh)
    if comment is None:
        return fresh
    if found is not None and found[0].strip() == comment[0].strip():
        return fresh[: found.start()] + comment[0]
    value = old[: comment.start()].partition(":")[2].strip()
    return fresh + comment[0] if value == fresh.partition(":")[2].strip() else fresh


def _is_loose(line: str) -> bool:
    """Whether it is a comment or blank."""
    return not line.strip() or line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else -1
