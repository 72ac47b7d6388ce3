"""Calls that the contract names and this version does not have: each says so when it is asked."""

import re
from collections.abc import Sequence

# Method, path, and what this version does not do, as the end of a sentence.
UNBUILT: Sequence[tuple[str, str, str]] = (
    ("POST", r"/runs/\d+/status", "take a status here: a script finds its own address for it in "
     "KUBEFLOW_TRAINER_SERVER_URL"),
    ("GET", r"/runs/\d+/diagnosis", "diagnose runs"),
    ("POST", r"/runs/\d+/verify-resume", "prove that a run resumes exactly"),
    ("POST", r"/runs/\d+/stacks", "show the stacks of a run"),
    ("POST", r"/runs/\d+/profile", "profile a run"),
    ("GET", r"/runs/compare", "compare runs"),
    ("GET", r"/slots/usage", "count the seconds of slots"),
    ("GET", r"/|/ui(/.*)?|/login", "have a web page; the commands of `stoker` show the same"),
)  # fmt: skip


def missing_in(method: str, path: str) -> str | None:
    """Returns what this version does not do; None if the contract has no such call."""
    method = "GET" if method == "HEAD" else method
    return next(
        (what for verb, at, what in UNBUILT if verb == method and re.fullmatch(at, path)), None
    )
