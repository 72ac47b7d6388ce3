"""What runs tell while they train: metric points, logs, memory."""
