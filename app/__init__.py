"""What a run is, where it is kept and how it is asked for. Never imports torch, h5py or worker."""

__version__ = "0.1.0"
