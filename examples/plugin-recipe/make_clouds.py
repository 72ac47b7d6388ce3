"""python make_clouds.py FILE: three clouds of 4,000 points, a row of 5 numbers each."""

import sys

import h5py
import numpy as np

random = np.random.default_rng(3)
clouds = random.integers(0, 3, 4_000)
centres = random.normal(0, 2, (3, 5))
with h5py.File(sys.argv[1], "w") as file:
    file["features"] = (centres[clouds] + random.normal(0, 1, (4_000, 5))).astype("f4")
    file["targets"] = clouds.astype("u1")
