"""`stoker plan`: what it shows, what --fix makes of a spec, and what it never does by itself."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from app.cli.output import size
from app.cli.specs.fixing import mend
from app.cli.specs.planview import print_plan
from app.cli.specs.specfile import read_request
from app.guard.case import Case
from app.guard.plan import RunPlan, make_plan
from app.guard.wording import share
from app.planning.shuffle import Neighbours
from app.spec.layers import overlay
from app.spec.run import RunSpec
from app.store.runs.history import LEAST_SECONDS, LEAST_STEPS
from stoker import Client
from tests.cli.conftest import SPEC
from tests.guard.cases import CASES
from tests.guard.world import CATALOG, REQUEST, as_measured, point, with_field, world

WRITTEN = """\
# Forecasts of the waves
name: "waves"          # for people
recipe: { kind: sequence, hidden_size: 8, patch: 4 }
data:
    dataset: waves
training:
    max_epochs: 3
    batch_size: 16
optimizer:
    kind: adm
    lr: 1e-3
    weight_decay: 0.01   # too much?
checkpoint: {mode: max}
evaluation: {every_epochs: null}
early_stopping:
    patience: 5
"""
MENDED = """\
# Forecasts of the waves
name: "waves"          # for people
recipe: { kind: sequence, hidden_size: 8, patch: 4 }
data:
    dataset: waves
training:
    epochs: 3
    batch_size: 16
optimizer:
    kind: adam
    lr: 1e-3
    weight_decay: 0.01   # too much?
checkpoint: {mode: min}
evaluation: {every_epochs: null}
early_stopping: null
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(WRITTEN)
    return path


def test_a_plan_shows_samples_steps_place_and_sources(cli, api, spec_file):
    out = cli("plan", str(spec_file)).out
    assert "480 to train on, 120 to validate" in out
    assert "place in the queue" in out
    assert "lstm fp32, head fp32, weights fp32" in out
    assert LEAST_SECONDS == 60
    assert f"no run like it has trained for {LEAST_STEPS} steps or a minute yet" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["training.epochs", "3", "request"] in rows
    assert ["runtime.device", "cpu", "request"] in rows
    assert not [row for row in rows if row[-1:] == ["default"]]
    everything = cli("plan", str(spec_file), "--all").out
    assert ["early_stopping", "null", "default"] in [
        line.split() for line in everything.splitlines()
    ]


def spoken(name: str) -> str:
    return name.replace("_", " ")


def answer_of(plan: RunPlan, memory: dict[str, Any]) -> dict[str, Any]:
    return {
        "spec": plan.spec, "issues": [], "unchecked": [], "provenance": plan.provenance,
        "memory": memory, "queue_position": 1, "estimate": plan.estimate,
    }  # fmt: skip


