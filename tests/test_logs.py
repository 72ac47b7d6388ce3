"""The lines that processes log: one form for all, whoever wrote them."""

import re
import subprocess
import sys

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z \[(\w+) *\] (.*)")


def lines_of(code: str, level: str = "info") -> list[str]:
    """What code writes to stderr, in a process of its own: logging is a matter of the process."""
    begin = f"import logging, structlog; from app.logs import configure_logging as configure\n\
configure({level!r}); log = structlog.get_logger('stoker.test')\n"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", begin + code], capture_output=True, text=True
    )
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    return result.stderr.splitlines()


def parts(line: str) -> tuple[str | None, ...]:
    match = LINE.fullmatch(line)
    assert match is not None, line
    return match.groups()


def test_a_line_is_a_sentence_with_facts():
    (line,) = lines_of("log.info('the API listens', url='http://a', port=1)")
    assert parts(line) == ("info", "the API listens port=1 url=http://a")


def test_lines_of_libraries_look_the_same():
    code = "logging.getLogger('uvicorn.error').warning('%s is gone', 'the peer')"
    (line,) = lines_of(code)
    assert parts(line) == ("warning", "the peer is gone")


def test_only_the_wanted_levels_are_written():
    code = "log.debug('a'); log.info('b'); log.error('c'); logging.getLogger('x').info('d')"
    assert [parts(line)[1] for line in lines_of(code)] == ["b", "c"]
    assert [parts(line)[1] for line in lines_of(code, "DEBUG")] == ["a", "b", "c"]
    assert [parts(line)[1] for line in lines_of(code, "error")] == ["c"]


def test_a_traceback_shows_no_values():
    code = """
def fail(secret):
    raise ValueError('no')
try:
    fail('hidden-' + 'away')
except ValueError:
    log.exception('it went wrong', run=7)
"""
    first, *rest = lines_of(code)
    assert parts(first) == ("error", "it went wrong run=7")
    assert rest[-1] == "ValueError: no"
    assert "hidden-away" not in "".join(rest)
