"""Shared by all tests: where a machine must be complete (CI=true), a skipped part is a failure."""

import gc
import os
import signal

import pytest

# Threads of torch that wait for each other spin by default, which beside another test session's
# takes many times as long as sleeping does. Read when torch is loaded, here and in children.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# A trainer that no test waits for would take its two seconds of a core from one that is waited for.
os.environ.setdefault("STOKER_STANDBY", "0")
# Every process that a test starts would compile all of Stoker anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
MUST_RUN = ("postgres", "browser", "prometheus", "systemd", "compiler", "slow")
# Where tests wait for processes, or take long, so that no core idles beside them at the end.
LONGEST_FIRST = ("worker", "e2e", "guard", "deploy", "cli", "api")
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
    """Files of the folders that take longest come first, the rest in their order."""
    order = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.parent.name, len(order)))


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