def test_the_memory_plan_is_shown_with_its_largest_part_first(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    plan = make_plan(REQUEST, world(), CATALOG)
    spec = RunSpec.model_validate_json(json.dumps(plan.require_ok()))
    facts = as_measured({}, world(), point(128, 760))
    memory = Case(spec, facts).memory.as_json()
    answer = answer_of(plan, memory)
    print_plan(answer, everything=False)
    out = capsys.readouterr().out
    planned, budget = memory["host"]["planned_bytes"], memory["host"]["budget_bytes"]
    assert (
        f"host: {size(planned)} at the peak, while training, {share(planned / budget)} of the "
        f"{size(budget)} that are available" in out
    )
    largest, *_, least = sorted(
        memory["host"]["items"], key=lambda name: -memory["host"]["items"][name]
    )
    assert out.index(f"    {spoken(largest)} ") < out.index(f"    {spoken(least)} ")
    assert "The data stays on the device." in out
    assert "Measured by run 7, last on box at 2023-11-14T22:13:20Z, with batches of 128." in out
    assert ", by run 1\n" in out


def test_a_plan_shows_what_a_batch_is_worth(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    alike = with_field("targets", neighbours=Neighbours((1, 64, 128), (1.0, 1.0, 0.5)))
    for loader, worth in (({}, "128"), ({"shuffle_group": 640, "shuffle_block": 64}, "11")):
        plan = make_plan(overlay(REQUEST, {"data": {"loader": loader}}), world(alike), CATALOG)
        assert plan.memory is not None
        print_plan(answer_of(plan, plan.memory), everything=False)
        out = capsys.readouterr().out
        assert f"128 samples, worth about {worth} independent ones of 'targets'" in out


def test_a_probe_has_a_real_step_measured(cli, up, spec_file):
    # Of a size that no run of the other tests has: measured runs come before a probe.
    size = ("--set", "recipe.hidden_size=24")
    answer = cli("plan", str(spec_file), *size, "--probe", "--json")
    assert answer.code == 0, answer.err
    memory = answer.document["memory"]
    measured = memory["measured"]
    assert (len(measured["batch_sizes"]), measured["runs"]) == (2, [])
    assert {"activations", "evaluation"} <= memory["host"]["items"].keys()
    assert f"as a probe on {measured['worker']} on" in " ".join(memory["assumed"])


def test_what_nobody_has_measured_is_said_with_the_way_to_measure_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    plan = make_plan(REQUEST, world(), CATALOG)
    assert plan.memory is not None
    print_plan(answer_of(plan, plan.memory), everything=False)
    out = capsys.readouterr().out
    assert "are exact, while " in out
    assert "; what comes on top was never measured" in out
    assert "Not known: activations, evaluation. `stoker plan SPEC --probe` measures a step." in out


def test_without_a_worker_a_probe_is_refused_with_a_sentence(cli, api, spec_file):
    answer = cli("plan", str(spec_file), "--probe")
    assert answer.code == 5
    assert "no worker is alive" in " ".join(answer.err.split())


def test_what_could_not_be_checked_is_grouped_by_the_fact(cli, api, spec_file):
    options = ("--set", "data.loader={kind: chunked}", "--set", "checkpoint.every_steps=900")
    answer = cli("plan", str(spec_file), *options, "--json").document
    out = cli("plan", str(spec_file), *options).out
    for entry in answer["unchecked"]:
        (line,) = [line for line in out.splitlines() if line.startswith(f"  {entry['missing']}: ")]
        assert entry["code"] in line


def test_the_diff_is_shown_and_nothing_is_written(cli, api, written):
    answer = cli("plan", "--fix", str(written))
    assert answer.code == 0
    assert "-    max_epochs: 3\n+    epochs: 3\n     batch_size: 16\n" in answer.out
    said = " ".join(answer.out.split())
    mended = ("wrong_value", "correctness.never_evaluated", "learning.monitor_upside_down")
    assert "Fixed in 2 rounds: unknown_field, " + ", ".join(mended) in said
    assert "It would be accepted.\nNothing was written" in answer.out
    assert written.read_text() == WRITTEN


def test_a_mended_spec_keeps_all_else_as_it_was_written(cli, api, written, tmp_path):
    target = tmp_path / "mended.yaml"
    assert cli("plan", "--fix", str(written), "-o", str(target)).code == 0
    assert target.read_text() == MENDED
    assert written.read_text() == WRITTEN
    again = cli("plan", "--fix", str(target))
    assert (again.code, "Mended" in again.out, "+++" in again.out) == (0, False, False)


def test_in_place_is_asked_for_by_name(cli, api, written):
    written.chmod(0o640)
    assert cli("plan", "--fix", "--in-place", str(written)).code == 0
    assert written.read_text() == MENDED
    assert written.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in written.parent.iterdir()] == ["spec.yaml"]
    before = written.stat().st_ino
    again = cli("plan", "--fix", "--in-place", str(written))
    assert (again.code, "Written" in again.out) == (0, False)
    assert written.stat().st_ino == before


def test_numbers_that_are_text_and_names_are_mended_with_their_comments(cli, api, written):
    text = WRITTEN.replace("lr: 1e-3", 'lr: "3e-3"  # fast').replace(
        "max_epochs: 3\n    batch_size: 16\n",
        "max_epochs: \"3\"  # three\n    # about batch\n    batchsize: '16'  # b\n",
    )
    written.write_text(text)
    assert cli("plan", "--fix", "--in-place", str(written)).code == 0
    assert written.read_text() == MENDED.replace("lr: 1e-3", "lr: 0.003  # fast").replace(
        "epochs: 3\n    batch_size: 16\n",
        "epochs: 3  # three\n    # about batch\n    batch_size: 16  # b\n",
    )


def test_what_has_no_fix_is_said_and_the_rest_is_mended(cli, api, written):
    answer = cli("plan", "--fix", str(written), "--set", "data.inputs=[nothing, nowhere]")
    assert answer.code == 5
    assert "These have no fix that could be applied:\n  error " in answer.out
    assert "correctness.unknown_array" in answer.out
    assert "+    epochs: 3" in answer.out
    assert "It would still be refused." in answer.out


def test_a_risk_that_is_accepted_is_not_mended(cli, api, spec_file):
    options = ("--set", "checkpoint.mode=max", "--set", "accept_risks=[learning.*]")
    answer = cli("plan", "--fix", str(spec_file), *options, "--json")
    assert answer.code == 0
    assert answer.document["request"]["checkpoint"]["mode"] == "max"
    assert "learning.monitor_upside_down" not in [
        issue["code"] for issue in answer.document["mended"]
    ]


def test_what_is_only_warned_of_is_mended_when_that_is_asked_for(cli, api, spec_file):
    """A warning may be what was meant: the rate is the author's."""
    options = (str(spec_file), "--set", "optimizer.lr=0.5", "--set", "checkpoint.mode=max")
    answer = cli("plan", "--fix", *options)
    assert answer.code == 0
    assert '"optimizer": {"lr": 0.5}, "checkpoint": {"mode": "min"}}' in answer.out
    unmendable, left = answer.out.split("Warnings are left to you; --warnings fixes these too:")
    assert ("rate_beyond_batch" in unmendable, "rate_beyond_batch" in left) == (False, True)
    assert ("no_worker" in unmendable, "no_worker" in left) == (True, False)
    document = cli("plan", "--fix", *options, "--json").document
    assert document["request"]["optimizer"]["lr"] == 0.5
    assert [issue["code"] for issue in document["mended"]] == ["learning.monitor_upside_down"]
    more = cli("plan", "--fix", "--warnings", *options, "--json").document
    assert more["request"]["optimizer"]["lr"] < 0.1
    assert "learning.rate_beyond_batch" in [issue["code"] for issue in more["mended"]]
    assert [issue["code"] for issue in more["plan"]["issues"]] == ["speed.no_worker"]


def test_warnings_are_mended_with_fix_only(cli, api, spec_file):
    answer = cli("plan", "--warnings", str(spec_file))
    assert (answer.code, "--fix" in answer.err) == (2, True)


def test_a_refused_plan_names_the_option_that_mends_it(cli, api, spec_file):
    hint = "--fix applies these fixes"
    assert hint in cli("plan", str(spec_file), "--set", "checkpoint.mode=max").out
    unmendable = ("--set", "data.inputs=[nothing, nowhere]", "--set", "optimizer.lr=0.5")
    assert hint not in cli("plan", str(spec_file), *unmendable).out


def test_json_says_all_of_it(cli, api, written):
    answer = cli("plan", "--fix", str(written), "--json").document
    assert (answer["accepted"], answer["rounds"], answer["written"]) == (True, 2, None)
    assert answer["request"]["training"] == {"batch_size": 16, "epochs": 3}
    assert answer["diff"].startswith("--- ")
    assert answer["plan"]["spec"]["training"]["epochs"] == 3


def test_json_and_toml_are_mended_too(cli, api, tmp_path):
    broken = {**SPEC, "checkpoint": {"mode": "max"}}
    source = tmp_path / "spec.json"
    source.write_text(json.dumps(broken, indent=4))
    assert cli("plan", "--fix", "--in-place", str(source)).code == 0
    assert source.read_text().startswith('{\n    "name": "waves"')
    assert json.loads(source.read_text())["checkpoint"] == {"mode": "min"}
    toml = tmp_path / "spec.toml"
    toml.write_text('[recipe]\nkind = "sequence"\npatch = 4\n[data]\ndataset = "waves"\n'
                    '[checkpoint]\nmode = "max"\n[training]\nbatch_size = 16\n')  # fmt: skip
    shown = cli("plan", "--fix", str(toml), "-o", str(tmp_path / "other.yaml"))
    assert shown.code == 0, shown.out
    assert '-    "mode": "max"\n+    "mode": "min"' in shown.out
    assert read_request(str(tmp_path / "other.yaml"), [])["checkpoint"] == {"mode": "min"}
    assert tomllib.loads(toml.read_text())["checkpoint"] == {"mode": "max"}


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("-o", "{}/spec.yaml"), 5, "exists already"),
        (("-o", "{}/no/folder.yaml"), 5, "no folder"),
        (("-o", "{}/spec.toml"), 5, ".yaml, .yml or .json"),
        (("-o", "{}/x.yaml", "--in-place"), 2, "one of the two"),
    ],
)
def test_a_target_that_cannot_be_is_refused_first(cli, api, written, options, code, said):
    arguments = [option.format(written.parent) for option in options]
    answer = cli("plan", "--fix", str(written), *arguments)
    assert answer.code == code
    assert said in " ".join(answer.err.replace("│", " ").split())
    assert written.read_text() == WRITTEN


