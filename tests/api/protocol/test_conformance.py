"""The service against its own OpenAPI document, by generated requests (schemathesis)."""

import subprocess
import sys

import pytest

from tests.api.process import ApiProcess
from tests.api.support import SPEC

# Valid by the schema is not valid for the guard (a dataset must exist), so acceptance is not asked.
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,response_headers_conformance,negative_data_rejection,"
    "unsupported_method,ignored_auth"
)
CONFIG = """
[parameters]
wait = 0
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("examples", "seconds"), [(3, 20), pytest.param(30, 200, marks=pytest.mark.minutes)]
)
def test_generated_requests_are_answered_as_documented(
    settings, store, player, tmp_path, examples, seconds
):
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    with ApiProcess(settings.home, STOKER_BEAT_SECONDS="30") as server:  # nobody is found lost
        run_id = server.client.post("/runs", json=SPEC).json()["id"]
        player.checkpoint(player.claim(), 10)
        assert run_id == 1  # the id in the document's examples
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"),
            *(f"{server.url}/openapi.json", "--header", f"Authorization: Bearer {server.token}"),
            *("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", str(examples)),
            *("--checks", CHECKS, "--request-timeout", "10", "--max-time", str(seconds)),
            *("--seed", "1", "--continue-on-failure", "--suppress-health-check", "all"),
            *("--no-shrink", "--no-color"),
        ]
        result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=280)
        assert result.returncode == 0, result.stdout[-20_000:] + result.stderr[-2_000:]
        assert "Traceback" not in server.log
