"""The worker: an agent that claims runs, launchers that guard trainers, trainers that train."""