def test_only_what_is_mended_is_written(cli, api, written, tmp_path):
    assert cli("plan", str(written), "-o", str(tmp_path / "x.yaml")).code == 2
    assert cli("plan", "--fix", "--in-place", "-", text=WRITTEN).code == 5


def test_toml_is_shown_instead_of_written_in_place(cli, api, tmp_path):
    toml = tmp_path / "spec.toml"
    text = """[recipe]
kind = "sequence"
patch = 4
[data]
dataset = "waves"
[checkpoint]
mode = "max"
[training]
batch_size = 16
"""
    toml.write_text(text)
    answer = cli("plan", "--fix", "--in-place", str(toml))
    assert (answer.code, toml.read_text()) == (5, text)
    assert "cannot be edited in place" in " ".join(answer.err.split())
    assert '+    "mode": "min"' in answer.out
    assert "\ncheckpoint:\n  mode: min\n" in answer.out
    assert "Nothing was written" not in answer.out  # which the error says, and why
    said = cli("plan", "--fix", str(toml)).out
    assert said.endswith("Nothing was written: -o FILE.yaml or -o FILE.json writes it.\n")
    document = cli("plan", "--fix", "--in-place", "--json", str(toml))
    assert (document.code, document.document["written"]) == (5, None)
    toml.write_text(text.replace("max", "min"))
    assert cli("plan", "--fix", "--in-place", str(toml)).code == 0


