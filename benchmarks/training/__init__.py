"""What a loader is worth to a training: the same model fed by each of them."""
