"""An agent whose trainers may take only so much memory; see tests/limited_trainer.py."""

import sys
from pathlib import Path

from app.settings import load_settings
from worker.agent.agent import run_agent

LIMITED_TRAINER = Path(__file__).parents[1] / "limited_trainer.py"

if __name__ == "__main__":
    sys.exit(run_agent(load_settings(), trainer_command=[sys.executable, str(LIMITED_TRAINER)]))
