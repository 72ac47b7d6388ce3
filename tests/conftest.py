"""Shared by all tests: where a machine must be complete (CI=true), a skipped part is a failure."""

import gc
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from app.settings import load_settings
from app.store.engine.database import Database
from app.store.engine.migrate import upgrade

# Threads of torch that wait for each other spin by default, which beside another test session's
# takes many times as long as sleeping does. Read when torch is loaded, here and in children.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# A trainer that no test waits for would take its two seconds of a core from one that is waited for.
os.environ.setdefault("STOKER_STANDBY", "0")
# Every process that a test starts would compile all of Stoker anew, and pytest all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Tracebacks as our processes log them: where rich is installed, structlog's own show all values,
# which takes seconds where an application is among them.
*BEFORE, _ = structlog.get_config()["processors"]
PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*BEFORE, PLAIN])
MUST_RUN = ("postgres", "browser", "prometheus", "systemd", "compiler", "namespaces", "slow")
# Folders whose files take long, so that no core idles beside one of them at the end.
LONG = "api", "benchmarks", "cli", "e2e", "guard", "homes", "script", "trainer", "worker"
LONG_FIRST = tuple(f"tests/{folder}/" for folder in LONG)
# Seconds after which a test that takes minutes ends with its stacks. The longest took 364 on two
# cores that three tests shared.
MINUTES_LIMIT = 1200
SKIPPED = pytest.StashKey[list[str]]()


# What is imported and collected stays: searching it for garbage is a third of collecting.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPPED] = []
    config.pluginmanager.register(_SkipWatch(config.stash[SKIPPED]), "skip-watch")
    # A session in the background of a script ignores Ctrl-C, and so would every process that a
    # test starts and interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first, and files of a folder apart: those of some wait for other
    processes most of the time, and those of others compute, which goes well together. What takes
    minutes has one limit, whatever that of its file is.
    """
    items.sort(key=_turn)
    for item in items:
        if item.get_closest_marker("minutes") is not None:
            item.add_marker(pytest.mark.timeout(MINUTES_LIMIT), append=False)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database to copy, for migrating anew in each test is slow."""
    home = tmp_path_factory.mktemp("template")
    upgrade(load_settings(home=home))
    return home / "stoker.db"


@pytest.fixture(scope="session")
def one_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Database]]:
    """A link to a home, and the database in the home that it leads to."""
    link = tmp_path_factory.mktemp("engine") / "home"
    with closing(Database(load_settings(home=link))) as database:
        yield link, database


@pytest.fixture
def sqlite_in(
    one_engine: tuple[Path, Database], empty_database: Path
) -> Callable[[Path], Database]:
    """Makes the one SQLite database of a test, migrated and empty, in an existing home. All tests
    share its engine, because compiling each statement anew takes a fifth of their time.
    """
    link, database = one_engine

    def make(home: Path) -> Database:
        link.unlink(missing_ok=True)
        link.symlink_to(home)
        database.engine.dispose()
        shutil.copy(empty_database, home / "stoker.db")
        return database

    return make


def _turn(item: pytest.Item) -> tuple[bool, int, str]:
    file = item.nodeid.partition("::")[0]
    return not file.startswith(LONG_FIRST), zlib.crc32(file.encode()), file


class _SkipWatch:
    """Collects what was skipped although CI promised the parts that it needs."""

    def __init__(self, skipped: list[str]) -> None:
        self.skipped = skipped

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            marks = [name for name in MUST_RUN if name in report.keywords]
            self.skipped.extend(f"{report.nodeid} ({name})" for name in marks)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:  # a file skipped as a whole hides what its tests are marked with
            self.skipped.append(f"{report.nodeid} (the whole file)")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") == "true" and session.config.stash[SKIPPED]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if os.environ.get("CI") != "true" or not config.stash[SKIPPED]:
        return
    terminalreporter.section("skipped, but CI must run them", red=True)
    for line in config.stash[SKIPPED]:
        terminalreporter.line(line)
    terminalreporter.line(
        "The session fails: a check that did not run proves nothing. Install what these tests "
        "need (.ci/run does it on Debian), or run without CI=true."
    )
