"""What a training tells: events, progress, phases, memory, its pulse."""
