"""Curves of a script, from all that it may write; and what it may write wrongly."""

import json
import math
import os
import shlex
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from app.codestate import code_state
from tests.repository import committed
from tests.script.stage import Stage, spec_json
from worker.script import curves as module_of_curves
from worker.script import event_files
from worker.script.curves import MOST_FOLDERS, MOST_SERIES, Curves
from worker.script.points import point_of
from worker.script.sources import CsvTable, JsonLines, Lines, Warn
from worker.script.status import StatusServer
from worker.script.work import ScriptWork

STEP = "step (?P<step>[0-9]+)"
WRITES_EVENTS = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter("logs/a")
for step in range(1, 7):
    value = Summary.Value(tag="train/loss", simple_value=1 / step if step < 6 else float("nan"))
    writer.add_event(Event(step=step, wall_time=2e9, summary=Summary(value=[value])))
writer.close()
"""


def refuse(code: str, message: str) -> None:
    raise AssertionError(f"{code}: {message}")


def as_file(name: str, losses: dict[int, float]) -> str:
    if name.endswith(".csv"):
        return "step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in losses.items())
    return "".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in losses.items())


def curves_of(folder: Path, warn: Warn, **metrics: str | None) -> Curves:
    """Of an attempt that began a minute ago, and whose folder is also the script's."""
    wanted = {"file": None, "stdout": None, **metrics}
    (folder / "spec.json").write_text(json.dumps(spec_json(folder, metrics=wanted)))
    return Curves(ScriptWork.read(folder), time.time() - 60, None, warn)


