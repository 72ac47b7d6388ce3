"""Moments of a script that a test wants to meet: it says so, and rests in them."""

import io
import time


class Moments:
    """Each is told once for a step; without `linger` none is."""

    def __init__(self, linger):
        self.linger, self.told = linger, None

    def come(self, name, step):
        """Rest in this one, unless it is still the last one."""
        if self.linger and self.told != (name, step):
            self.told = name, step
            print(name, step, flush=True)
            time.sleep(self.linger)


class SlowFile(io.FileIO):
    """A file that rests once, when a part of it is written."""

    def __init__(self, path, come):
        super().__init__(path, "w")
        self.come = come

    def write(self, data):
        written = super().write(data)
        self.come()
        return written