@pytest.mark.parametrize("is_whole", [True, False])
def test_line_ends_and_the_lack_of_the_last_are_kept_in_place(cli, api, written, is_whole):
    text, mended = (part if is_whole else part.rstrip() for part in (WRITTEN, MENDED))
    written.write_text(text, newline="\r\n")
    assert cli("plan", "--fix", "--in-place", str(written)).code == 0
    assert written.read_bytes() == mended.replace("\n", "\r\n").encode()


def test_a_file_that_would_lose_its_comments_in_place_is_left_alone(cli, api, written, tmp_path):
    """A round trip has no place for a comment between the braces of a mapping."""
    text = WRITTEN.replace("{mode: max}", "{  # which is the best?\n  mode: max}")
    written.write_text(text)
    answer = cli("plan", "--fix", "--in-place", str(written))
    assert (answer.code, written.read_text()) == (5, text)
    assert "without losing its comments" in answer.err
    mended = tmp_path / "mended.yaml"
    assert cli("plan", "--fix", "-o", str(mended), str(written)).code == 0
    assert read_request(str(mended), [])["checkpoint"] == {"mode": "min"}


@pytest.mark.parametrize("code", sorted(CASES))
def test_what_a_rule_refuses_is_mended_in_three_rounds(code):
    """The guard itself as the service: what is left has no fix."""
    case = CASES[code]
    facts = case.facts

    def planned(request):
        plan = make_plan(request, facts, CATALOG)
        return {"issues": [issue.model_dump(mode="json") for issue in plan.issues]}

    usual = {"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}}
    mended = mend(usual, planned, warnings=True)
    broken = mend(_over(mended.request, case.found), planned, warnings=True)
    assert broken.rounds <= 3
    assert not [issue for issue in broken.plan["issues"] if issue["fix"]]


def _over(request, change):
    return {
        **request,
        **{
            name: _over(request[name], value)
            if isinstance(value, dict) and isinstance(request.get(name), dict)
            else value
            for name, value in change.items()
        },
    }


def test_a_submission_says_what_was_let_pass_and_show_says_it_again(cli, api, spec_file):
    risky = ("--set", "checkpoint.mode=max", "--set", "accept_risks=[learning.*]")
    answer = cli("submit", str(spec_file), *risky)
    assert answer.code == 0
    assert "warning learning.monitor_upside_down at checkpoint.mode" in answer.out
    assert "accepted by accept_risks" in answer.out
    with Client() as client:
        run_id = client.runs(limit=1)["data"][0]["id"]
    assert "accepted risks  learning.monitor_upside_down" in cli("show", str(run_id)).out


def test_a_refused_submission_names_the_command_that_mends_it(cli, api, written):
    answer = cli("submit", str(written), "--set", "notes=a b")
    assert answer.code == 5
    assert f"stoker plan --fix {written} --set 'notes=a b'" in answer.err


def test_the_trainers_spec_is_the_stored_one(up, finished_run):
    with Client() as client:
        stored = client.spec(finished_run["id"])["spec"]
    folder = up / "artifacts" / "runs" / str(finished_run["id"]) / "attempt-1"
    assert json.loads((folder / "spec.json").read_text())["spec"] == stored
