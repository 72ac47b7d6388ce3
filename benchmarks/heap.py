"""The memory settings of a process that is measured: those of a trainer, or of a plain script."""

import os
import platform
import sys

from worker.launch.local import OWNERS_MEMORY, memory_settings

OF_TRAINERS = memory_settings(platform.libc_ver())


def begin_as_a_trainer() -> None:
    """Begin this program anew with a trainer's memory settings, which glibc reads once; not where
    its caller has set some: a trainer of theirs would have those.
    """
    if not os.environ.keys() & set(OWNERS_MEMORY):
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(command[0], command, os.environ | OF_TRAINERS)  # noqa: S606 - itself


def plain_environment() -> dict[str, str]:
    """The environment without a trainer's settings: that of users' scripts, and of services."""
    return {k: v for k, v in os.environ.items() if OF_TRAINERS.get(k) != v}
