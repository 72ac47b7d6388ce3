"""A StackedRNN against PyTorch's LSTM and GRU of several layers with dropout."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from app.recipes.encoders import EncodingRecipe
from app.recipes.sequence import Sequence
from tests.trainer.lab import BUILDING_POLLS, Lab, StopAtPoll
from worker.trainer.recipes import sequence_model
from worker.trainer.recipes.encoders import RNNS, StackedRNN, build_encoder

LAYERS, HIDDEN, WIDTH = 3, 8, 5
KINDS = pytest.mark.parametrize("kind", ["lstm", "gru"])


def both(kind: str, dropout: float = 0.3) -> tuple[nn.LSTM | nn.GRU, StackedRNN]:
    """PyTorch's module and ours, each from the same seed."""
    torch.manual_seed(0)
    plain = RNNS[kind](WIDTH, HIDDEN, LAYERS, batch_first=True, dropout=dropout)
    torch.manual_seed(0)
    return plain, StackedRNN(RNNS[kind], WIDTH, HIDDEN, LAYERS, dropout)


def tensors(states: Tensor, end: Any) -> list[Tensor]:
    return [states, *(end if isinstance(end, tuple) else (end,))]


def computed(model: nn.Module, *inputs: Any) -> list[Tensor]:
    """States, the state at the end and all gradients, with the random numbers of one seed."""
    torch.manual_seed(1)
    model.zero_grad()
    outputs = tensors(*model(*inputs))
    torch.stack([one.square().sum() for one in outputs]).sum().backward()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    return [*outputs, *gradients]


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@KINDS
def test_the_first_weights_and_their_names_are_those_of_pytorch(kind: str) -> None:
    plain, stacked = both(kind)
    after = torch.get_rng_state()
    expected, found = dict(plain.named_parameters()), dict(stacked.named_parameters())
    assert list(found) == list(expected) == list(stacked.state_dict())
    assert_same(list(found.values()), list(expected.values()))
    both(kind)
    assert torch.equal(torch.get_rng_state(), after)


@KINDS
def test_old_weights_load_and_new_ones_load_in_pytorch(kind: str) -> None:
    plain, _ = both(kind)
    torch.manual_seed(5)
    stacked = StackedRNN(RNNS[kind], WIDTH, HIDDEN, LAYERS, 0.3)
    inputs = torch.randn(4, 7, WIDTH)
    expected = tensors(*plain.eval()(inputs))
    stacked.load_state_dict(plain.state_dict())
    assert_same(tensors(*stacked.eval()(inputs)), expected)
    torch.manual_seed(6)
    again = RNNS[kind](WIDTH, HIDDEN, LAYERS, batch_first=True)
    again.load_state_dict(stacked.state_dict())
    assert_same(tensors(*again.eval()(inputs)), expected)


@KINDS
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_states_and_gradients_are_those_of_pytorch(kind: str, training: bool) -> None:
    """Also those of dropout: on a CPU both draw it from PyTorch's generator."""
    plain, stacked = both(kind)
    inputs = torch.randn(4, 7, WIDTH)
    begin: Any = torch.randn(2, LAYERS, 4, HIDDEN).unbind()
    begin = begin if kind == "lstm" else begin[0]
    for model in (plain, stacked):
        model.train(training)
    assert_same(computed(stacked, inputs), computed(plain, inputs))
    assert_same(computed(stacked, inputs, begin), computed(plain, inputs, begin))


@KINDS
def test_dropout_is_drawn_anew_in_training_alone(kind: str) -> None:
    _, stacked = both(kind)
    inputs = torch.randn(4, 7, WIDTH)
    assert not torch.equal(stacked(inputs)[0], stacked(inputs)[0])
    stacked.eval()
    assert torch.equal(stacked(inputs)[0], stacked(inputs)[0])
    assert not any(rnn.training for rnn in stacked._rnns)


@pytest.fixture
def overwriting(request: pytest.FixtureRequest) -> Iterator[None]:
    """Modules may get other parameters when they are converted, as on some devices."""
    torch.__future__.set_overwrite_module_params_on_conversion(request.param)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(False)


@KINDS
@pytest.mark.parametrize("overwriting", [False, True], indirect=True)
@pytest.mark.usefixtures("overwriting")
def test_a_model_that_is_moved_or_copied_computes_with_its_own_weights(kind: str) -> None:
    plain, stacked = both(kind)
    inputs = torch.randn(4, 7, WIDTH, dtype=torch.float64)
    for model in (plain, stacked):
        model.double().eval()
    copied = copy.deepcopy(stacked)
    expected = computed(plain, inputs)
    assert_same(computed(stacked, inputs), expected)
    with torch.no_grad():
        for parameter in stacked.parameters():
            parameter.zero_()
    assert not stacked(inputs)[0].any()
    assert_same(computed(copied, inputs), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@KINDS
@pytest.mark.filterwarnings("error")
def test_on_a_gpu_each_layers_weights_lie_in_one_block(kind: str) -> None:
    """PyTorch warns of weights that it has to copy together for cuDNN at each step."""
    plain, stacked = both(kind, dropout=0.0)
    inputs = torch.randn(4, 7, WIDTH)
    expected = computed(plain, inputs)
    found = computed(stacked.cuda(), inputs.cuda())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("layers", "dropout"), [(1, 0.3), (2, 0.0)])
def test_without_dropout_between_layers_the_encoder_is_pytorchs(
    layers: int, dropout: float
) -> None:
    recipe = Sequence(kind="sequence", num_layers=layers, dropout=dropout)
    assert type(build_encoder(recipe, 12, 3)) is nn.LSTM
    stacked = Sequence(kind="sequence", num_layers=2, dropout=0.3)
    assert type(build_encoder(stacked, 12, 3)) is StackedRNN


@KINDS
@pytest.mark.parametrize("carried", [False, True], ids=["windows", "carried state"])
def test_a_run_that_began_with_pytorchs_module_ends_with_the_same_bits(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, kind: str, carried: bool
) -> None:
    """An earlier version trained with it, and its checkpoints resume."""

    def as_before(recipe: EncodingRecipe, window: int, features: int) -> nn.Module:
        width, layers = features * recipe.patch, recipe.num_layers
        return RNNS[kind](
            width, recipe.hidden_size, layers, batch_first=True, dropout=recipe.dropout
        )

    patch: dict[str, Any] = {"recipe": {"encoder": kind, "num_layers": 2, "dropout": 0.2}}
    if carried:
        patch["recipe"]["carry_hidden"] = True
        patch["data"] = {"loader": {"kind": "chunked", "shuffle": "lanes"}}
        patch["training"] = {"drop_last": True}
    straight, run_dir = lab.run(patch=patch), lab.new_run()
    with monkeypatch.context() as earlier:
        earlier.setattr(sequence_model, "build_encoder", as_before)
        lab.run(run_dir, patch, stop=StopAtPoll(BUILDING_POLLS + 8))
    resumed = lab.run(run_dir, patch)
    assert resumed.of_kind("restored")[0]["step"] > 0
    assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)
    assert resumed.result == straight.result
