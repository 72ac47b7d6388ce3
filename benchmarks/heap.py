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


def callers_environment() -> dict[str, str]:
    """The environment as the caller of this program has it: that of services."""
    return {k: v for k, v in os.environ.items() if OF_TRAINERS.get(k) != v}


def plain_environment() -> dict[str, str]:
    """The environment without any such settings: that of a user's script."""
    return {k: v for k, v in os.environ.items() if k not in OWNERS_MEMORY}


def settings_in_force() -> dict[str, str]:
    """Of this process."""
    return {name: os.environ[name] for name in OWNERS_MEMORY if name in os.environ}
