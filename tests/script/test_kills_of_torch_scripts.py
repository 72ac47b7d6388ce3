"""kill -9 of plain loops that save by torch.save: nothing torn is gone on from, nothing is lost."""

import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.manifest import MANIFEST
from tests.script.stage import Stage

pytestmark = pytest.mark.minutes

# In the manner of nanoGPT; so busy saving that half of all kills come in the middle of it.
LOOP = """
import glob, os, sys, torch
start, model = 0, torch.nn.Linear(WIDTH, WIDTH)
optimizer = torch.optim.AdamW(model.parameters())
if "--resume" in sys.argv:
    checkpoint = torch.load(sys.argv[sys.argv.index("--resume") + 1])
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    start = checkpoint["iter_num"]
print("start", start, flush=True)
os.makedirs("out", exist_ok=True)
for iter_num in range(start + 1, 1_000_000):
    loss = model(torch.randn(4, WIDTH)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    checkpoint["iter_num"] = iter_num
    torch.save(checkpoint, PATH)
    for old in glob.glob(f"out/ckpt_{iter_num - 2}.pt"):
        os.remove(old)
    print("saved", iter_num, flush=True)
"""
ONE_FILE, NUMBERED = '"out/ckpt.pt"', 'f"out/ckpt_{iter_num}.pt"'
each_path = pytest.mark.parametrize("path", [ONE_FILE, NUMBERED], ids=["one file", "numbered"])
RUNS, KILLS = 10, 5


def loop(path: str, width: int) -> str:
    return LOOP.replace("PATH", path).replace("WIDTH", str(width))


def iteration_in(file: Path) -> int | None:
    """None of a torn one, by PyTorch's own word."""
    try:
        return int(torch.load(file)["iter_num"])
    except (RuntimeError, EOFError, OSError):
        return None


class Killed:
    """One run of such a loop: its attempts, and what lies there to go on from after each."""

    def __init__(self, stage: Stage, path: str, chance: random.Random) -> None:
        stage.write(loop(path, 512))
        self.stage, self._chance, self.attempt = stage, chance, 0
        self.killed = self.torn = self.refused = 0
        """Attempts that were killed, that left a torn file, and that had nothing to go on from."""

    def kept(self) -> list[Path]:
        """Of all attempts, the newest first."""
        found = self.stage.run_folder.glob("attempt-*/checkpoints/step-*")
        return sorted(found, key=lambda folder: int(folder.name[5:]), reverse=True)

    def expected(self) -> int | None:
        """Where the next attempt has to begin, as PyTorch reads what is there; None: nowhere."""
        kept = self.kept()
        newest, at = 0, 0.0
        if kept:
            whole = iteration_in(next(kept[0].glob("*.pt")))
            assert whole is not None, "a torn one was kept"
            newest, at = whole, (kept[0] / MANIFEST).stat().st_mtime
        files = list((self.stage.cwd / "out").glob("*.pt"))
        found = {file: iteration_in(file) for file in files}
        self.torn += None in found.values()
        later = [n for file, n in found.items() if n and (not kept or file.stat().st_mtime >= at)]
        if not kept and not later and files:
            return None
        return max([newest, *later])

    def go_on(self, how: str) -> None:
        """An attempt, and its end at any moment: a stop, or a kill of the script or of all. After
        one that was refused, since what is there is torn, another begins from nothing.
        """
        has_begun = self._began() or self._began()
        assert has_begun
        time.sleep(self._chance.uniform(0.0, 1.0 if self.attempt == 1 else 3.0))
        self.killed += how != "stop"
        self._end(how)

    def _began(self) -> bool:
        """Whether the next attempt goes on where it has to, or else is refused."""
        expected = self.expected()
        kept, stage = self.kept(), self.stage
        self.attempt += 1
        words: dict[str, Any] = {
            "attempt": self.attempt,
            "restore": tuple(kept),
            "checkpoints": ["out/*.pt"],
            "resume": ["--resume", "{checkpoint}"],
        }
        self._runner = runner = stage.start(**words)
        if expected is None:
            runner.wait(60)
            assert stage.end(self.attempt)["reason"] == "checkpoint_error"
            assert self._started() is None
            for file in (stage.cwd / "out").glob("*.pt"):
                file.unlink()
            self.refused += 1
            return False
        stage.until_log_has("start ", self.attempt)
        stage.until(lambda: self._started() is not None, "it says where", self.attempt)
        assert self._started() == expected
        return True

    def _end(self, how: str) -> None:
        stage, runner = self.stage, self._runner
        if how == "all":
            runner.kill()
            runner.wait()
            stage.end_all()
            assert not stage.events("end", self.attempt)
        elif how == "script":
            stage.end_all()
            runner.wait(60)
            assert stage.end(self.attempt)["reason"] == "killed"
        else:
            assert stage.stop(runner, self.attempt)["reason"] == "interrupted"

    def _started(self) -> int | None:
        found = re.search(r"start (\d+)\n", self.stage.log(self.attempt))
        return None if found is None else int(found[1])


@each_path
def test_kills_at_fifty_moments_never_leave_a_torn_one_to_go_on_from(tmp_path: Path, path: str):
    """In ten runs, since a run is most at risk before anything was kept of it."""
    chance = random.Random(path)
    killed = torn = refused = 0
    for number in range(RUNS):
        stage = Stage(tmp_path / str(number))
        run = Killed(stage, path, chance)
        ends = chance.choices(["all", "script"], k=KILLS)
        ends.insert(chance.randrange(KILLS), "stop")
        for how in (*ends, "stop"):  # the last one shows where that after the last kill begins
            run.go_on(how)
        stage.close()
        killed, torn, refused = killed + run.killed, torn + run.torn, refused + run.refused
    assert killed == 50
    assert torn > 0, "no kill came in the middle of a save: this has shown nothing"
    assert refused > 0 or path is NUMBERED
