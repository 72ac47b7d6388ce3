"""An agent whose trainers are fake: the product's agent with another command to start."""

import sys
from pathlib import Path

from app.settings import load_settings
from worker.agent import run_agent

if __name__ == "__main__":
    fake_trainer = str(Path(__file__).parent / "fake_trainer.py")
    sys.exit(run_agent(load_settings(), trainer_command=[sys.executable, fake_trainer]))
