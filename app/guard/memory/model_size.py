"""What one recipe's model takes: parameters exactly, activations by coefficients measured here."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from app.spec.optimization import SGD
from app.spec.run import RunSpec

FLOAT32_BYTES = 4
GATES = {"lstm": 4, "gru": 3}


@dataclass(frozen=True)
class Coefficients:
    """How often a batch's numbers are held at once: the states of an encoder layer (batch × steps ×
    units) for each layer and once more, and the standardized inputs (batch × window × features).
    """

    each_layer: float
    once: float
    inputs: float


# Peaks of resident memory over two steps of the model alone (PyTorch 2.13, two threads, AMD EPYC
# with AVX2), fitted by hand to models from 20 to 1,600 MB and to the specs of docs/memory.md.
# oneDNN's LSTM keeps gates and states of each layer, and takes more than as much again for the
# layer that it goes back through. GRU is made of small tensors, of which the heap loses some.
TRAINING_ON_CPU = {"lstm": Coefficients(6.4, 9.6, 5.5), "gru": Coefficients(7.5, 4.5, 4.0)}
EVALUATION_ON_CPU = {"lstm": Coefficients(2.0, 0.0, 2.5), "gru": Coefficients(0.0, 6.5, 3.0)}
# By what cuDNN keeps: gates, states and cells; not measured on a GPU yet.
TRAINING_ON_CUDA = {"lstm": Coefficients(6.0, 4.0, 4.0), "gru": Coefficients(5.0, 4.0, 4.0)}
EVALUATION_ON_CUDA = {"lstm": Coefficients(2.0, 2.0, 3.0), "gru": Coefficients(2.0, 2.0, 3.0)}


@dataclass(frozen=True)
class SequenceSize:
    """Sizes of the sequence recipe's model: `window` and `features` of an input sample."""

    spec: RunSpec
    window: int
    features: int
    target_shape: tuple[int, ...]

    @property
    def encoder_parameters(self) -> int:
        """Of every layer: input and state weights and two biases for each gate."""
        recipe = self.spec.recipe
        gates, hidden = GATES[recipe.encoder], recipe.hidden_size
        first = gates * hidden * (self.features * recipe.patch + hidden + 2)
        return first + (recipe.num_layers - 1) * gates * hidden * (2 * hidden + 2)

    @property
    def parameters(self) -> int:
        """Of the encoder and of the linear head."""
        outputs = prod(self.target_shape)
        return self.encoder_parameters + outputs * (self.spec.recipe.hidden_size + 1)

    @property
    def weights_bytes(self) -> int:
        """Parameters, and the buffers of the standardization."""
        return FLOAT32_BYTES * (self.parameters + 2 * self.features + 2)

    @property
    def gradients_bytes(self) -> int:
        return FLOAT32_BYTES * self.parameters

    @property
    def optimizer_bytes(self) -> int:
        """Two moments under Adam, one under SGD with momentum."""
        wanted = self.spec.optimizer
        moments = (1 if wanted.momentum else 0) if isinstance(wanted, SGD) else 2
        return moments * self.gradients_bytes

    def activations_bytes(
        self, batch: int, by: Mapping[str, Coefficients], element_bytes: int = FLOAT32_BYTES
    ) -> int:
        """What a batch takes between the inputs and the loss."""
        recipe, much = self.spec.recipe, by[self.spec.recipe.encoder]
        states = element_bytes * batch * (self.window // recipe.patch) * recipe.hidden_size
        inputs = FLOAT32_BYTES * batch * self.window * self.features
        layers = much.each_layer * recipe.num_layers + much.once
        return int(layers * states + much.inputs * inputs)
