"""Recipe `panel-graph`: forecasts for all entities of a date, each of which looks at its like."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.recipes.encoders import EncodingRecipe, fitting_patches
from app.recipes.quantiles import levels_of, quantile_problems
from app.spec.base import SpecModel
from app.spec.data import Data, DatasetsSplit
from app.spec.recipe import BACKBONE, Array, Format, Mode, Problem, Roles

INPUTS = ("features", "who is there", "the date's number")
TARGETS = ("what is forecast", "what of it is known")
# The arrays of a file of `stoker data convert --entity`.
CONVERTED = Roles(("features", "present", "date"), ("targets", "known"))
# Of an evaluation, what graphs take that are made for each date of each batch, or kept: what
# `python -m benchmarks workloads` prints as "graphs' share of it", on 2 CPU cores, n = 7. The table
# of docs/workloads/panel-graph.md has the same figures.
REBUILT_SHARE, KEPT_SHARE = 0.14, 0.0011


class Graph(SpecModel):
    """Who looks at whom: at those entities whose past was most like its own."""

    layers: Annotated[int, Field(ge=1, le=16)] = 1
    """Layers of attention over entities, one behind another; default 1."""
    neighbors: Annotated[int, Field(ge=1, le=65_536)] = 10
    """Entities that each one looks at beside itself; default 10."""
    feature: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Number of the feature whose correlations say who is alike; default 0, the first."""
    lookback: Annotated[int, Field(ge=3, le=100_000)] = 250
    """Dates that correlations look back on; default 250."""
    edges: Literal["equal", "correlation"] = "equal"
    """correlation: attention also adds each neighbor's correlation, times a weight that every head
    learns; default equal, where neighbors differ by their states alone."""
    rebuild_every: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["batch"] = 20
    """Dates from one graph to the next, each made once and kept; batch: each date of a batch has a
    graph of its own window, made anew each time, which the guard refuses. Default 20."""


def _dates(horizons: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, horizons))} {'date' if horizons == (1,) else 'dates'}"