@pytest.mark.slow
class TestOfARun:
    def test_json_lines_and_the_library(self, stage: Stage):
        stage.write(
            "import stoker\n"
            "run = stoker.init(config={'lr': 0.1})\n"
            "for step in range(1, 4):\n"
            "    loss = float('inf') if step == 3 else 1 / step\n"
            "    run.log({'loss': loss, 'val_f1': float('nan')}, step=step)\n"
        )
        stage.run()
        assert stage.curve("train_loss") == {1: 1.0, 2: 0.5}
        assert stage.curve("val_f1") == {}
        told = sorted(one["message"].partition(".")[0] for one in stage.events("warning"))
        assert told == ["train_loss is infinite at step 3", "val_f1 is NaN at step 1"]
        assert stage.events("progress")[-1]["loss"] is None, "that of step 2 is not the newest"
        started, configured = (event["applied"] for event in stage.events("applied"))
        assert configured == {**started, "config": {"lr": 0.1}}

    def test_the_end_of_a_long_output_is_read_to_its_last_line(self, stage: Stage):
        stage.write("print(('-' * 99 + chr(10)) * 30_000, flush=True)\nprint('step 7 loss 0.5')")
        pattern = "step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)"
        stage.run(metrics={"file": None, "stdout": pattern})
        assert stage.curve("train_loss") == {7: 0.5}

    def test_a_table_such_as_lightning_writes(self, stage: Stage):
        stage.write(
            "import os\n"
            "os.makedirs('lightning_logs/version_0')\n"
            "with open('lightning_logs/version_0/metrics.csv', 'w') as file:\n"
            "    file.write('epoch,step,train_loss,val_loss\\n0,10,0.5,\\n')\n"
            "    file.write('0,10,,0.7\\n1,20,0.4,\\n')\n"
        )
        stage.run()
        assert stage.curve("train_loss") == {10: 0.5, 20: 0.4}
        assert stage.curve("val_loss") == {10: 0.7}

    def test_what_it_writes_at_once_is_a_curve_and_no_change_of_its_code(self, stage: Stage):
        """It ends sooner than git has compared the code."""
        stage.write('{"step": 1, "loss": 0.9}\n', name="own.jsonl")
        code = code_state(committed(stage.cwd), ["sh"])
        writes = """echo '{"step": 2, "loss": 0.5}' >> own.jsonl"""
        stage.run("sh", "-c", writes, code=code, metrics={"file": "own.jsonl", "stdout": None})
        assert stage.curve("train_loss") == {2: 0.5}
        assert stage.events("code_changed") == []

    def test_epochs_are_the_steps_of_a_table_without(self, stage: Stage):
        stage.write(
            "with open('results.csv', 'w') as file:\n"
            "    file.write('epoch,   train/loss\\n1,0.5\\n2,0.4\\n3,0.3\\n')\n"
        )
        stage.run(metrics={"file": "results.csv", "stdout": None})
        assert stage.curve("train_loss") == {1: 0.5, 2: 0.4, 3: 0.3}
        assert stage.end()["step"] == 3, "where its curve ends"
        assert stage.events("progress")[-1]["step"] == 0, "an epoch is no step of the run"

    def test_lines_that_say_no_step_are_counted_from_what_is_gone_on_from(self, stage: Stage):
        stage.write(
            "import stoker\n"
            "run = stoker.init()\n"
            "if run.resume_from is None:\n"
            "    with run.checkpoint(20) as folder: (folder / 'a').write_text('x')\n"
            "for i in range(3): print(f'loss {0.5 / (i + 1):.3f}')\n"
        )
        metrics = {"file": None, "stdout": "loss (?P<loss>[0-9.]+)"}
        stage.run(metrics=metrics)
        saved = stage.attempt() / "checkpoints" / "step-20"
        stage.run(attempt=2, restore=(saved,), metrics=metrics)
        assert stage.curve("train_loss") == {1: 0.5, 2: 0.25, 3: 0.167}
        assert stage.curve("train_loss", 2) == {21: 0.5, 22: 0.25, 23: 0.167}

    def test_a_stray_quote_in_a_table_ends_nothing(self, stage: Stage):
        stage.write(
            "with open('metrics.csv', 'w') as file:\n"
            "    file.write('step,loss,note\\n1,0.5,a\\n2,0.4,\"' + 200_000 * 'x' + '\\n')\n"
            "    file.write('3,0.3,b\\rc\\n4,0.2\\n\\n5,0.1,\\n')\n"
        )
        assert stage.run()["reason"] == "completed"
        assert stage.curve("train_loss") == {1: 0.5, 5: 0.1}
        (warning,) = stage.events("warning")
        assert warning["code"] == "metrics_file_damaged"
        assert "A line after row 1 of " in warning["message"]

    def test_event_files_of_tensorboard(self, stage: Stage):
        stage.write(WRITES_EVENTS)
        stage.run(environment={"PYTHONPATH": ":".join(sys.path)})
        assert stage.curve("train_loss") == {s: pytest.approx(1 / s) for s in range(1, 6)}
        (warning,) = stage.events("warning")
        assert warning["message"].startswith("train_loss is NaN at step 6.")

    def test_a_damaged_event_file_is_told_and_what_came_before_is_kept(self, stage: Stage):
        damage = (
            "import glob\n"
            "path = glob.glob('logs/a/*')[0]\n"
            "from tensorboard.summary.writer.record_writer import RecordWriter\n"
            "with open(path, 'ab') as file:\n"
            "    RecordWriter(file).write(b'\\xff no event \\xff')\n"
        )
        stage.write(WRITES_EVENTS + damage)
        stage.run(environment={"PYTHONPATH": ":".join(sys.path)})
        assert set(stage.curve("train_loss")) == {1, 2, 3, 4, 5}
        assert [one["code"] for one in stage.events("warning")] == [
            "event_file_damaged", "not_finite",
        ]  # fmt: skip

    def test_lines_of_its_output_by_a_pattern(self, stage: Stage):
        stage.write("for i in range(3): print(f'step {i + 1}: loss {0.5 / (i + 1):.3f} ok')")
        pattern = r"step (?P<step>\d+): loss (?P<loss>[0-9.]+)"
        stage.run(metrics={"file": None, "stdout": pattern})
        assert stage.curve("train_loss") == {1: 0.5, 2: 0.25, 3: 0.167}

    def test_plain_prints_need_no_option(self, stage: Stage):
        stage.write("for step in (51, 52): print(f'step {step} loss {45.9 / step:.1f}')")
        stage.run()
        assert stage.curve("train_loss") == {51: 0.9, 52: 0.9}
        assert stage.end()["result"]["last"] == {"step": 52, "train_loss": 0.9}
        assert stage.events("warning") == []

    def test_a_pattern_is_offered_for_prints_that_may_be_a_curve(self, stage: Stage):
        stage.write("for i in range(9): print(f'it is {i} now, and the loss is: {1 / (i + 1)}')")
        stage.run()
        assert stage.curve("train_loss") == {}
        (warning,) = stage.events("warning")
        assert warning["code"] == "curve_not_read"
        option, pattern = shlex.split(warning["message"].rpartition(": ")[2])
        assert option == "--metrics-stdout"
        stage.run(attempt=2, metrics={"file": None, "stdout": pattern})
        assert len(stage.curve("train_loss", 2)) == 9
        assert stage.events("warning", 2) == []

    def test_the_status_route_as_hugging_face_posts_to_it(self, stage: Stage):
        stage.write(
            "import json, os, urllib.request\n"
            "token = open(os.environ['KUBEFLOW_TRAINER_SERVER_TOKEN']).read()\n"
            "metrics = [{'name': 'loss', 'value': '0.25'},\n"
            "           {'name': 'current_step', 'value': '7'},\n"
            "           {'name': 'total_steps', 'value': '10'}]\n"
            "status = {'progressPercentage': 70, 'estimatedRemainingSeconds': 3,\n"
            "          'metrics': metrics}\n"
            "request = urllib.request.Request(\n"
            "    os.environ['KUBEFLOW_TRAINER_SERVER_URL'],\n"
            "    data=json.dumps({'trainerStatus': status}).encode(),\n"
            "    headers={'Authorization': f'Bearer {token}'})\n"
            "print(urllib.request.urlopen(request).status)\n"
        )
        stage.run()
        assert stage.curve("train_loss") == {7: 0.25}
        progress = stage.events("progress")[-1]
        assert (progress["step"], progress["steps"], progress["ratio"]) == (7, 10, 0.7)
        assert progress["eta_seconds"] == 3

    def test_files_of_earlier_runs_are_no_curves_of_this_one(self, stage: Stage):
        (stage.cwd / "metrics.csv").write_text("step,loss\n1,9\n")
        stage.write("print('nothing')")
        stage.run()
        assert stage.curve("train_loss") == {}


