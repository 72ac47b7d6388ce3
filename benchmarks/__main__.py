"""Begins as a trainer does, before anything takes memory, and runs the benchmarks."""

import sys

from benchmarks.heap import begin_as_a_trainer

if __name__ == "__main__":
    begin_as_a_trainer()
    from benchmarks.run import main

    sys.exit(main())