class PanelGraph(EncodingRecipe):
    """All entities of a date: patches → an encoder for each → attention over a graph → horizons.

    A sample is a date. Who is absent is masked; what is not known is left out of the loss.
    """

    kind: Literal["panel-graph"]
    """Which recipe."""
    horizons: Annotated[tuple[Annotated[int, Field(ge=1, le=10_000)], ...], Field(min_length=1)] = (
        5,
    )
    """Of each target, how many dates ahead it reaches, ascending; default [5]."""
    graph: Graph | None = Graph()
    """Who looks at whom; null: no attention between entities."""
    top_frequencies: Annotated[int, Field(ge=0, le=2_048)] = 0
    """Strongest frequencies of each window, which are taken out of what the encoder and the graph
    see and are forecast beside it (frequency adaptive normalization); default 0: none."""
    date_means: bool = True
    """Give each entity the means of all features over the entities of each date too; default
    true."""
    highway: Annotated[int, Field(ge=0, le=100_000)] = 60
    """Last dates whose features also reach the forecast by a linear map, which is trained along
    (LSTNet's highway); default 60, 0: none."""
    variable_selection: bool = False
    """Put the selection network of the Temporal Fusion Transformer before the encoder. Each feature
    of a patch becomes a vector of hidden_size numbers, and the encoder sees their weighted sum;
    weights follow from all features of the patch. Default false."""
    slice_dates: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Dates of a slice whose own mean and deviation are taken out of what the encoder sees and
    forecast beside it (slice normalization), a divisor of the window; default 0: none."""
    loss: Literal["mae", "mse", "huber", "quantile"] = "mae"
    """Training loss, in standardized target units; default mae. quantile: the pinball loss of the
    levels in quantiles, of which the one nearest 0.5 is the point forecast."""
    quantiles: Annotated[tuple[float, ...], Field(min_length=1, max_length=99)] | None = None
    """Levels of the loss quantile, ascending between 0 and 1; default null, which is 0.1, 0.5 and
    0.9. The metric pinball is the loss in the target's units. The metric coverage is the share of
    targets within the outermost two levels, nominally their difference."""
    rank_loss: bool = False
    """Train on two terms, error (what loss names) and rank: one less the correlation of a date's
    forecasts with the ranks of what came, at most 2. loss_weights says how much each counts;
    default false."""

    shape_fields: ClassVar = (
        *("encoder", "hidden_size", "num_layers", "num_heads", "patch", "top_frequencies"),
        *("horizons", "graph/layers", "graph/edges", "date_means", "highway", "quantiles"),
        *("variable_selection", "slice_dates"),
    )
    earlier: ClassVar = {
        "date_means": False,
        "highway": 0,
        "top_frequencies": 2,
        "graph/edges": "equal",
    }

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels that are forecast; none unless the loss is quantile."""
        return levels_of(self.loss, self.quantiles)

    @property
    def metric_modes(self) -> Mapping[str, Mode | None]:
        """Over all horizons, and the absolute error of each."""
        modes: dict[str, Mode | None] = {"mae": "min", "mse": "min", "rmse": "min"}
        modes["rank_correlation"] = "max"
        if self.levels:
            modes |= {"pinball": "min", "coverage": None}
        return modes | {f"mae_{horizon}": "min" for horizon in self.horizons}

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        return ("mae", "pinball", "coverage") if self.levels else ("mae",)

    @property
    def loss_terms(self) -> tuple[str, ...]:
        return ("error", "rank") if self.rank_loss else ("loss",)

    @property
    def parameter_groups(self) -> tuple[str, ...]:
        return (BACKBONE, "head")

    @property
    def has_blocks(self) -> bool:
        return self.graph is not None or super().has_blocks

    @property
    def masks_attention(self) -> bool:
        return self.graph is not None

    @property
    def graph_layers(self) -> int:
        return self.graph.layers if self.graph else 0

    def uses_attention(self, data: Data) -> bool:
        return self.encoder == "transformer" or self.graph is not None

    def forecast_steps(self, data: Data) -> int:
        return max(self.horizons)

    def computes_in(self, precision: str, device_kind: str) -> dict[str, Format]:
        found = super().computes_in(precision, device_kind)
        return found if self.graph is None else {**found, "graph": found["head"]}

    def roles(self, arrays: Mapping[str, Array]) -> Roles | None:
        """Arrays have the names that `stoker data convert --entity` gives them."""
        return CONVERTED if arrays.keys() >= {*CONVERTED.inputs, *CONVERTED.targets} else None

    def problems(self, data: Data, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        """Three inputs and two targets, which agree about dates, entities and horizons."""
        for part, roles in (("inputs", INPUTS), ("targets", TARGETS)):
            if len(getattr(data, part)) != len(roles):
                yield Problem(
                    ("data", part),
                    f"The recipe panel-graph takes {len(roles)} arrays in data.{part} "
                    f"({', '.join(roles)}), not {len(getattr(data, part))}.",
                    "Each array has a role of its own, by its place in the list; `stoker data "
                    "convert --entity` writes them.",
                )
                return
        yield from self.heads_problems(
            attends=self.uses_attention(data),
            without=f"No graph and the encoder {self.encoder}",
        )
        yield from self._horizon_problems()
        yield from quantile_problems(self.loss, self.quantiles)
        if isinstance(data.split, DatasetsSplit):
            yield Problem(
                ("data", "split", "method"),
                "The parts of a panel are datasets of their own, and graphs are made of the dates "
                "of one.",
                "The dates of another dataset would be given graphs that are not theirs.",
                {"/data/split": {"method": "chronological"}},
            )
        panel = arrays.get(data.inputs[0])
        if panel is None:
            return
        if len(panel.shape) != 3:
            yield Problem(
                ("data", "inputs", 0),
                f"{data.inputs[0]!r} has samples of {panel.dtype} {panel.shape}; the recipe "
                "panel-graph reads windows of (dates, entities, features).",
                "A sample is all entities of a date, with the dates before it.",
            )
            return
        yield from self._beside_problems(data, arrays, panel)
        yield from self._panel_problems(panel)

    def _horizon_problems(self) -> Iterator[Problem]:
        ascending = sorted(set(self.horizons))
        if list(self.horizons) != ascending:
            yield Problem(
                ("recipe", "horizons"),
                f"The horizons {', '.join(map(str, self.horizons))} do not ascend.",
                "Each is told by its length, so no two may be one.",
                {"/recipe/horizons": ascending},
            )

    def _beside_problems(
        self, data: Data, arrays: Mapping[str, Array], panel: Array
    ) -> Iterator[Problem]:
        """Masks, numbers and targets are as the panel has dates and entities."""
        window, entities, _ = panel.shape
        horizons, truth = len(self.horizons), ("bool", "uint8")
        wanted: dict[tuple[str, int], tuple[tuple[int, ...], tuple[str, ...] | None]] = {
            ("inputs", 1): ((window, entities), truth),
            ("inputs", 2): ((), ("int8", "int16", "int32", "int64")),
            ("targets", 0): ((entities, horizons), None),
            ("targets", 1): ((entities, horizons), truth),
        }
        for (part, place), (shape, kinds) in wanted.items():
            name = getattr(data, part)[place]
            array = arrays.get(name)
            if array is None:
                continue
            role = (INPUTS if part == "inputs" else TARGETS)[place]
            if array.horizons is not None and array.horizons != self.horizons:
                yield Problem(
                    ("recipe", "horizons"),
                    f"{name!r} reaches {_dates(array.horizons)} ahead, and recipe.horizons says "
                    f"{_dates(self.horizons)}.",
                    "Metrics are named after it, and the gap between the parts follows from it: "
                    "one that is too short leaks.",
                    {"/recipe/horizons": list(array.horizons)},
                )
                return
            if array.shape != shape or array.is_ragged:
                yield Problem(
                    ("data", part, place),
                    f"{name!r} has samples of {array.dtype} {array.shape}; {role} is {shape} with "
                    f"{entities} entities and {horizons} of recipe.horizons.",
                    "Its places are those of the panel, and of recipe.horizons.",
                )
            elif kinds is not None and array.dtype not in kinds:
                yield Problem(
                    ("data", part, place),
                    f"{name!r} is {array.dtype}; {role} is {' or '.join(kinds)}.",
                    "It says yes or no for each place, or counts dates.",
                )

    def _panel_problems(self, panel: Array) -> Iterator[Problem]:
        """The parameters fit windows, entities and features."""
        window, entities, features = panel.shape
        if window % self.patch:
            fitting = fitting_patches([window])
            yield Problem(
                ("recipe", "patch"),
                f"A patch of {self.patch} does not divide the window of {window} dates.",
                f"{window % self.patch} dates would be left over. Choose one of "
                f"{', '.join(map(str, fitting))}.",
                {"/recipe/patch": max(p for p in fitting if p <= self.patch)},
            )
        if self.top_frequencies >= window // 2 + 1:
            yield Problem(
                ("recipe", "top_frequencies"),
                f"A window of {window} dates has {window // 2 + 1} frequencies, and "
                f"{self.top_frequencies} are to be taken out.",
                "Nothing would be left for the encoder.",
                {"/recipe/top_frequencies": min(2, window // 2)},
            )
        if self.slice_dates and window % self.slice_dates:
            fitting = fitting_patches([window])
            yield Problem(
                ("recipe", "slice_dates"),
                f"Slices of {self.slice_dates} dates do not divide the window of {window}.",
                f"{window % self.slice_dates} dates would be left over. Choose one of "
                f"{', '.join(map(str, fitting))}.",
                {"/recipe/slice_dates": max(n for n in fitting if n <= self.slice_dates)},
            )
        if self.highway > window:
            yield Problem(
                ("recipe", "highway"),
                f"A highway of {self.highway} dates is longer than the window of {window}.",
                "It is a linear map of the last dates of a window.",
                {"/recipe/highway": window},
            )
        if self.graph is not None:
            yield from self._graph_problems(self.graph, window, entities, features)

    def _graph_problems(
        self, graph: Graph, window: int, entities: int, features: int
    ) -> Iterator[Problem]:
        if graph.neighbors >= entities:
            fewer = {"/recipe/graph/neighbors": entities - 1}
            yield Problem(
                ("recipe", "graph", "neighbors"),
                f"Of {entities} entities none has {graph.neighbors} others to look at.",
                "An entity looks at those most like it, and at itself.",
                fewer if entities > 1 else {"/recipe/graph": None},
            )
        if graph.feature >= features:
            yield Problem(
                ("recipe", "graph", "feature"),
                f"The panel has {features} features, and number {graph.feature} is to be "
                "correlated.",
                "They are counted from 0.",
                {"/recipe/graph/feature": 0},
            )
        if graph.rebuild_every == "batch" and graph.lookback > window:
            yield Problem(
                ("recipe", "graph", "lookback"),
                f"A graph made in the batch has the window's {window} dates to look back on, not "
                f"{graph.lookback}.",
                "Of earlier dates a batch knows nothing.",
                {"/recipe/graph/lookback": window} if window >= 3 else {"/recipe/graph": None},
            )

    def slowdowns(self, data: Data) -> Iterator[Problem]:
        """Graphs that are made again and again."""
        if self.graph is not None and self.graph.rebuild_every == "batch":
            yield Problem(
                ("recipe", "graph", "rebuild_every"),
                "A graph is made for each date of each batch, in training and in every evaluation.",
                f"That was measured to take {REBUILT_SHARE:.0%} of an evaluation of 256 entities, "
                f"and graphs that are made once and kept {KEPT_SHARE:.2%}.",
                {"/recipe/graph/rebuild_every": 20},
            )

    def shape(self, data: Data, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Returns features, horizons and levels; the number of entities changes no weights."""
        panel, found = arrays.get(data.inputs[0]), dict[str, Any]()
        if panel is not None and len(panel.shape) == 3:
            window, _, features = panel.shape
            by_place = self.encoder == "transformer" or self.top_frequencies or self.slice_dates
            found["inputs"] = {data.inputs[0]: [window, features] if by_place else [features]}
        forecast = [len(self.horizons), *([len(self.levels)] if self.levels else [])]
        return {**found, "targets": {data.targets[0]: forecast}}

    def learned_targets(self, data: Data) -> tuple[str, ...]:
        """The second one says what of the first is known."""
        return data.targets[:1]

    def table_bytes(self, data: Data, arrays: Mapping[str, Array], samples: int) -> int:
        """One byte for each pair of entities and each graph. Dates from the first sample to the
        last are those of the series, but for the first window, or as many as there are samples.
        """
        panel = arrays.get(data.inputs[0])
        if self.graph is None or self.graph.rebuild_every == "batch":
            return 0
        if panel is None or len(panel.shape) != 3:
            return 0
        window, entities, _ = panel.shape
        steps = panel.series_steps
        dates = samples if steps is None else max(samples, steps - window + 1)
        return -(-dates // self.graph.rebuild_every) * entities**2

    def num_parameters(self, data: Data, arrays: Mapping[str, Array]) -> int | None:
        """Counts the encoder, each layer of the graph (attention, a weight of correlations for each
        head, hidden layer twice as wide, two norms), the selection, what forecasts the strongest
        frequencies and the slices, the highway and the linear head.
        """
        panel = arrays[data.inputs[0]]
        if len(panel.shape) != 3:
            return None
        window, _, features = panel.shape
        features *= 1 + self.date_means
        hidden, outputs = self.hidden_size, len(self.horizons) * max(1, len(self.levels))
        layer = 4 * hidden * (hidden + 1) + hidden * (4 * hidden + 3) + 4 * hidden
        layer += self.heads if self.graph and self.graph.edges == "correlation" else 0
        taken_out = [window * features] if self.top_frequencies else []
        if self.slice_dates:
            taken_out.append(2 * (window // self.slice_dates) * features)
        beside = sum(hidden * (width + 1) + outputs * (hidden + 1) for width in taken_out)
        width = self.patch * features
        if self.variable_selection:
            beside += _gated_residuals(1, width, hidden, features)
            beside += _gated_residuals(features, self.patch, hidden, hidden)
            width = hidden
        encoder = self.encoder_parameters(window, width)
        linear = outputs * (self.highway * features + hidden + 1)
        return encoder + self.graph_layers * layer + beside + linear


def _gated_residuals(count: int, inputs: int, hidden: int, outputs: int) -> int:
    """Counts the parameters of gated residual networks side by side, which share a norm."""
    each = hidden * (inputs + 1) + 2 * outputs * (hidden + 1) + outputs * (inputs + 1)
    return count * each + 2 * outputs
