"""The way of samples to the loop: read ahead, moved to the device, batched."""
