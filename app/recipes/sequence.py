"""Recipe `sequence`: direct multi-horizon forecasts from windows of one or several timeframes."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.recipes.encoders import GATES, EncodingRecipe, fitting_patches
from app.recipes.quantiles import levels_of, quantile_problems
from app.spec.base import FieldName
from app.spec.data import Data
from app.spec.recipe import BACKBONE, Array, Format, Mode, Problem, Roles, past_of_target

# Labels that number the classes from 0.
LABELS = ("bool", "int", "uint")
MOST_CLASSES = 65_536


class Sequence(EncodingRecipe):
    """Direct multi-horizon forecasts, or classes, from windows: patches → an encoder each → linear
    head. A row of features without an axis of time is a window of one step.

    Where the target's own past is known, the head and a linear map of the last steps correct its
    last value (Lai et al., LSTNet, 2018). `normalize` is RevIN (Kim et al., 2022) without its
    affine map, which the layers around it can learn.

    Several inputs, such as bars of 1, 5 and 60 minutes, are fused by attention: the end of the
    first one asks all steps of all. A feed-forward layer follows.
    """

    kind: Literal["sequence"]
    """Which recipe."""
    task: Literal["regression", "classification"] = "regression"
    """Numbers, or one class a sample; default as the file says, else regression."""
    classes: Annotated[int, Field(ge=2, le=MOST_CLASSES)] | None = None
    """Classes of task classification, which targets number from 0; default as many as the labels of
    the dataset have."""
    fusion: Literal["attention", "block"] = "block"
    """Several inputs become one forecast by attention alone, or by a transformer block, which adds
    dropout and a feed-forward layer. Default block."""
    carry_hidden: bool | Annotated[tuple[FieldName, ...], Field(min_length=1)] = False
    """Begin each window with the end state of the one before, in lanes: of all inputs, or of the
    named ones; default false."""
    loss: Literal["mae", "mse", "huber", "quantile"] = "mae"
    """Training loss of task regression, in standardized target units; default mae. quantile: the
    pinball loss of the levels in quantiles, of which the one nearest 0.5 is the point forecast.
    Task classification trains the cross entropy."""
    quantiles: Annotated[tuple[float, ...], Field(min_length=1, max_length=99)] | None = None
    """Levels of the loss quantile, ascending between 0 and 1; default null, which is 0.1, 0.5 and
    0.9. The metric pinball is the loss in the target's units. The metric coverage is the share of
    targets within the outermost two levels, nominally their difference."""
    residual: Literal["last", "none"] = "last"
    """The forecast is the target's last known value plus what the model adds; default last, or none
    if the file does not say where the target's past is."""
    highway: Annotated[int, Field(ge=0, le=4_096)] = 24
    """Last time steps, with all features, of which a linear map is added to the forecast and is
    trained along; default 24, at most the window, or 0 if the file does not say where the target's
    past is. With residual last the training starts at a ridge regression: on these steps, or on up
    to 512 last values of the target alone, which then stays fixed. The better one inside the
    training part is taken."""
    normalize: Literal["none", "window"] = "none"
    """`window` subtracts each window's mean, divides by its deviation, and undoes both in the
    forecast, for levels that drift; default none."""

    shape_fields: ClassVar = (
        *("encoder", "hidden_size", "num_layers", "num_heads", "patch", "quantiles"),
        *("task", "classes"),
        *("residual", "highway", "normalize", "fusion"),
    )
    earlier: ClassVar = {
        "residual": "none",
        "highway": 0,
        "normalize": "none",
        "fusion": "attention",
    }
    takes_ragged: ClassVar = ("inputs",)

    @property
    def classifies(self) -> bool:
        return self.task == "classification"

    @property
    def has_scale(self) -> tuple[str, ...]:
        return ("inputs",) if self.classifies else ("inputs", "targets")

    @property
    def takes_weights(self) -> Mapping[str, int]:
        return {"class_weights": self.classes or 0} if self.classifies else {}

    @property
    def natural_metric(self) -> str | None:
        return "f1" if self.classifies else None

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels that are forecast; none unless the loss is quantile."""
        return levels_of(self.loss, self.quantiles)

    @property
    def metric_modes(self) -> Mapping[str, Mode | None]:
        if self.classifies:
            return {"f1": "max", "accuracy": "max", "auc": "max"}
        modes: dict[str, Mode | None] = {"mae": "min", "mse": "min", "rmse": "min"}
        return modes | ({"pinball": "min", "coverage": None} if self.levels else {})

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        if self.classifies:
            return ("f1", "accuracy")
        return ("mae", "pinball", "coverage") if self.levels else ("mae",)

    @property
    def parameter_groups(self) -> tuple[str, ...]:
        return (BACKBONE, "head")

    def computes_in(self, precision: str, device_kind: str) -> dict[str, Format]:
        """Adds the highway, which is never computed in half precision."""
        formats = super().computes_in(precision, device_kind)
        if not self.highway:
            return formats
        full: Format = "tf32" if device_kind == "cuda" else "fp32"
        return {
            **formats,
            "highway": full if formats["head"] in ("bf16", "fp16") else formats["head"],
        }

    def uses_attention(self, data: Data) -> bool:
        return self.encoder == "transformer" or len(data.inputs) > 1

    def roles(self, arrays: Mapping[str, Array]) -> Roles | None:
        """The only windows, or else rows, and the only other array of real numbers or of labels."""
        usable = {name: array for name, array in arrays.items() if array.rows is None}
        real = {name: one for name, one in usable.items() if one.dtype.startswith("float")}
        windows = tuple(name for name, one in real.items() if len(one.shape) == 2)
        inputs = windows or tuple(name for name, one in real.items() if _is_row(one))
        targets = tuple(
            name
            for name, one in (usable if self.classifies else real).items()
            if name not in inputs and (_is_label(one) if self.classifies else len(one.shape) < 2)
        )
        return Roles(inputs, targets) if len(inputs) == len(targets) == 1 else None

    def problems(self, data: Data, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        """Windows in, a horizon of numbers or a class out, and patches that divide the windows."""
        if len(data.targets) > 1:
            yield Problem(
                ("data", "targets"),
                f"The recipe sequence takes one array in data.targets, not {len(data.targets)}.",
                "It forecasts one array.",
                {"/data/targets": [data.targets[0]]},
            )
        yield from self.heads_problems(
            attends=self.uses_attention(data), without=f"One input and the encoder {self.encoder}"
        )
        yield from self._task_problems(data, arrays)
        yield from self._state_problems(data, arrays)
        windows = {name: arrays[name] for name in data.inputs if name in arrays}
        for position, (name, window) in enumerate(windows.items()):
            yield from self._window_problems(data, position, name, window)
        if all(_steps_of(window) for window in windows.values()):
            yield from self._patch_problems(windows)
            yield from self._past_problems(data, arrays)
        target = arrays.get(data.targets[0])
        if target is None or target.is_ragged:
            return
        if self.classifies:
            yield from self._label_problems(data, target)
        elif not _is_horizon(target):
            yield Problem(
                ("data", "targets", 0),
                f"{data.targets[0]!r} has samples of {_shown(target)}; the recipe sequence "
                "forecasts (horizon,) or (horizon, values) numbers.",
                "The head gives one number for each step of the horizon and each value.",
            )

    def _task_problems(self, data: Data, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        """The options of the one task that go with the other."""
        target = arrays.get(data.targets[0])
        if not self.classifies:
            yield from quantile_problems(self.loss, self.quantiles)
            if target is not None and target.names_classes:
                yield Problem(
                    ("recipe", "task"),
                    f"{data.targets[0]!r} holds classes, which its file names, and recipe.task is "
                    "regression.",
                    "The numbers of classes are no quantities: between class 0 and class 2 lies "
                    "no class 1.",
                    {"/recipe/task": "classification"},
                )
            if self.classes is not None:
                yield Problem(
                    ("recipe", "classes"),
                    f"recipe.classes is {self.classes:,}, and recipe.task is regression.",
                    "A forecast of numbers has no classes, so it would change nothing.",
                    {"/recipe/task": "classification"},
                )
            return
        others = {"loss": "mae", "quantiles": None}
        wrong = [name for name, usual in others.items() if getattr(self, name) != usual]
        if wrong:
            yield Problem(
                ("recipe", wrong[0]),
                f"recipe.{wrong[0]} is for task regression, and recipe.task is classification.",
                "Classes are trained by their cross entropy, so it would change nothing.",
                {f"/recipe/{name}": others[name] for name in wrong},
            )
        if data.standardize.targets is True:
            yield Problem(
                ("data", "standardize", "targets"),
                "Task classification standardizes no targets.",
                "Classes are numbers of kinds, of which a mean says nothing.",
                {"/data/standardize/targets": False},
            )

    def _label_problems(self, data: Data, target: Array) -> Iterator[Problem]:
        """The labels of task classification, and how many classes they have."""
        name, where = data.targets[0], ("data", "targets", 0)
        if prod(target.shape) != 1:
            yield Problem(
                where,
                f"{name!r} has samples of {_shown(target)}; a class is one whole number.",
                "Each sample has one class. Labels that are 0 or 1 for each class have to be "
                "written as the number of the class (`labels.argmax(1)`).",
            )
        elif not _is_label(target):
            yield Problem(
                where,
                f"{name!r} holds {target.dtype} numbers, and classes are whole numbers from 0.",
                "Write them as integers (`labels.astype('int64')`), or let `stoker data convert "
                "FILE --rows --target COLUMN --classes` number the values of a table's column.",
            )
        elif target.classes is not None and target.classes > (self.classes or 0):
            told = "is not named" if self.classes is None else f"is {self.classes:,}"
            yield Problem(
                ("recipe", "classes"),
                f"recipe.classes {told}, and the labels of {name!r} go up to "
                f"{target.classes - 1:,}.",
                "The model has an output for each class, which labels number from 0.",
                {"/recipe/classes": max(2, target.classes)},
            )
        elif self.classes is None:
            yield Problem(
                ("recipe", "classes"),
                "Task classification needs recipe.classes: how many classes there are.",
                f"An inspection counts up to 64 of them; {name!r} has more, or was not looked at.",
            )

    def _state_problems(self, data: Data, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        if not self.carry_hidden:
            return
        first, carried = arrays.get(data.inputs[0]), self.carried_inputs(data)
        if unknown := [name for name in carried if name not in data.inputs]:
            yield Problem(
                ("recipe", "carry_hidden"),
                f"{', '.join(map(repr, unknown))} is none of data.inputs, so no state of it can be "
                "carried on.",
                "Each input has an encoder with a state of its own.",
                {"/recipe/carry_hidden": True},
            )
        if self.encoder not in GATES:
            yield Problem(
                ("recipe", "carry_hidden"),
                "A transformer has no state to carry on.",
                "It sees its window at once, and nothing before it; lstm and gru have a state.",
                {"/recipe/carry_hidden": False},
            )
        elif first is not None and first.is_ragged:
            yield Problem(
                ("recipe", "carry_hidden"),
                f"{data.inputs[0]!r} is ragged: no state can be carried over the filling behind "
                "its samples.",
                "The next sample would begin with what the encoder made of zeros.",
                {"/recipe/carry_hidden": False},
            )

    def _window_problems(
        self, data: Data, position: int, name: str, window: Array
    ) -> Iterator[Problem]:
        where = ("data", "inputs", position)
        if not _steps_of(window):
            yield Problem(
                where,
                f"{name!r} has samples of {_shown(window)}; the recipe sequence reads "
                "windows of (time steps, features), or rows of features.",
                "An encoder steps through time and sees all features of a step at once.",
            )
        elif window.is_ragged and (len(data.inputs) > 1 or self.encoder == "transformer"):
            what = "several inputs" if len(data.inputs) > 1 else "the encoder transformer"
            yield Problem(
                where,
                f"{name!r} is ragged, and the recipe sequence takes it with {what} only if all "
                "samples have one length.",
                "Attention would look at the filling behind each sample. Take lstm or gru with "
                "this input alone, or pad or cut its samples to one length (`stoker data convert "
                f"FILE --pad {window.shape[0]}`).",
            )

    def _patch_problems(self, windows: Mapping[str, Array]) -> Iterator[Problem]:
        """One patch divides the windows of all inputs; each ragged sample has a last patch of its
        own.
        """
        lengths = {name: _steps_of(one) for name, one in windows.items() if not one.is_ragged}
        uneven = [name for name, steps in lengths.items() if steps % self.patch]
        if not uneven:
            return
        name, fitting = uneven[0], fitting_patches(lengths.values())
        if lengths[name] == 1:
            yield Problem(
                ("recipe", "patch"),
                f"A patch of {self.patch} does not fit {name!r}, which has one time step.",
                "Rows of features are read one by one, so there are no steps to fold.",
                {"/recipe/patch": 1},
            )
            return
        what = "the window" if len(windows) == 1 else f"the window {name!r}"
        every = "" if len(windows) == 1 else ", which divide the windows of all inputs"
        yield Problem(
            ("recipe", "patch"),
            f"A patch of {self.patch} does not divide {what} of {lengths[name]} time steps.",
            f"{lengths[name] % self.patch} time steps would be left over. Choose one of "
            f"{', '.join(map(str, fitting))}{every}.",
            {"/recipe/patch": max(p for p in fitting if p <= self.patch)},
        )

    @property
    def uses_past(self) -> bool:
        """True if an option reads the target's own past."""
        return self.residual == "last" or self.highway > 0 or self.normalize == "window"

    def _past_problems(self, data: Data, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        """Yields what is wrong with options that need the target's own past."""
        past = None if self.classifies else past_of_target(data, arrays)
        off = {"residual": "none", "highway": 0, "normalize": "none"}
        for name, without in off.items():
            if past is None and getattr(self, name) != without:
                why = (
                    "It starts from the target's last values, and classes are no quantities."
                    if self.classifies
                    else "It starts from the target's last values. Files of `stoker data convert` "
                    "say where these are; in others, name the features of the windows in the "
                    "attribute feature_names and the target in target_name, and register the file "
                    "again. Ragged windows do not count."
                )
                lacks = (
                    "recipe.task is classification"
                    if self.classifies
                    else f"no file says which input holds the past of {data.targets[0]!r}"
                )
                yield Problem(
                    ("recipe", name),
                    f"recipe.{name} is {getattr(self, name)}, and {lacks}.",
                    why,
                    {f"/recipe/{name}": without},
                )
        if past is None:
            return
        window = arrays[past[0]].shape[0]
        if self.highway > window:
            yield Problem(
                ("recipe", "highway"),
                f"A highway of {self.highway} time steps is longer than the window "
                f"{past[0]!r}, which has {window}.",
                "It reads the last steps of that window.",
                {"/recipe/highway": window},
            )

    def shape(self, data: Data, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Returns the values of a step of each input, and the shape of each target, with an axis of
        levels where quantiles are forecast. The number of steps changes no weights but the
        positions of a transformer.
        """
        shapes = super().shape(data, arrays)
        if self.uses_past:
            past = past_of_target(data, arrays)
            shapes["past"] = None if past is None else list(past)
        if self.levels:
            targets = {name: [*one, len(self.levels)] for name, one in shapes["targets"].items()}
            shapes = {**shapes, "targets": targets}
        if self.encoder == "transformer":
            return shapes
        return {**shapes, "inputs": {name: one[-1:] for name, one in shapes["inputs"].items()}}

    def num_parameters(self, data: Data, arrays: Mapping[str, Array]) -> int | None:
        """Counts the encoders, the fusion of several inputs, the linear head and the highway."""
        windows = [arrays[name] for name in data.inputs]
        if not all(_steps_of(window) for window in windows):
            return None
        hidden = self.hidden_size
        outputs = prod(arrays[data.targets[0]].shape) * max(1, len(self.levels))
        if self.classifies:
            outputs = self.classes or 0
        encoders = sum(
            self.encoder_parameters(_steps_of(window), self.patch * window.shape[-1])
            for window in windows
        )
        past = past_of_target(data, arrays)
        linear = self.highway * arrays[past[0]].shape[1] if past is not None else 0
        head = outputs * (hidden + 1 + linear)
        if len(windows) == 1:
            return encoders + head
        # Which frame a state is of, two norms, and the attention's four matrices with biases.
        fusion = len(windows) * hidden + 4 * hidden + 4 * hidden * (hidden + 1)
        if self.fusion == "block":  # a norm, and two linear maps to four times the width and back
            fusion += 2 * hidden + 8 * hidden * hidden + 5 * hidden
        return encoders + fusion + head

    @property
    def carries_state(self) -> bool:
        return bool(self.carry_hidden)

    def carried_inputs(self, data: Data) -> tuple[str, ...]:
        named = self.carry_hidden
        return super().carried_inputs(data) if isinstance(named, bool) else named

    def carrying(self, inputs: tuple[str, ...]) -> Mapping[str, Any]:
        return {"carry_hidden": list(inputs)}


def _steps_of(window: Array) -> int:
    """Time steps of a window; 1 of a row of features, 0 of what is neither."""
    if _is_row(window):
        return 1
    return window.shape[0] if len(window.shape) == 2 else 0


def _is_row(array: Array) -> bool:
    return len(array.shape) == 1 and not array.is_ragged


def _is_label(array: Array) -> bool:
    return prod(array.shape) == 1 and not array.is_ragged and array.dtype.startswith(LABELS)


def _is_horizon(target: Array) -> bool:
    """One number counts as a horizon of one."""
    return len(target.shape) <= 2 and 0 not in target.shape


def _shown(array: Array) -> str:
    if not array.is_ragged:
        return f"{array.dtype} {array.shape}"
    inner = "".join(f", {size}" for size in array.shape[1:])
    return f"{array.dtype} (up to {array.shape[0]}{inner})"
