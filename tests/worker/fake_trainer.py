"""A trainer without torch that speaks the attempt protocol; the spec's `notes` are its script.

Script (JSON): steps; pace (seconds a step); save_every (steps); on_stop: save | ignore;
at: {step: what} with what = crash | segfault | kill | hang | daemon | silent_exit | linger |
nonfinite.
Each happens once in a run: a file in the run's folder remembers it. memory: {fits_on, data_bytes,
batch} has its second step run out of device memory until the attempt stands on that rung. flood:
so many events and as many lines of output, all at once before it ends. prints: lines at each step.
peak_bytes: of the device, as it tells.

With --standby it waits for its folder first, as the real one does.
"""

import faulthandler
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from stoker.manifest import manifest_bytes

DAEMON = "import time; time.sleep(600)"


TRAINING = 5  # its place among worker.reporting.PHASES


class FakeTrainer:
    """One attempt; everything it does is a few lines of the real protocol."""

    def __init__(self, folder):
        self.folder = folder
        self.document = json.loads((folder / "spec.json").read_text())
        self.script = json.loads(self.document["spec"]["notes"] or "{}")
        self.run_dir = Path(self.document["run_dir"])
        self.events = (folder / "events.jsonl").open("a")
        self.pulse = 0
        self.step = 0
        self.stopping = False
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        signal.signal(signal.SIGTERM, self.on_sigterm)

    def on_sigterm(self, *_):
        self.stopping = self.script.get("on_stop", "save") == "save"

    def emit(self, kind, **data):
        self.events.write(json.dumps({"t": time.time(), "kind": kind, **data}) + "\n")
        self.events.flush()

    def beat(self):
        self.pulse += 1
        (self.folder / "pulse").write_bytes(
            TRAINING.to_bytes(8, "little") + self.pulse.to_bytes(8, "little")
        )

    def train(self):
        self.emit("phase", phase="starting")
        applied = {
            "threads": self.document["threads"], "gradient_accumulation_steps": 1, "parameters": 100
        }  # fmt: skip
        self.emit("applied", applied=applied, environment={"python": "3"})
        self.tell_memory()
        self.restore()
        self.emit("phase", phase="training")
        for step in range(self.step + 1, self.script.get("steps", 10) + 1):
            self.step = step
            time.sleep(self.script.get("pace", 0.005))
            self.beat()
            self.report()
            for number in range(self.script.get("prints", 0)):
                sys.stdout.write(f"step {step:06} line {number:06} {'.' * 999}\n")
            self.run_out()
            self.surprise(self.script.get("at", {}).get(str(step)))
            if step % self.script.get("save_every", 5) == 0:
                self.save()
            if self.stopping:
                self.save()
                self.end("interrupted", "Stopped at a step boundary.")
                return
        self.save()
        self.flood()
        self.end("completed", "All steps are done.")

    def flood(self):
        for number in range(self.script.get("flood", 0)):
            self.events.write(
                f'{{"t": 1.0, "kind": "warning", "code": "flood-{number}", "message": "again"}}\n'
            )
            sys.stdout.write(f"flood {number} {'.' * 400}\n")

    def tell_memory(self):
        if "memory" in self.script:
            script, rung = self.script["memory"], self.document.get("memory_rung") or {}
            self.emit(
                "memory", device="cuda", residency="stream", sample_bytes=1000, parts=2,
                data_bytes=rung.get("data_bytes") or script["data_bytes"],
                batch=rung.get("batch") or script["batch"],
                evaluation_batch=rung.get("evaluation_batch") or script["batch"], staging_bytes=0,
            )  # fmt: skip

    def run_out(self):
        rung = (self.document.get("memory_rung") or {"number": 0})["number"]
        if self.step == 2 and rung < self.script.get("memory", {}).get("fits_on", 0):
            self.emit(
                "end", reason="device_oom", message="The GPU ran out of memory while training.",
                step=None, result=None, memory={"wanted_bytes": 2**30, "free_bytes": 2**29},
            )  # fmt: skip
            sys.exit(1)

    def restore(self):
        for candidate in self.document["restore"]:
            manifest = json.loads((Path(candidate["path"]) / "manifest.json").read_text())
            self.step = manifest["step"] if candidate["carry"] == "full" else 0
            if (back := self.document["rollback"]) and self.step < back["step"]:
                self.step = back["step"]
            self.emit("restored", step=manifest["step"], passed_over=[], **candidate)
            return

    def report(self):
        steps, peak = self.script.get("steps", 10), self.script.get("peak_bytes")
        self.emit(
            "metrics",
            step=self.step,
            epoch=0,
            values={"train_loss": 1 / self.step, "val_loss": 2 / self.step},
        )
        self.emit(
            "progress", phase="training", step=self.step, steps=steps, epoch=1, epochs=1,
            loss=1 / self.step, lr=0.001, grad_norm=0.5, iterations_per_second=100.0,
            samples_per_second=800.0, host_memory_bytes=10_000_000, queue_depth=1,
            totals={"train_iterations": self.step, "train_samples": 8 * self.step,
                    "eval_iterations": 2, "eval_samples": 16, "bytes_read": 1000 * self.step},
            phase_seconds={"compute": 0.1 * self.step, "data_wait": 0.0, "sync": 0.0, "h2d": 0.0},
            peak_memory=peak and {"device_bytes": peak, "host_bytes": 2**30, "phases": None},
        )  # fmt: skip

    def save(self):
        folder = self.folder / "checkpoints" / f"step-{self.step}"
        if folder.exists():
            return
        folder.mkdir(parents=True)
        metrics = {"val_loss": 2 / self.step}
        weights = b"0" * 100
        written = {"bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "manifest.json").write_bytes(
            manifest_bytes(
                {
                    "run_id": self.document["run_id"],
                    "attempt": self.document["attempt"],
                    "step": self.step,
                    "epoch": 0,
                    "metrics": metrics,
                    "files": {"model.safetensors": written},
                }
            )
        )
        self.emit(
            "checkpoint", action="saved", step=self.step, epoch=0, bytes=100, seconds=0.01,
            path=str(folder.relative_to(self.folder)), metrics=metrics,
        )  # fmt: skip

    def surprise(self, what):
        once = self.run_dir / f"once-{self.step}"
        if what is None or (once.exists() and not self.script.get("always")):
            return
        once.touch()
        if what == "crash":
            sys.exit("the fake trainer fails on purpose")
        elif what in ("segfault", "kill"):
            os.kill(os.getpid(), signal.SIGSEGV if what == "segfault" else signal.SIGKILL)
        elif what == "hang":
            while True:
                time.sleep(1)
        elif what == "daemon":
            daemon = subprocess.Popen([sys.executable, "-c", DAEMON], start_new_session=True)
            (self.run_dir / "daemon").write_text(str(daemon.pid))
        elif what in ("fifo", "endless"):
            self.replace_files(what)
        elif what == "silent_exit":
            os._exit(0)
        elif what == "nonfinite":
            told = "The training loss became nan."
            place = {"step": self.step, "epoch": 0, "position": 8 * self.step}
            self.emit("end", reason="nonfinite", message=f"{told} Restart it.", step=None,
                      result=None, nonfinite={"what": told, **place})  # fmt: skip
            sys.exit(1)

    def replace_files(self, what):
        for name in ("events.jsonl", "trainer.log", "pulse", "exit.json"):
            path = self.folder / name
            path.unlink(missing_ok=True)
            os.mkfifo(path) if what == "fifo" else path.symlink_to("/dev/zero")

    def end(self, reason, message):
        self.emit(
            "end",
            reason=reason,
            message=message,
            step=self.step,
            result={"last": {"step": self.step}, "best": None, "test": None},
        )
        sys.stdout.write(message + "\n")


def wait_for_attempt(told):
    sys.stdout.write("an import prints a line\n")
    sys.stdout.flush()
    os.write(told, b"ready\n")
    Path(os.environ["STOKER_HOME"], f"ready-{os.getpid()}").touch()
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    order = json.loads(line)
    os.environ.update(order["environment"])
    log = os.open(Path(order["attempt_dir"], "trainer.log"), os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    return Path(order["attempt_dir"])


if __name__ == "__main__":
    is_standby = sys.argv[1] == "--standby"
    attempt_dir = wait_for_attempt(int(sys.argv[2])) if is_standby else Path(sys.argv[1])
    sys.stdout.write("fake trainer starts\n")
    sys.stdout.write(f"it sees the device {os.environ.get('CUDA_VISIBLE_DEVICES')!r}\n")
    FakeTrainer(attempt_dir).train()
