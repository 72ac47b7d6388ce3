"""Specs as they are kept: read back by this version of Stoker, whichever wrote them."""

import json
from collections.abc import Mapping
from typing import Any

from app.spec.run import RunSpec
from app.spec.script import ScriptSpec

AnySpec = RunSpec | ScriptSpec


def read_stored(document: Mapping[str, Any]) -> RunSpec:
    """The spec of a run that was accepted; ValueError when it is none.

    Fields that are not known here are passed over: a newer Stoker of the same spec version has
    written them, and what is trained does not hang on them. In a request they are errors.
    """
    return RunSpec.model_validate_json(json.dumps(document), extra="ignore")


def read_stored_script(document: Mapping[str, Any]) -> ScriptSpec:
    """The spec of a script that was accepted; as `read_stored`."""
    return ScriptSpec.model_validate_json(json.dumps(document), extra="ignore")
