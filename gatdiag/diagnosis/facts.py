"""A run as the checks need it: how the training went, sizes by layer and by step. Computed when first asked for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import geometric_mean
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatdiag.diagnosis.causes import CAUSES, Cause
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy, Severity
from gatdiag.diagnosis.thresholds import limit
from gatdiag.quantities import TableName
from gatdiag.roles import FEATURE
from gatdiag.run import Run
from gatdiag.summary import accuracies, is_of_checkpoints, logged, loss_name, score_kind, scores

Floats: TypeAlias = NDArray[np.float64]
State: TypeAlias = Literal["trained", "partly", "failing", "unknown", "untrained"]

_SEVERITY: Final[Mapping[State, Severity]] = {
    "failing": "error", "partly": "warning", "unknown": "warning", "trained": "note", "untrained": "error",
}  # fmt: skip
_GRAPH_LEVEL: Final = ("Linear", "Sequential")  # kinds that may follow a pooling


@dataclass(frozen=True)
class Facts:
    """What a check may look at.

    Attributes:
        run: The run.
        weights: What stored weights show beyond it, as `gatdiag.checkpoint.weight_table` gives it; None for a training.
        is_rehearsal: It holds the first steps of a copy, before training; see `gatdiag.preflight`.
    """

    run: Run
    weights: pd.DataFrame | None = None
    is_rehearsal: bool = False

    # --- what was recorded --------------------------------------------------------------------------------------------

    @cached_property
    def is_of_checkpoints(self) -> bool:
        """It was made of saved checkpoints: no steps between them were seen."""
        return is_of_checkpoints(self.run)

    @cached_property
    def signals(self) -> Mapping[str, Any]:
        """What the recorder saw once: inputs, outputs, the graph; empty in runs that lack it."""
        return self.run.meta.get("signals") or {}

    @cached_property
    def inputs(self) -> list[dict[str, Any]]:
        """What the recorder saw of the model's floating-point inputs; a size that overflowed is infinite."""
        unknown = {**dict.fromkeys(("largest_column", "smallest_column", "row_norm"), math.inf), "relative_mu": 1.0}
        found = self.signals.get("inputs", [])
        return [unknown | {name: value for name, value in one.items() if value is not None} for one in found]

    @cached_property
    def output(self) -> dict[str, Any]:
        """What the recorder saw of the model's output and of dL/dout, as far as it is known."""
        return {name: value for name, value in self.signals.get("output", {}).items() if value is not None}

    @cached_property
    def layers(self) -> list[dict[str, Any]]:
        """The layers that took part in the forward pass, in order."""
        return [layer for layer in self.run.meta["structure"]["layers"] if layer.get("executed") is not False]

    @cached_property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """Parameter -> what the structure says of it."""
        return {p["name"]: p for layer in self.run.meta["structure"]["layers"] for p in layer["parameters"]}

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers, with the optimizer's class under "class"."""
        found = self.run.meta.get("optimizers") or []
        return [{**group, "class": one["class"]} for one in found for group in one.get("groups") or []]

    @cached_property
    def held(self) -> set[str]:
        """The parameters that an optimizer holds."""
        return {name for group in self.groups for name in group.get("parameters") or []}

    def setting(self, name: str) -> float:
        """The largest value of an optimizer's setting, such as "momentum"; 0 where it has none."""
        return max((float(group.get(name) or 0.0) for group in self.groups), default=0.0)

    @cached_property
    def takes_turns(self) -> bool:
        """Several optimizers make steps, as in adversarial training: each sees gradients and labels of its own."""
        return len(self.run.meta.get("optimizers") or []) > 1

    @cached_property
    def is_adam(self) -> bool:
        """Its steps do not grow with the gradient."""
        return any("betas" in group for group in self.groups)

    @cached_property
    def passes_messages(self) -> bool:
        """One of its layers is a graph convolution."""
        return any(_is_conv(layer) for layer in self.layers)

    @cached_property
    def has_laws(self) -> bool:
        """Laws were recorded."""
        return bool(self._laws)

    @cached_property
    def has_streams(self) -> bool:
        """Some of the laws are of residual streams."""
        return any(law.get("kind") == "stream" for law in self._laws)

    @cached_property
    def _laws(self) -> list[dict[str, Any]]:
        return (self.run.meta.get("laws") or {}).get("found") or []

    # --- the loss -----------------------------------------------------------------------------------------------------

    @cached_property
    def count(self) -> int:
        """How many steps were made."""
        return int(self.run.steps["step"].iloc[-1]) + 1 if len(self.run.steps) else 0

    @cached_property
    def loss(self) -> "pd.Series[float]":
        """The logged training loss by step."""
        name = loss_name(self.run)
        return logged(self.run, name) if name else pd.Series(dtype=np.float64)

    @cached_property
    def finite_loss(self) -> Floats:
        """Its finite values."""
        values = np.asarray(self.loss, np.float64)
        return values[np.isfinite(values)]

    @cached_property
    def is_broken(self) -> bool:
        """The loss ended as NaN or infinite; or something did before it, of which no loss was logged yet."""
        noted = self.run.meta.get("first_non_finite")
        last = int(self.loss.index[-1]) if len(self.loss) else self.count - 1
        is_lost = bool(len(self.loss)) and not math.isfinite(self.loss.iloc[-1])
        return is_lost or (noted is not None and int(noted["step"]) >= last)

    @cached_property
    def first_loss(self) -> float:
        """The first value of the loss; NaN where it is none."""
        return float(self.loss.iloc[0]) if len(self.loss) else math.nan

    @cached_property
    def classes(self) -> int:
        """How many classes there seem to be; 0 where nothing says that it is a classification."""
        labels = self.output.get("labels")
        if labels:
            return len(labels)
        if not any(kind == "accuracy" for kind in scores(self.run)):
            return 0
        shapes = [p["shape"] for layer in self.layers[-1:] for p in layer["parameters"] if p["role"] == FEATURE]
        return int(shapes[-1][0]) if shapes and len(shapes[-1]) == 2 else 0

    @cached_property
    def chance(self) -> float:
        """Loss of the best constant prediction: entropy of the labels seen, else the logarithm of the classes."""
        labels = np.asarray(self.output.get("labels") or [], float)
        if labels.sum() > 0:
            share = labels[labels > 0] / labels.sum()
            return float(-(share * np.log(share)).sum())
        if (variance := self._target_variance()) > 0:
            return variance
        return math.log(self.classes) if self.classes > 1 else math.nan

    def _target_variance(self) -> float:
        """Variance of the targets, if the loss is their mean squared distance from the output; else NaN."""
        output = self.output
        implied, step = output.get("implied_mse"), int(output.get("implied_step", -1))
        if implied is None or step not in self.loss.index or not math.isclose(self.loss[step], implied, rel_tol=1e-2):
            return math.nan
        return float(output.get("implied_variance", math.nan))

    @cached_property
    def base(self) -> float:
        """The loss that training begins at, or at least that of the best constant prediction."""
        known = [value for value in (self.first_loss, self.chance) if math.isfinite(value) and value > 0]
        return min(known) if known else math.nan

    @cached_property
    def progress(self) -> float:
        """Share of `base` that is gone at the end: in the median of the last tenth of the steps, or last checkpoint."""
        values = self.finite_loss
        if not len(values) or not self.base > 0:
            return math.nan
        last = 1 if self.is_of_checkpoints else max(3, len(values) // 10)
        return 1 - float(np.median(values[-last:])) / self.base

    @cached_property
    def worst(self) -> float:
        """The largest finite loss over `base`."""
        return float(self.finite_loss.max()) / self.base if len(self.finite_loss) and self.base > 0 else math.nan

    @cached_property
    def jump(self) -> float:
        """The largest finite loss over the first, which may have been far above `base` before any step was made."""
        return self.worst * self.base / max(self.base, self.first_loss) if self.base > 0 else math.nan

    @cached_property
    def state(self) -> State:
        """How the training went."""
        if self.is_rehearsal:
            return "untrained"
        if self.is_of_checkpoints:  # which tell how far it came, and not whether it has come to an end
            return "trained" if self.progress >= limit("trained") and not self.is_broken else "unknown"
        if not len(self.loss):
            return "unknown"
        if self.is_broken:
            return "failing"
        if self.count < limit("steps") or not math.isfinite(self.progress):
            return "unknown"
        if self.progress >= limit("trained"):
            return "trained"
        return "failing" if self.progress < limit("failing") and not self.predicts else "partly"

    @cached_property
    def predicts(self) -> bool:
        """The accuracies logged last are halfway from chance to 1 at least, on each split: the loss lags behind.

        Chance is the share of the most frequent label, where labels were seen: that is what a constant prediction gets.
        """
        names = accuracies(self.run).values() if self.classes > 1 and score_kind(self.run) == "accuracy" else ()
        last = [series[-1] for name in names if len(series := logged(self.run, name).to_numpy(float))]
        labels = self.output.get("labels") or [1] * self.classes
        return bool(last) and min(last) >= 0.5 * (1 + max(labels) / max(1, sum(labels)))

    @cached_property
    def learns(self) -> bool:
        """It trains; or in its rehearsal the loss has fallen below that of a constant prediction already."""
        best = self.finite_loss.min() if len(self.finite_loss) else math.nan
        has_begun = self.is_rehearsal and not self.is_broken and 1 - best / self.base > limit("fall")
        return self.state == "trained" or bool(has_begun)

    @cached_property
    def severity(self) -> Severity:
        """Of a cause that would hinder a training that went like this one; what only the optimizer decides is open."""
        return "warning" if self.is_rehearsal and not self.groups else _SEVERITY[self.state]

    def found(
        self,
        code: str,
        text: str,
        *evidence: Evidence,
        threshold: str = "",
        title: str = "",
        severity: Severity | None = None,
        remedy: Remedy | None = None,
        falsified_by: str = "",
        **more: Any,
    ) -> Finding:
        """A finding, with all that the row of its code in `CAUSES` says.

        Args:
            code: Of the row.
            text: What is wrong, and what it does.
            evidence: The numbers, the one that is compared with the threshold first; those that are NaN are left out.
            threshold: From where on it is flagged, and why there.
            title: Where it is not that of the row.
            severity: The same.
            remedy: The same.
            falsified_by: The same.
            more: Other attributes of `Finding`: what it is about, and what differs from the row.
        """
        row = CAUSES[code]
        cure = remedy or row.remedy or Remedy("")
        given: dict[str, Any] = {
            "title": title or row.title, "figure": row.figure, "falsified_by": falsified_by or row.falsified_by,
            "severity": severity or self._severity_of(row),
            "evidence": tuple(one for one in evidence if not math.isnan(one.value)),
            "remedy": cure.code, "actions": cure.actions,
        }  # fmt: skip
        return Finding(code, text=text, threshold=threshold, **(given | more))

    def _severity_of(self, row: Cause) -> Severity:
        if row.severity == "certain":
            return "warning" if self.state == "trained" else "error"
        return self.severity if row.severity == "by loss" else row.severity

    # --- what changed -------------------------------------------------------------------------------------------------

    def first_and_last(self, table: TableName, column: str) -> tuple[pd.DataFrame, pd.DataFrame] | str:
        """The rows of the first and of the last step at which a column was measured; or why there are no two.

        A check that compares them is skipped with that reason: columns that take long are measured at few steps.
        """
        frame: pd.DataFrame = getattr(self.run, table)
        steps = frame["step"][self.run.is_measured(table, column)]
        if not len(steps):
            return f"{column} was not recorded"
        first, last = steps.min(), steps.max()
        if first == last:
            return f"{column} was recorded once only"
        return frame[frame["step"] == first], frame[frame["step"] == last]

    # --- parameters by step -------------------------------------------------------------------------------------------

    @cached_property
    def table_steps(self) -> NDArray[np.int64]:
        """The recorded steps of the table `parameters`."""
        return self.run.parameters["step"].drop_duplicates().to_numpy(np.int64)

    @cached_property
    def table_names(self) -> list[str]:
        """The parameters in the table, in order."""
        return [str(name) for name in self.run.parameters["parameter"].drop_duplicates()]

    def by_parameter(self, column: str) -> Floats:
        """A column as (steps, parameters); NaN where it was not measured."""
        frame = self.run.parameters
        grid = np.full((len(self.table_steps), len(self.table_names)), np.nan)
        if column in frame:
            rows = np.searchsorted(self.table_steps, frame["step"].to_numpy())
            grid[rows, pd.factorize(frame["parameter"])[0]] = frame[column].to_numpy(float)
        return grid

    def first_values(self, column: str) -> dict[str, float]:
        """Parameter -> value at the first step at which the column was recorded."""
        return at_one_step(self.run.parameters, "parameter", column)

    @cached_property
    def norms(self) -> Floats:
        """Norm of each parameter at each recorded step."""
        return self.by_parameter("norm")

    @cached_property
    def gradients(self) -> Floats:
        """Norm of each gradient at each recorded step."""
        return self.by_parameter("gradient_norm")

    @cached_property
    def ratios(self) -> Floats:
        """Update ratio of each parameter at each recorded step; NaN where no optimizer made it."""
        ratios = self.by_parameter("update_ratio")
        return np.full_like(ratios, np.nan) if self.is_rehearsal and not self.groups else ratios

    @cached_property
    def saw_gradients(self) -> bool:
        """Gradients were looked at, whether there were any or not."""
        seen = np.isfinite(self.gradients).any() or np.isfinite(self.ratios).any() or self.is_rehearsal
        return bool(seen) and not self.is_of_checkpoints

    @cached_property
    def size(self) -> Floats:
        """Norm of all parameters at each recorded step."""
        with np.errstate(all="ignore"):
            return np.asarray(np.sqrt(np.nansum(self.norms**2, axis=1)), float)

    @cached_property
    def step_ratio(self) -> Floats:
        """Share of all parameters that each recorded step moves; NaN where that was not measured."""
        with np.errstate(all="ignore"):
            moved: Floats = np.sqrt(np.nansum((self.ratios * self.norms) ** 2, axis=1)) / self.size
        moved[np.isnan(self.ratios).all(axis=1)] = np.nan
        return moved

    @cached_property
    def path(self) -> float:
        """Sum of relative steps over the whole run."""
        known = self.step_ratio[np.isfinite(self.step_ratio)]
        return float(known.mean()) * self.count if len(known) else math.nan

    def steps_column(self, column: str) -> Floats:
        """A column of `steps` at the recorded steps; empty if there is none."""
        frame = self.run.steps
        if column not in frame:
            return np.empty(0)
        values: Floats = frame[column].to_numpy(np.float64)
        return values[~np.isnan(values)]

    @cached_property
    def overshoot(self) -> Floats:
        """How far past the minimum along it each step went, with 0 for a straight slope and 1 for the minimum."""
        return self.steps_column("overshoot")

    # --- layers -------------------------------------------------------------------------------------------------------

    def profile(self, column: str, *, last: bool = False) -> dict[str, float]:
        """Layer -> value at the first (or the last) recorded step of the column, node-level layers in order.

        Layers behind a pooling have other rows, so that norms cannot be compared: where the network has graph
        convolutions, plain layers behind the last of them are left out.
        """
        found = at_one_step(self.run.layers, "layer", column, last=last)
        return {name: found[name] for name in self.node_layers if name in found}

    @cached_property
    def node_layers(self) -> list[str]:
        """Names of the layers whose rows are nodes, as far as that can be told."""
        layers = [layer for layer in self.layers if layer["name"] not in self.scorers]
        convolutions = [place for place, layer in enumerate(layers) if _is_conv(layer)]
        end = convolutions[-1] + 1 if convolutions else len(layers)
        behind = [layer for layer in layers[end:] if layer.get("kind") not in _GRAPH_LEVEL]
        return [layer["name"] for layer in [*layers[:end], *behind]]

    @cached_property
    def scorers(self) -> set[str]:
        """Layers of one neuron whose output no layer reads as its input: gates, and the scores of a pooling."""
        found: set[str] = set()
        is_read = True  # the last layer is the prediction
        for layer in reversed(self.layers):
            shapes = list(matrices(layer).values())
            if shapes and not is_read and all(rows == 1 for rows, _ in shapes):
                found.add(layer["name"])
            if any(shape != (1, 1) for shape in shapes):
                is_read = any(columns == 1 for _, columns in shapes)
        return found

    @cached_property
    def gains(self) -> dict[str, float]:
        """Layer -> geometric mean of ||W|| over that of Glorot's initialization, at the first step.

        Of feature weights that are matrices; a bottleneck's Glorot norm is sqrt(2 m n / (m + n)).
        """
        first = dict(zip(self.table_names, self.norms[0], strict=True)) if len(self.norms) else {}
        found: dict[str, list[float]] = {}
        for layer in self.layers:
            if layer.get("kind") in ("Embedding", "EmbeddingBag"):
                continue
            for name, (rows, columns) in matrices(layer).items():
                size = math.sqrt(2 * rows * columns / (rows + columns)) if rows * columns else math.nan
                if 0 < (gain := first.get(name, math.nan) / size) < math.inf:
                    found.setdefault(layer["name"], []).append(gain)
        return {name: geometric_mean(values) for name, values in found.items()}


def _is_conv(layer: Mapping[str, Any]) -> bool:
    return "Conv" in str(layer.get("kind")) and not str(layer.get("kind")).startswith(("Conv1d", "Conv2d", "Conv3d"))


def at_one_step(frame: pd.DataFrame, key: str, column: str, *, last: bool = False) -> dict[str, float]:
    """Layer or parameter -> value at the first or the last step at which the column was measured."""
    known = frame[frame[column].notna()] if column in frame else frame[:0]
    if not len(known):
        return {}
    rows = known[known["step"] == known["step"].iloc[-1 if last else 0]]
    return dict(zip(rows[key].astype(str), rows[column].astype(float), strict=True))


def matrices(layer: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """The feature weights of a layer that are matrices: name -> rows (outputs) and columns (inputs)."""
    found = [p for p in layer["parameters"] if p["role"] == FEATURE and len(p["shape"]) == 2]
    return {p["name"]: (p["shape"][0], p["shape"][1]) for p in found}


def median(values: Sequence[float] | Floats) -> float:
    """Of the finite values; NaN if there is none."""
    known = np.asarray(values, float)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if len(known) else math.nan


def largest(values: Sequence[float] | Floats) -> float:
    """The largest value, infinity included, NaN left out; 0 if there is none."""
    known = np.asarray(values, float)
    known = known[~np.isnan(known)]
    return float(known.max()) if len(known) else 0.0
