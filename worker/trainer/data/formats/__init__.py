"""Files that samples come from: HDF5 and Arrow."""
