"""Plans of scripts: whose commands run, what fields hold, and what registered commands take."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import SpecRejected
from app.guard.patching import apply_json_patch
from app.guard.plan import RunPlan
from app.planning.requirements import Owner
from app.service.scripts import OVER_HTTP, Admission, among, new_script_run, plan_script
from app.settings import Settings, SettingsError, load_settings
from app.spec.script import ScriptSpec
from app.store.telemetry.memory_profiles import MemoryProfiles

OWNER = Admission(Owner("box", 1000))
TOML = """
[scripts.note]
argv = ["/opt/python", "note.py", "{text}", "--text={text}"]
cwd = "/srv"
params.text = {type = "str"}
[scripts.tune]
argv = ["/opt/python", "train.py", "--lr", "{lr}", "--amp={amp}"]
cwd = "/srv"
resume = "--resume {checkpoint}"
checkpoints = "out/*.pt"
params.lr = {type = "float", default = 1e-3, ge = 1e-6, le = 0.1}
params.amp = {type = "bool", default = false}
params.size = {type = "str", choices = ["s", "m"]}
"""


@pytest.fixture
def settings(tmp_path) -> Settings:
    (tmp_path / "stoker.toml").write_text(TOML)
    return load_settings(home=tmp_path)


def free(**recipe: Any) -> dict[str, Any]:
    return {"recipe": {"kind": "script", "argv": ["/usr/bin/python", "train.py"], **recipe}}


def named(**params: Any) -> dict[str, Any]:
    return {"recipe": {"kind": "script", "command": "tune", "params": {"size": "s", **params}}}


class NothingMeasured(MemoryProfiles):
    """Of a store without a run."""

    def __init__(self) -> None:
        """Without a database."""

    def of(self, keys):
        return {}


def planned(
    request: dict[str, Any], settings: Settings, admission: Admission = OVER_HTTP
) -> RunPlan:
    return plan_script(request, settings, NothingMeasured(), admission)


def errors(plan) -> list[tuple[str, tuple[Any, ...]]]:
    return [(issue.code, tuple(issue.loc)) for issue in plan.errors]


class TestOfWhoMayRunWhat:
    def test_a_free_command_over_the_socket_is_planned(self, settings):
        plan = planned(free(cwd="/home/me"), settings, OWNER)
        run = new_script_run(plan, admission=OWNER)
        assert errors(plan) == []
        assert (run.name, run.dataset, run.owner) == ("train.py", None, OWNER.owner)
        assert (run.max_retries, run.gpus, run.device) == (0, 1, "auto")

    def test_over_http_it_is_refused(self, settings):
        assert errors(planned(free(), settings)) == [("script_not_allowed", ("recipe", "argv"))]

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("argv", []), ("cwd", None), ("cwd", "/etc"), ("environment", "0" * 32),
            ("checkpoints", ["/home/*"]), ("resume", ["--evil", "{checkpoint}"]),
            ("metrics", {"file": "/etc/passwd"}), ("grace_seconds", 1.0), ("stop_signal", "SIGINT"),
        ],
    )  # fmt: skip
    def test_of_a_registered_command_only_its_parameters_may_be_said(self, settings, field, value):
        request = named()
        request["recipe"][field] = value
        for admission in (Admission(), OWNER):
            (issue,) = planned(request, settings, admission).errors
            assert (issue.code, issue.loc) == ("script_not_allowed", ["recipe", field])

    def test_a_restart_over_http_may_change_all_but_the_recipe(self, settings):
        of_parent = Admission(parent=free(cwd="/x"))
        assert errors(planned(free(cwd="/x"), settings, of_parent)) == []
        assert errors(planned({**free(cwd="/x"), "priority": 3}, settings, of_parent)) == []
        other = planned(free(cwd="/x", argv=["/bin/sh"]), settings, of_parent)
        assert errors(other) == [("script_not_allowed", ("recipe", "argv"))]
        moved = planned(free(cwd="/y"), settings, of_parent)
        assert errors(moved) == [("script_not_allowed", ("recipe", "cwd"))]
        more = planned(free(cwd="/x", checkpoints=["/etc/*"]), settings, of_parent)
        assert errors(more) == [("script_not_allowed", ("recipe", "checkpoints"))]
        request = {**free(cwd="/y", checkpoints=["/etc/*"], argv=["/bin/sh"]), "priority": 3}
        (refused,) = planned(request, settings, of_parent).errors
        mended = apply_json_patch(request, [op.model_dump() for op in refused.fix])
        assert mended == {**free(cwd="/x"), "priority": 3}, "all else is as it was asked for"
        assert planned(request, settings).errors[0].fix == [], "of a new run nothing is known"
        only = settings.model_copy(update={"scripts": "registered"})
        assert errors(planned(free(cwd="/x"), only, of_parent))

    @pytest.mark.parametrize(("mode", "allowed"), [("registered", False), ("off", False)])
    def test_settings_can_turn_free_commands_off(self, settings, mode, allowed):
        changed = settings.model_copy(update={"scripts": mode})
        assert (errors(planned(free(), changed, OWNER)) == []) is allowed
        assert (errors(planned(named(), changed)) == []) is (mode == "registered")
        [issue] = planned(free(), changed, OWNER).errors
        assert "STOKER_SCRIPTS" in issue.why
        assert "HTTP" not in issue.why


class TestOfRegisteredOnes:
    def test_its_parameters_fill_the_command_line(self, settings):
        plan = planned(named(lr=2e-4, amp=True), settings)
        assert plan.spec is not None
        recipe = plan.spec["recipe"]
        assert recipe["argv"] == ["/opt/python", "train.py", "--lr", "0.0002", "--amp=true"]
        assert recipe["resume"] == ["--resume", "{checkpoint}"]
        assert recipe["checkpoints"] == ["out/*.pt"]
        assert new_script_run(plan).max_retries == 3
        assert plan.provenance["/recipe/params/lr"]["source"] == "request"
        assert plan.provenance["/recipe/argv"]["source"] == "script"

    def test_a_value_fills_its_item_and_is_not_split(self, settings):
        text = "a b '{size} {text}\" $(id)"
        request = {"recipe": {"kind": "script", "command": "note", "params": {"text": text}}}
        recipe = planned(request, settings).require_ok()["recipe"]
        assert recipe["argv"] == ["/opt/python", "note.py", text, f"--text={text}"]

    @pytest.mark.parametrize(
        ("params", "code", "name"),
        [
            ({"lr": 0.5}, "wrong_value", "lr"),
            ({"lr": "fast"}, "wrong_value", "lr"),
            ({"amp": 3}, "wrong_value", "amp"),
            ({"size": "xl"}, "wrong_value", "size"),
            ({"lrr": 1e-4}, "unknown_field", "lrr"),
        ],
    )
    def test_values_out_of_bounds_are_refused(self, settings, params, code, name):
        assert errors(planned(named(**params), settings)) == [(code, ("recipe", "params", name))]

    def test_one_without_default_has_to_be_given(self, settings):
        request = {"recipe": {"kind": "script", "command": "tune"}}
        assert errors(planned(request, settings)) == [
            ("missing_field", ("recipe", "params", "size"))
        ]

    def test_an_unknown_name_is_asked_about(self, settings):
        plan = planned({"recipe": {"kind": "script", "command": "tun"}}, settings)
        (issue,) = plan.errors
        assert "Did you mean tune?" in issue.message
        assert issue.fix[0].value == "tune"

    @pytest.mark.parametrize(
        "line",
        [
            'argv = ["x", "{nothing}"]\ncwd = "/"',
            'argv = ["x"]\ncwd = "/"\nparams.a = {type = "int", default = "b"}',
            'argv = ["x"]\ncwd = "/"\nresume = "--go"',
            'argv = []\ncwd = "/"',
        ],
    )
    def test_a_wrong_registration_is_a_sentence(self, tmp_path, line):
        (tmp_path / "stoker.toml").write_text(f"[scripts.x]\n{line}\n")
        with pytest.raises(SettingsError):
            load_settings(home=tmp_path)


class TestOfItsFields:
    @pytest.mark.parametrize("block", ["data", "training", "optimizer", "preset"])
    def test_what_a_script_decides_itself_is_refused_with_a_fix(self, settings, block):
        plan = planned({**free(), block: {}}, settings, OWNER)
        (issue,) = plan.errors
        assert (issue.code, issue.loc) == ("not_of_a_script", [block])
        assert issue.fix[0].model_dump(mode="json")["op"] == "remove"

    def test_a_rollback_is_refused_with_a_fix(self, settings):
        policy = {"on_nonfinite": "rollback", "max_retries": 1}
        plan = planned({**free(), "policy": policy}, settings, OWNER)
        (issue,) = plan.errors
        assert (issue.code, issue.loc) == ("not_of_a_script", ["policy", "on_nonfinite"])
        assert issue.fix[0].path == "/policy/on_nonfinite"

    def test_a_text_is_split_once_as_a_shell_would(self, settings):
        resume = "--go '{checkpoint}' --note 'a  \"b\"' c\\ d"
        recipe = planned(free(resume=resume, checkpoints="out/my run/*.pt"), settings, OWNER)
        spec = recipe.require_ok()["recipe"]
        assert spec["resume"] == ["--go", "{checkpoint}", "--note", 'a  "b"', "c d"]
        assert spec["checkpoints"] == ["out/my run/*.pt"]
        again = planned(free(**{**spec, "environment": None}), settings, OWNER).require_ok()
        assert again["recipe"]["resume"] == spec["resume"], "what it became is not split again"

    @pytest.mark.parametrize(
        ("recipe", "field"),
        [
            ({"resume": "--go"}, "resume"),
            ({"resume": "--go {epoch}"}, "resume"),
            ({"resume": "--go '{checkpoint}"}, "resume"),
            ({"stop_signal": "SIGKILL"}, "stop_signal"),
            ({"stop_signal": "TERM"}, "stop_signal"),
            ({"grace_seconds": -1}, "grace_seconds"),
            ({"metrics": {"stdout": "loss: ([0-9]+)"}}, "metrics"),
            ({"metrics": {"stdout": "("}}, "metrics"),
            ({"argv": ["a\x00b"]}, "argv"),
            ({"checkpoints": ["out/**/*.pt"]}, "checkpoints"),
        ],
    )
    def test_bad_values_are_told_by_their_place(self, settings, recipe, field):
        plan = planned(free(**recipe), settings, OWNER)
        assert [issue.loc[:2] for issue in plan.errors] == [["recipe", field]]
        with pytest.raises(SpecRejected):
            plan.require_ok()

    def test_a_slip_of_the_pen_is_asked_about(self, settings):
        plan = planned(free(grace_second=3), settings, OWNER)
        (issue,) = plan.errors
        assert "Did you mean recipe.grace_seconds?" in issue.message

    @pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (1, "cuda"), ("auto", "auto")])
    def test_its_gpus_decide_where_it_goes(self, settings, gpus, device):
        request = {**free(), "runtime": {"gpus": gpus, "gpu_memory": "20 gb" if gpus else "20G"}}
        plan = planned(request, settings, OWNER)
        assert plan.device == device
        assert plan.require_ok()["runtime"]["gpu_memory"] == "20GiB"
        assert plan.requirements.device_bytes == 20 * 2**30

    def test_like_fills_in_what_is_not_said(self, settings):
        plan = planned(free(like="hf", checkpoints=["mine/*"]), settings, OWNER)
        assert plan.spec is not None
        recipe = plan.spec["recipe"]
        assert recipe["resume"] == ["--resume_from_checkpoint", "{checkpoint}"]
        assert recipe["checkpoints"] == ["mine/*"]

    @pytest.mark.parametrize(
        ("like", "checkpoints"),
        [
            ("hf", ["trainer_output/checkpoint-*"]),  # transformers 5.24, training_args.py
            ("accelerate", ["./step_*", "./epoch_*", "./checkpoints/checkpoint_*"]),
            ("lightning", ["lightning_logs/version_*/checkpoints/*.ckpt"]),
            ("ultralytics", ["runs/*/*/weights/last.pt"]),
        ],
    )
    def test_like_knows_where_a_trainer_saves_that_is_told_no_folder(
        self, settings, like, checkpoints
    ):
        plan = planned(free(like=like), settings, OWNER)
        assert plan.require_ok()["recipe"]["checkpoints"] == checkpoints

    def test_like_knows_words_that_go_on_without_a_dash(self, settings):
        recipe = planned(free(like="ultralytics"), settings, OWNER).require_ok()["recipe"]
        assert recipe["resume"] == ["resume=True", "model={checkpoint}"]

    def test_like_knows_the_folder_that_the_command_line_names(self, settings):
        argv = ["/usr/bin/python", "train.py", "--output_dir", "runs/a"]
        plan = planned(free(like="hf", argv=argv), settings, OWNER)
        assert plan.spec is not None
        assert plan.spec["recipe"]["checkpoints"] == ["runs/a/checkpoint-*"]

    @pytest.mark.parametrize(
        ("given", "code"),
        [
            ({"resume": "--go {checkpoint}"}, "correctness.resume_without_checkpoints"),
            ({"checkpoints": ["out/*.pt"]}, "correctness.checkpoints_without_resume"),
        ],
    )
    def test_half_of_what_it_takes_to_go_on_is_warned_of(self, settings, given, code):
        plan = planned(free(**given), settings, OWNER)
        assert [(issue.code, issue.severity) for issue in plan.issues] == [(code, "warning")]
        again = planned({**free(**given), "policy": {"max_retries": 3}}, settings, OWNER).issues
        says_so = code == "correctness.checkpoints_without_resume"
        assert [issue.code for issue in again] == ([] if says_so else [code])

    @pytest.mark.parametrize("recipe", [{}, {"checkpoints": ["a"], "resume": "--go {checkpoint}"}])
    def test_what_may_be_preempted_is_told_when_it_does_not_say_how_it_resumes(
        self, settings, recipe
    ):
        plan = planned({**free(**recipe), "policy": {"preemptible": True}}, settings, OWNER)
        assert plan.require_ok()["policy"]["preemptible"]
        code = "correctness.preemptible_without_resume"
        assert [issue.code for issue in plan.issues] == ([] if recipe else [code])


PY = "/usr/bin/python3.12"
LAUNCHED = (PY, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


class TestOfSeveralGpus:
    @staticmethod
    def planned(settings, *argv: str, most: int | None = 2, gpus: Any = 2, **recipe: Any):
        request = free(argv=list(argv), **recipe) | {"runtime": {"gpus": gpus}}
        return planned(request, settings, replace(OWNER, most_gpus=most))

    @pytest.mark.parametrize(
        ("argv", "started"),
        [
            ((PY, "train.py", "--lr", "1"), (*LAUNCHED, "train.py", "--lr", "1")),
            ((PY, "-u", "train.py"), (*LAUNCHED, "train.py")),
            ((PY, "-m", "pkg.train", "-m", "x"), (*LAUNCHED, "-m", "pkg.train", "-m", "x")),
            ((PY, "-u", "-m", "pkg"), (*LAUNCHED, "-m", "pkg")),
        ],
    )
    def test_a_python_program_becomes_one_process_a_gpu(self, settings, argv, started):
        plan = self.planned(settings, *argv)
        spec = ScriptSpec.model_validate_json(json.dumps(plan.require_ok()))
        assert (spec.argv, spec.recipe.argv) == (started, argv), "what was typed is kept"
        assert (new_script_run(plan, admission=OWNER).gpus, plan.device) == (2, "cuda")
        alone = self.planned(settings, *argv, gpus=1)
        assert ScriptSpec.model_validate_json(json.dumps(alone.require_ok())).argv == argv

    @pytest.mark.parametrize(
        "argv",
        [
            ("/bin/bash", "-c", "python train.py"), (PY,), (PY, "-c", "pass"), (PY, "-m"),
            (PY, "-O", "train.py"), (PY, "-"), ("/usr/bin/torchrun", "train.py"),
            (PY, "-m", "torch.distributed.run", "train.py"),
            (PY, "-m", "accelerate.commands.launch", "train.py"),
        ],
        ids=" ".join,
    )  # fmt: skip
    def test_what_else_has_to_start_its_processes_itself_and_says_so(self, settings, argv):
        plan = self.planned(settings, *argv)
        assert errors(plan) == [("cannot_be_launched", ("recipe", "launch"))]
        assert [op.value for op in plan.errors[0].fix] == ["none"]
        own = self.planned(settings, *argv, launch="none")
        assert ScriptSpec.model_validate_json(json.dumps(own.require_ok())).argv == argv
        assert errors(self.planned(settings, *argv, gpus=1)) == []

    def test_a_registered_command_says_so_in_its_registration(self, tmp_path):
        text = TOML.replace('argv = ["/opt/python", "train.py"', 'argv = ["/opt/torchrun"')
        (tmp_path / "stoker.toml").write_text(text)
        request = {**named(), "runtime": {"gpus": 2}}
        (issue,) = planned(request, load_settings(home=tmp_path)).errors
        assert (issue.code, issue.fix) == ("cannot_be_launched", [])
        assert "in its registration" in issue.why
        (tmp_path / "stoker.toml").write_text(f'{text}launch = "none"\nshim = false\n')
        recipe = planned(request, load_settings(home=tmp_path)).require_ok()["recipe"]
        assert (recipe["launch"], recipe["shim"]) == ("none", False)

    @pytest.mark.parametrize(
        ("most", "gpus", "told"),
        [
            (2, 4, "It asks for 4 GPUs, but the largest worker has 2."),
            (0, 1, "It asks for 1 GPU, but no worker has any."),
        ],
    )
    def test_more_than_any_worker_has_is_refused(self, settings, most, gpus, told):
        (issue,) = self.planned(settings, PY, "train.py", most=most, gpus=gpus).errors
        assert (issue.code, issue.message) == ("not_enough_gpus", told)
        assert [op.value for op in issue.fix] == [most]

    @pytest.mark.parametrize(("most", "gpus"), [(None, 8), (2, 2), (0, 0), (0, "auto")])
    def test_what_may_be_had_is_not(self, settings, most, gpus):
        assert self.planned(settings, PY, "train.py", most=most, gpus=gpus).errors == []

    def test_only_workers_that_may_run_it_are_asked_for_what_they_have_in_total(self, settings):
        def worker(host: str, uid: int, gpus: int) -> Any:
            slots = [{"device": f"cuda:{n}"} for n in range(gpus)] + [{"device": "cpu"}]
            total, free = 23 * 2**30, 2**30
            facts = {"host_memory_bytes": total, "available_memory_bytes": free}
            gpu = {"index": 0, "total_memory_bytes": total, "free_memory_bytes": free}
            return SimpleNamespace(
                name=host,
                host=host,
                facts={"uid": uid, "host": host, **facts},
                slots=[{"name": slot["device"], "run_id": 1, **slot} for slot in slots],
                devices=[{"kind": "cuda", **gpu}],
            )

        rows = [worker("box", 1000, 1), worker("box", 7, 8), worker("other", 1000, 4)]
        assert among(OWNER, rows).most_gpus == 8
        own = among(OWNER, rows, OWNER.owner)
        assert own.most_gpus == 1
        assert among(OWNER, []).most_gpus is None

        def refused(admission: Admission, **runtime: Any) -> list[str]:
            plan = planned({**free(), "runtime": runtime}, settings, admission)
            return [issue.message for issue in plan.errors]

        told = "It asks for 80.00 GiB of {}, but the largest {} that it could run on has 23.00 GiB"
        host, gpu = told.format("host memory", "host"), told.format("each GPU's memory", "GPU")
        for gpus in (0, 1, "auto"):
            assert refused(own, gpus=gpus, host_memory="80GiB") == [f"{host} in total."]
            assert refused(own, gpus=gpus, host_memory="23GiB") == [], "it waits for what is in use"
        assert refused(own, gpus=1, gpu_memory="80GiB") == [f"{gpu} in total."]
        assert refused(own, gpus=1, gpu_memory="23GiB") == []
        assert refused(own, gpus=0, gpu_memory="80GiB") == [], "it takes none"
        assert refused(among(OWNER, []), host_memory="900GiB") == [], "there is no worker to ask"
