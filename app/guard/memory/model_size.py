"""What a model's weights take: gradients and the optimizer's moments are as large as they are."""

from dataclasses import dataclass

from app.spec.optimization import SGD, NoAveraging
from app.spec.run import RunSpec

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ModelSize:
    """Of a model with so many parameters. None: only building it tells, and all are counted as 0;
    what they take is then a part of what is measured.
    """

    spec: RunSpec
    parameters: int | None

    @property
    def weights_bytes(self) -> int:
        """Weights and their updates are fp32 under every precision."""
        return FLOAT32_BYTES * (self.parameters or 0)

    @property
    def gradients_bytes(self) -> int:
        return self.weights_bytes

    @property
    def average_bytes(self) -> int:
        """Of the averaged weights, which lie beside those that are trained."""
        return 0 if isinstance(self.spec.averaging, NoAveraging) else self.weights_bytes

    @property
    def state_bytes(self) -> int:
        """All that a checkpoint has of it."""
        return self.weights_bytes + self.average_bytes + self.optimizer_bytes

    @property
    def optimizer_bytes(self) -> int:
        """Two moments under Adam, one under SGD with momentum."""
        wanted = self.spec.optimizer
        moments = (1 if wanted.momentum else 0) if isinstance(wanted, SGD) else 2
        return moments * self.weights_bytes
