"""The trainer process: the only place where torch and h5py are imported."""
