"""An agent whose trainers are fake: the product's agent with another command to start.

FAKE_TRAINER: another one to start; FAKE_DRIVER: a path whose presence is a loaded NVIDIA driver;
PROBE_SECONDS: how long a measurement may last.
"""

import os
import sys
from pathlib import Path

from app.settings import load_settings
from worker import devices, probing, telemetry
from worker.agent import run_agent

if __name__ == "__main__":
    fake_trainer = str(Path(__file__).parent / "fake_trainer.py")
    command = [sys.executable, fake_trainer]
    if "FAKE_TRAINER" in os.environ:
        command = [os.environ["FAKE_TRAINER"]]
    if "FAKE_DRIVER" in os.environ:
        telemetry.DRIVER_SIGNS = (Path(os.environ["FAKE_DRIVER"]),)
        devices.FIRST_PROBE_SECONDS = 0.2
    if "PROBE_SECONDS" in os.environ:
        probing.PROBE_SECONDS = float(os.environ["PROBE_SECONDS"])
    sys.exit(run_agent(load_settings(), trainer_command=command))
