"""compose.yaml: valid by the published schema, and true to the settings, images and paths it names.

`compose-spec.json` is the schema of the Compose Specification (Apache-2.0), as check-jsonschema
0.39.0 ships it.
"""

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import jsonschema
import pytest
from ruamel.yaml import YAML

from app.cli.host.supervise import WORKER_MARGIN_SECONDS
from app.settings import CLIENT_NAMES, Settings

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
OWN = ("api", "worker")


def bind_sources(service):
    return [text.split(":")[0] for text in service["volumes"] if text.startswith("./")]


@pytest.mark.parametrize("document", ["compose", "compose_gpu"])
def test_the_published_schema_accepts_it(document, request):
    schema = json.loads((HERE / "compose-spec.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(request.getfixturevalue(document))


def test_images_are_built_from_stages_that_exist(compose, stages):
    assert {compose["services"][name]["build"]["target"] for name in OWN} <= set(stages)


def test_mounted_paths_and_volumes_exist(compose):
    for service in compose["services"].values():
        assert all((ROOT / source).exists() for source in bind_sources(service))
        for text in service["volumes"]:
            if not text.startswith("./"):
                name = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", text).split(":")[0]
                assert name in compose["volumes"]


def test_settings_exist_and_are_accepted(compose, monkeypatch):
    for name in OWN:
        for variable, value in compose["services"][name]["environment"].items():
            setting = variable.removeprefix("STOKER_")
            assert setting.lower() in Settings.model_fields or setting in CLIENT_NAMES
            monkeypatch.setenv(variable, re.sub(r"\$\{\w+:-(\w+)\}", r"\1", value))
    assert Settings().auth == "token"


def test_a_stop_is_given_longer_than_the_grace_of_trainers(compose):
    worker = compose["services"]["worker"]
    grace = float(worker["environment"]["STOKER_STOP_GRACE_SECONDS"])
    assert float(worker["stop_grace_period"].removesuffix("s")) >= grace + WORKER_MARGIN_SECONDS


def test_only_the_loopback_address_is_published(compose):
    published = [
        port for service in compose["services"].values() for port in service.get("ports", [])
    ]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("name", OWN)
def test_own_services_reap_children_and_have_no_privileges(compose, name):
    service = compose["services"][name]
    assert service["init"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_everything_has_a_health_check(compose, stages):
    for name, service in compose["services"].items():
        assert "healthcheck" in service or stages[name].last("HEALTHCHECK")


def test_prometheus_scrapes_names_that_the_api_answers_to(compose):
    config = YAML(typ="safe").load((ROOT / "monitoring/prometheus.yml").read_text())
    targets = {
        job["job_name"]: target
        for job in config["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    }
    assert targets == {"stoker-api": "api:8000", "stoker-worker": "worker:8001"}
    assert "api" in compose["services"]["api"]["environment"]["STOKER_ALLOWED_HOSTS"].split(",")


def test_commands_in_the_workers_container_find_the_api(compose):
    address = urlsplit(compose["services"]["worker"]["environment"]["STOKER_URL"])
    assert address.hostname in compose["services"]["api"]["environment"][
        "STOKER_ALLOWED_HOSTS"
    ].split(",")
    assert compose["services"]["api"]["ports"][0].endswith(f":{address.port}")


def test_grafana_finds_prometheus_and_its_dashboards(compose):
    provisioning = ROOT / "monitoring/grafana/provisioning"
    (source,) = YAML(typ="safe").load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = YAML(typ="safe").load((provisioning / "dashboards/stoker.yml").read_text())[
        "providers"
    ]
    mounts = {
        text.split(":")[1]: text.split(":")[0] for text in compose["services"]["grafana"]["volumes"]
    }
    assert mounts[provider["options"]["path"]] == "./monitoring/grafana/dashboards"
    home = compose["services"]["grafana"]["environment"][
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
    ]
    assert (ROOT / "monitoring/grafana/dashboards" / Path(home).name).exists()


def test_the_gpu_file_changes_only_the_worker(compose, compose_gpu):
    assert set(compose_gpu["services"]) == {"worker"} <= set(compose["services"])
    (device,) = compose_gpu["services"]["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