PRINTS = "".join(f"step {step} loss 0.{step}\n" for step in range(11, 15))


class TestOfPrints:
    """Beside other sources."""

    @pytest.fixture
    def output(self, tmp_path: Path) -> Path:
        path = tmp_path / "trainer.log"
        path.write_text(PRINTS)
        return path

    def test_they_are_read_to_the_end(self, tmp_path: Path, output: Path):
        curves = curves_of(tmp_path, refuse)
        assert [*curves.read()] == [], "other sources are yet to be found"
        output.write_text(PRINTS + "step 15 loss 0.15")
        points = [*curves.read(all_of_it=True)]
        assert [point.step for point in points] == [11, 12, 13, 14, 15]
        assert all(point.is_printed and point.says_step for point in points)

    def test_they_come_a_look_later(
        self, tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(module_of_curves, "SEARCH_SECONDS", 0.0)
        curves = curves_of(tmp_path, refuse)
        assert [*curves.read()] == []
        assert [point.step for point in curves.read()] == [11, 12, 13, 14]
        with output.open("a") as file:
            file.write("step 15 loss 0.15\n")
        assert [*curves.read()] == []
        (tmp_path / "metrics.jsonl").write_text('{"step": 15, "loss": 0.15}\n')
        assert [point.is_printed for point in curves.read()] == [False], "that tells more"
        assert [*curves.read(all_of_it=True)] == []

    @pytest.mark.usefixtures("output")
    def test_another_source_wins(self, tmp_path: Path):
        (tmp_path / "metrics.jsonl").write_text('{"step": 1, "accuracy": 0.5}\n')
        points = [*curves_of(tmp_path, refuse).read(all_of_it=True)]
        assert [point.values for point in points] == [{"accuracy": 0.5}]

    @pytest.mark.usefixtures("output")
    def test_what_is_posted_wins(self, tmp_path: Path):
        curves, posted = curves_of(tmp_path, refuse), point_of({"step": 3, "loss": 0.5})
        assert posted is not None
        assert len([*curves.named(Path("status"), [posted])]) == 1
        assert [*curves.read(all_of_it=True)] == []

    @pytest.mark.usefixtures("output")
    def test_a_named_file_wins_even_if_it_is_not_there(self, tmp_path: Path):
        told: list[str] = []
        curves = curves_of(tmp_path, lambda code, _: told.append(code), file="own.csv")
        assert [*curves.read(all_of_it=True)] == []
        assert told == ["no_metrics"]

    @pytest.mark.usefixtures("output")
    def test_they_wait_for_a_file_that_is_empty(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(module_of_curves, "SEARCH_SECONDS", 0.0)
        RecordWriter((tmp_path / "events.tfevents.1").open("wb")).close()
        curves = curves_of(tmp_path, refuse)
        assert [[*curves.read()] for _ in range(3)] == [[], [], []]
        assert len([*curves.read(all_of_it=True)]) == 4

    @pytest.mark.usefixtures("output")
    def test_they_wait_for_the_table_of_lightning_which_comes_after_100_steps(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(module_of_curves, "SEARCH_SECONDS", 0.0)
        folder = tmp_path / "lightning_logs" / "version_3"
        folder.mkdir(parents=True)
        curves = curves_of(tmp_path, refuse)
        assert [[*curves.read()] for _ in range(3)] == [[], [], []]
        (folder / "metrics.csv").write_text("step,train_loss\n49,0.5\n")
        assert [point.step for point in curves.read()] == [49]
        assert [*curves.read(all_of_it=True)] == []

    def test_of_very_many_not_all_are_kept(self, tmp_path: Path, output: Path):
        lines = [f"step {step} loss 0.5\n" for step in range(1, 5002)]
        output.write_text("".join(lines) + "step 5002 val_loss 0.4\n")
        points = [*curves_of(tmp_path, refuse).read(all_of_it=True)]
        assert 500 <= len(points) <= 1001
        assert [point.step for point in points[-2:]] == [5001, 5002]

    def test_of_too_long_an_output_the_end_is_not_waited_for(
        self, tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(module_of_curves, "PRINTS_SECONDS", -1.0)
        output.write_text(PRINTS + 20_000 * f"{99 * '-'}\n" + "step 90 loss 0.5\n")
        told: list[str] = []
        points = [*curves_of(tmp_path, lambda code, _: told.append(code)).read(all_of_it=True)]
        assert [point.step for point in points] == [11, 12, 13, 14]
        assert told == ["curve_cut"]


class TestOfTheMeanOfATraining:
    """Hugging Face tells `train_loss` at the end, which is the mean of all steps."""

    def test_it_is_no_point_of_a_document(self):
        point = point_of({"step": 9, "train_loss": 0.6, "train_runtime": 12.5, "epoch": 3})
        assert point is not None
        assert point.values == {"train_runtime": 12.5, "epoch": 3.0}
        assert point_of({"step": 9, "train_loss": 0.6}) is not None

    def test_it_is_no_point_of_an_event_file(self, tmp_path: Path):
        with closing(RecordWriter((tmp_path / "events.tfevents.1").open("wb"))) as writer:
            values = [("train/loss", 0.5), ("train/train_loss", 0.75)]
            summary = Summary(value=[Summary.Value(tag=n, simple_value=v) for n, v in values])
            writer.write(Event(step=9, summary=summary).SerializeToString())
        (first, second) = curves_of(tmp_path, refuse).read(all_of_it=True)
        assert first.values == {"train_loss": 0.5}
        assert second.values == {}


class TestOfTheStatusRoute:
    @pytest.fixture
    def server(self, tmp_path: Path):
        server = StatusServer(tmp_path, 3)
        yield server
        server.close()

    def post(self, server: StatusServer, body: bytes, token: str | None = None) -> int:
        token = token or server.token_file.read_text()
        request = urllib.request.Request(
            server.url, data=body, headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def test_another_token_is_refused(self, server: StatusServer):
        assert self.post(server, b'{"trainerStatus": {}}', token="guess") == 401

    @pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"trainerStatus": 3}'], ids=repr)
    def test_nonsense_is_refused_and_the_next_one_is_taken(self, server: StatusServer, body):
        assert self.post(server, body) == 400
        metrics = [{"name": "loss", "value": "nan"}, {"name": "lr", "value": "1e-3"}, 7]
        good = json.dumps({"trainerStatus": {"metrics": metrics}}).encode()
        assert self.post(server, good) == 200
        (point,) = server.take()
        assert point.values == {"lr": 1e-3}

    def test_a_body_without_end_is_refused(self, server: StatusServer):
        assert self.post(server, b"x" * 100_000) == 413


class TestOfFiles:
    def test_half_a_line_waits_for_its_end(self, tmp_path: Path):
        path = tmp_path / "metrics.jsonl"
        source = JsonLines(path)
        path.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
        assert [point.step for point in source.read()] == [1]
        with path.open("a") as file:
            file.write('ss": 0.25}\nno json\n[1]\n{"step": 3}\n{"step": 4, "loss": 0.1}')
        assert [point.values for point in source.read()] == [{"loss": 0.25}]
        assert [point.step for point in source.read_rest()] == [4], "nobody writes any more"

    def test_a_file_that_became_shorter_is_read_anew(self, tmp_path: Path):
        path = tmp_path / "lines"
        lines = Lines(path)
        path.write_text("one\ntwo\n")
        assert lines.read() == [("one", 4), ("two", 8)]
        path.write_text("new\n")
        assert lines.read() == [("new", 4)]

    def test_a_table_may_begin_with_a_byte_order_mark(self, tmp_path: Path):
        path = tmp_path / "metrics.csv"
        path.write_text("step,loss\n7,0.5\n", encoding="utf-8-sig")
        assert [point.step for point in CsvTable(path, refuse).read()] == [7]

    def test_a_table_that_gets_a_column_tells_only_its_new_rows(self, tmp_path: Path):
        path = tmp_path / "metrics.csv"
        table = CsvTable(path, refuse)
        path.write_text("step,loss\n1,0.5\n")
        assert [point.values for point in table.read()] == [{"loss": 0.5}]
        path.write_text("step,loss,f1\n1,0.5,\n2,0.4,0.9\n")
        assert [point.values for point in table.read()] == [{"loss": 0.4, "f1": 0.9}]

    def test_a_large_table_is_read_piece_by_piece_to_its_end(self, tmp_path: Path):
        path = tmp_path / "metrics.csv"
        path.write_text(
            "step,loss,note\n" + "".join(f"{i},0.5,{60_000 * 'x'}\n" for i in range(50))
        )
        table = CsvTable(path, refuse)
        looks: list[list[int | None]] = []
        while not looks or table.is_behind:
            looks.append([point.step for point in table.read()])
        assert [len(steps) for steps in looks] == [17, 17, 16]
        assert [step for steps in looks for step in steps] == list(range(50))

    def test_a_table_that_is_begun_again_tells_its_rows(self, tmp_path: Path):
        path = tmp_path / "metrics.csv"
        table = CsvTable(path, refuse)
        path.write_text("step,loss\n1,0.5\n2,0.4\n")
        assert len([*table.read()]) == 2
        path.write_text("step,loss\n1,0.9\n2,0.8\n3,0.7\n")
        assert [point.values["loss"] for point in table.read()] == [0.9, 0.8, 0.7]

    def test_numbers_that_are_none_are_left_out(self):
        document = {"step": 3, "a": True, "b": "x", "c": "inf", "d": None, "e": "1e400", "f": 2}
        point = point_of(document)
        assert point is not None
        assert (point.step, point.values) == (3, {"f": 2.0})
        assert point.not_finite == (("c", math.inf), ("e", math.inf))

    def test_too_many_series_are_told_once(self, tmp_path: Path):
        told: list[str] = []
        curves = curves_of(tmp_path, lambda code, message: told.append(code))
        values = {f"m{i}": 1.0 for i in range(MOST_SERIES + 50)}
        found = point_of({"step": 1, **values})
        assert found is not None
        (numbers,) = curves.named(tmp_path, [found])
        assert len(numbers.values) == MOST_SERIES
        assert told == ["too_many_series"]

    @pytest.mark.parametrize("name", ["own.csv", "own.jsonl"])
    @pytest.mark.parametrize("mode", ["w", "a"])
    def test_of_a_named_file_only_what_this_run_writes_counts(
        self, tmp_path: Path, name: str, mode: str
    ):
        path = tmp_path / name
        path.write_text(as_file(name, {1: 0.5, 2: 0.4}))
        os.utime(path, (1e9, 1e9))
        curves = curves_of(tmp_path, refuse, file=name)
        assert [*curves.read()] == []
        with path.open(mode) as file:  # with the same numbers, as a script of one seed has them
            text = as_file(name, {1: 0.5, 2: 0.4})
            file.write(text if mode == "w" or name == "own.jsonl" else text.partition("\n")[2])
        assert [(point.step, point.values) for point in curves.read(all_of_it=True)] == [
            (1, {"train_loss": 0.5}), (2, {"train_loss": 0.4})
        ]  # fmt: skip

    def test_what_was_named_and_gave_no_number_is_told_at_the_end(self, tmp_path: Path):
        told: list[str] = []
        (tmp_path / "old.csv").write_text("step,loss\n1,0.5\n")
        os.utime(tmp_path / "old.csv", (1e9, 1e9))
        (tmp_path / "trainer.log").write_text("loss: 0.5\n")
        curves = curves_of(tmp_path, lambda _, said: told.append(said), file="old.csv", stdout=STEP)
        assert [*curves.read()] == [] == told
        assert [*curves.read(all_of_it=True)] == []
        assert [message.partition(" ")[0] for message in told] == [
            "--metrics-file", "--metrics-stdout",
        ]  # fmt: skip
        assert "old.csv, which this run has not written" in told[0]

    @pytest.mark.parametrize("has_curve", [True, False])
    def test_a_search_that_was_cut_is_told_where_no_curve_was_found(
        self, tmp_path: Path, has_curve: bool
    ):
        told: list[str] = []
        for number in range(MOST_FOLDERS):
            (tmp_path / str(number)).mkdir()
        curves = curves_of(tmp_path, lambda _, said: told.append(said))
        if has_curve:
            (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}')  # without its end
        assert len([*curves.read(all_of_it=True)]) == has_curve
        assert len(told) == (not has_curve)
        assert all("has more than 500 folders" in message for message in told)

    def test_a_huge_event_file_is_read_piece_by_piece_to_its_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(event_files, "MOST_EVENTS", 500)
        with closing(RecordWriter((tmp_path / "events.tfevents.1").open("wb"))) as writer:
            for step in range(1205):
                summary = Summary(value=[Summary.Value(tag="loss", simple_value=0.5)])
                writer.write(Event(step=step, summary=summary).SerializeToString())
        curves = curves_of(tmp_path, refuse)
        looks = [[point.step for point in curves.read()] for _ in range(2)]
        assert looks[0] == list(range(500))
        assert looks[1] == list(range(500, 1000))
        again = curves_of(tmp_path, refuse)
        assert len([*again.read(all_of_it=True)]) == 1205

    def test_steps_that_no_run_makes_are_left_out_and_told_once(self, tmp_path: Path):
        told: list[str] = []
        curves = curves_of(tmp_path, lambda code, message: told.append(message))
        (tmp_path / "metrics.jsonl").write_text(
            '{"step": 1e20, "loss": 1}\n{"step": 2e20, "loss": 1}\n{"step": 3, "loss": 0.5}\n'
        )
        assert [(point.step, point.values) for point in curves.read()] == [(3, {"train_loss": 0.5})]
        (message,) = told
        assert "numbers of step 1e+20" in message

    @pytest.mark.parametrize(
        ("rows", "steps"),
        [
            ([{"epoch": 0, "a": 3}, {"epoch": 1, "a": 2}, {"epoch": 2, "a": 1}], [0, 1, 2]),
            ([{"epoch": 1, "a": 3}, {"epoch": 1, "b": 2}, {"epoch": 2, "a": 1}], [1, 1, 2]),
            ([{"epoch": 1, "a": 3}, {"epoch": 1, "a": 2}, {"epoch": 2, "a": 1}], [1, 2, 3]),
            ([{"epoch": 0.5, "a": 3}, {"epoch": 1.0, "a": 2}], [1, 2]),
            ([{"a": 3}, {"a": 2}, {"step": 7, "a": 1}, {"a": 0}], [1, 2, 7, 3]),
        ],
        ids=["epochs", "two_rows", "many_rows", "fractions", "rows"],
    )
    def test_a_point_without_a_step_overwrites_no_other(self, tmp_path: Path, rows, steps):
        (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        curves = curves_of(tmp_path, refuse)
        assert [point.step for point in curves.read()] == steps

    def test_names_like_paths_are_only_names(self, tmp_path: Path):
        curves = curves_of(tmp_path, refuse)
        found = point_of({"step": 1, "../../etc/passwd": 1.0, "a\nb": 2.0, "x" * 500: 3.0})
        assert found is not None
        (numbers,) = curves.named(tmp_path, [found])
        assert list(numbers.values) == ["../../etc/passwd", "a_b", "x" * 100]
