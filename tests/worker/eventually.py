"""Waiting for what other processes do, without a claim on how long it takes."""

import time

DEADLINE_SECONDS = 60.0


def eventually(probe, what):
    """The first truthy answer of `probe`; fails with `what` after the deadline."""
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        answer = probe()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"It did not happen that {what}.")
