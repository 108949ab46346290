"""One value per step and layer, from tables with one value per layer, parameter or neuron.

Series are tidy tables: step, layer, value. `layer` is a categorical in structure order, so its codes number the layers
from 0. pandas has NaN for both missing and undefined values; `Run.is_measured` distinguishes them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatdiag.errors import InputError
from gatdiag.quantities import COMPARED_WITH, TableName, get_quantity, quantity
from gatdiag.roles import ATTENTION, FEATURE
from gatdiag.run import Run
from gatdiag.summary.thinning import evenly_spaced

__all__ = [
    "check_layers", "compared_series", "describe_steps", "has_role", "has_zero_norm", "is_recorded", "last_values",
    "layer_series", "matrices", "neuron_series", "relative_imbalance", "role_series", "select_layers", "series_of",
    "shown_values", "typical_values", "why_undefined", "with_null_layer",
]  # fmt: skip

Floats = NDArray[np.float64]


def is_recorded(run: Run, table: TableName, column: str) -> bool:
    """Whether a column was measured at any step."""
    return bool(run.is_measured(table, column).any())


def layer_series(run: Run, column: str) -> pd.DataFrame:
    """A column of the table `layers`, without the steps at which it was not measured.

    Returns:
        step, layer, value. Empty if the column was not recorded; NaN where the value is undefined.
    """
    frame = run.layers.loc[run.is_measured("layers", column)]
    return _tidy(run, frame["step"].to_numpy(), _codes(frame, run), frame[column].to_numpy(np.float64))


def has_zero_norm(run: Run, column: str) -> NDArray[np.bool_]:
    """For each row of `layer_series`, whether the value is 0 / 0 because the norm it is relative to is zero.

    Args:
        run: The run.
        column: A column of `run.layers`; all False if it is not relative to a norm.
    """
    keep = run.is_measured("layers", column)
    norm = quantity("layers", column).relative_to
    if not norm:
        return np.zeros(int(keep.sum()), bool)
    frame = run.layers.loc[keep, [column, norm]]
    return (frame[column].isna() & (frame[norm] == 0)).to_numpy(bool)


def role_series(run: Run, column: str, role: str) -> pd.DataFrame:
    """A column of the table `parameters`, in which the parameters of a role are combined in each layer.

    `gatdiag.quantities.Quantity.reduction` says how.

    Args:
        run: The run.
        column: A column of `run.parameters`.
        role: For example "feature weight" or "attention vector".

    Returns:
        step, layer, value, without layers that have no parameter of the role, without ratios to zero, such as to
        attention vectors that are initialized to zero, and without means over several parameters if it was not recorded
        how many of their entries count. NaN is kept.
    """
    keep = run.is_measured("parameters", column) & (run.parameters["role"] == role).to_numpy()
    frame = run.parameters.loc[keep]
    frame = frame[_codes(frame, run) >= 0]  # layers may be missing in an edited meta.json
    layers = len(run.layer_names)
    cells, cell = np.unique(frame["step"].to_numpy() * layers + _codes(frame, run), return_inverse=True)
    how, counted = quantity("parameters", column).reduction, quantity("parameters", column).counted
    kept = np.ones(len(cells), bool)
    if " / " in how:
        kept = _largest(frame[how.split(" / ")[1]].to_numpy(np.float64), cell, len(cells)) != 0
    if counted:
        some = frame[counted].to_numpy(np.float64) != 0  # where no entry counts, the value is undefined
        frame, cell = frame[some], cell[some]
    value = _combine(run, frame, column, how, cell, len(cells))
    value[np.bincount(cell, minlength=len(cells)) == 0] = np.nan
    if how == "mean" and counted:
        kept = ~_lacks_weights(frame, column, counted, cell, len(cells))
    return _tidy(run, (cells // layers)[kept], (cells % layers)[kept], value[kept])


def neuron_series(run: Run, column: str, how: Literal["extreme", "largest"] = "extreme") -> pd.DataFrame:
    """A column of the table `neurons`, in which the neurons of each layer are combined.

    Args:
        run: The run.
        column: "delta", "c" or "predicted_c".
        how: "extreme" for the value of largest magnitude with its sign, "largest" for its magnitude.

    Returns:
        step, layer, value. NaN where a neuron of the layer is NaN.
    """
    if not is_recorded(run, "neurons", column):
        return _tidy(run, np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    frame, layers = run.neurons, len(run.layer_names)
    step, layer, values = frame["step"].to_numpy(), _codes(frame, run), frame[column].to_numpy(np.float64)
    starts = np.flatnonzero(np.append(True, (step[1:] != step[:-1]) | (layer[1:] != layer[:-1])))
    parts = np.stack([np.maximum.reduceat(values, starts), -np.minimum.reduceat(values, starts)])
    kept = layer[starts] >= 0  # without laws of layers that are not recorded
    cells, cell = np.unique((step * layers + layer)[starts][kept], return_inverse=True)  # a layer may have several runs
    highest, lowest = (_largest(part[kept], cell, len(cells)) for part in parts)
    extreme = np.where(lowest > np.abs(highest), -lowest, highest) if how == "extreme" else np.maximum(highest, lowest)
    return _tidy(run, cells // layers, cells % layers, extreme)


def relative_imbalance(run: Run) -> pd.DataFrame:
    """The most extreme c of each layer, over the size of the weights that it has at that step.

    That is ||W||_F^2 / rows of W, with all feature weights W of the layer together: the mean squared norm of a neuron's
    weights. It makes c comparable between layers, steps and runs: an imbalance of 1 is as large as the weights.

    Returns:
        step, layer, value, without layers and steps whose norm was not recorded or is zero.
    """
    series = neuron_series(run, "c")
    rows = {
        layer["name"]: sum(one["shape"][0] for one in layer["parameters"] if one["role"] == FEATURE and one["shape"])
        for layer in run.meta["structure"]["layers"]
    }
    norms = role_series(run, "norm", FEATURE).rename(columns={"value": "norm"})
    both = series.merge(norms, on=["step", "layer"], how="left")
    last = both.groupby("layer", observed=True)["norm"].ffill()  # of the last step at which it was recorded
    size = last**2 / both["layer"].astype(object).map(rows).astype(float)
    kept = (size != 0) & (last.notna() | both["value"].isna()) & bool(len(norms))
    return both.assign(value=both["value"] / size)[kept][["step", "layer", "value"]].reset_index(drop=True)


def last_values(series: pd.DataFrame) -> dict[str, float]:
    """Layer -> its last value that is not NaN."""
    last = series.dropna(subset=["value"]).groupby("layer", observed=True)["value"].last()
    return {str(layer): float(value) for layer, value in zip(last.index, last.to_numpy(), strict=True)}


def series_of(run: Run, column: str) -> pd.DataFrame:
    """A "table.column" as one value per step and layer.

    Of parameters it is that of the feature weights; of neurons, the extreme one.
    """
    if column in _DERIVED:
        return _DERIVED[column](run)
    table, _, name = column.partition(".")
    if table == "parameters":
        return role_series(run, name, FEATURE)
    return neuron_series(run, name) if table == "neurons" else layer_series(run, name)


def compared_series(run: Run, column: str, over: str = "") -> pd.DataFrame:
    """`series_of` a quantity, divided at each step by that of the first or last layer if it is compared with it.

    Args:
        run: The run.
        column: The quantity, as "table.column".
        over: The layer that it is compared with; by default, or if it is not there, the first or the last one.
    """
    series = series_of(run, column)
    divisor = _divisor(series, column, over)
    return series if divisor is None else series.assign(value=(series["value"] / divisor).where(divisor > 0))


def _divisor(series: pd.DataFrame, column: str, over: str = "") -> "pd.Series[float] | None":
    """For each row the value of the layer that the quantity is compared with; None if there is none."""
    if (other := COMPARED_WITH.get(column)) is None or not len(series):
        return None
    place = series["layer"].cat.codes
    chosen = series["layer"] == over
    if not chosen.any():  # of a treated network, whose layers may have other names
        chosen = place == (place.min() if other == "first" else place.max())
    reference = series[chosen].set_index("step")["value"]
    return series["step"].map(reference)


_ZEROS = {"output_norm": "output is zero", "output_gradient_norm": "gradient is zero"}  # norm -> words


def why_undefined(run: Run, column: str, over: str = "") -> NDArray[np.object_]:
    """For each row of `compared_series`, why it has no value although everything is finite: it is divided by zero.

    Args:
        run: The run.
        column: As "table.column".
        over: As for `compared_series`.

    Returns:
        "output is zero" or "gradient is zero"; "" for numbers, and for NaN and infinities that were recorded.
    """
    table, _, name = column.partition(".")
    series = series_of(run, column)
    if (divisor := _divisor(series, column, over)) is not None:
        word, zero = _ZEROS[name], ((divisor == 0) & np.isfinite(series["value"])).to_numpy(bool)
    elif table == "layers" and (norm := quantity("layers", name).relative_to):
        word, zero = _ZEROS.get(norm, ""), has_zero_norm(run, name)
    else:
        word, zero = "", np.zeros(len(series), bool)
    return np.where(zero, word, "").astype(object)


def typical_values(series: pd.DataFrame, steps: Sequence[int] = ()) -> dict[str, float]:
    """Layer -> the median of its values over the recorded steps, without NaN; of a part of the steps, the largest.

    Args:
        series: Values by layer and step.
        steps: Only the recorded steps from the first to the last of these, if there are any.
    """
    chosen = _rows_of(series, steps)
    is_part = not chosen.all()  # what a few steps did to the training, the others do not show
    values = series[chosen].dropna(subset=["value"]).groupby("layer", observed=True)["value"]
    found = values.max() if is_part else values.median()
    return {str(layer): float(value) for layer, value in zip(found.index, found.to_numpy(), strict=True)}


def shown_values(series: pd.DataFrame, column: str, steps: Sequence[int] = ()) -> tuple[dict[str, float], str]:
    """Layer -> the value that shows a finding, and the steps that it is of, in words.

    Args:
        series: Values by layer and step.
        column: The quantity, as "table.column"; of one whose value at the end counts, that is each layer's last one.
        steps: The first and the last step of the finding, if there are any.
    """
    if not get_quantity(column).is_of_end:
        return typical_values(series, steps), describe_steps(series, steps)
    last = series.dropna(subset=["value"]).groupby("layer", observed=True)["step"].last().unique()
    return last_values(series), f"at step {last[0]:,}" if len(last) == 1 else "at the last step of each layer"


def describe_steps(series: pd.DataFrame, steps: Sequence[int] = ()) -> str:
    """The steps that `typical_values` are of, in words.

    Example:
        >>> series = pd.DataFrame({"step": range(2000)})
        >>> describe_steps(series), describe_steps(series, (0,)), describe_steps(series, (0, 19))
        ('median over training', 'at step 0', 'largest of steps 0 to 19')
    """
    if len({*steps}) == 1:
        return f"at step {steps[0]:,}"
    is_part = not _rows_of(series, steps).all()
    return f"largest of steps {steps[0]:,} to {steps[-1]:,}" if is_part else "median over training"


def _rows_of(series: pd.DataFrame, steps: Sequence[int]) -> pd.Series:
    """Which rows are of the steps from the first to the last of these; all if none is."""
    among = series["step"].between(steps[0], steps[-1]) if steps else pd.Series(True, series.index)
    return among if among.any() else ~among


def select_layers(table: pd.DataFrame, limit: int = 10) -> pd.DataFrame:
    """The rows of at most `limit` layers, evenly spaced from the first to the last one that has rows."""
    codes = table["layer"].cat.codes
    present = np.sort(codes.unique())
    return table[codes.isin(present[evenly_spaced(len(present), limit)]).to_numpy()].reset_index(drop=True)


def check_layers(run: Run, names: Sequence[str] | None) -> list[str]:
    """The names as a list, [] for None.

    Raises:
        InputError: A name is not one of the run's layers.
    """
    for name in names or ():
        if name not in run.layer_names:
            raise InputError(f"layers= expects names from run.layer_names, got {name!r}")
    return list(names or ())


def has_role(run: Run, role: str) -> bool:
    """Whether the model has a parameter with a role."""
    return any(parameter["role"] == role for parameter in _parameters(run))


def with_null_layer(run: Run, curve: pd.DataFrame) -> pd.DataFrame:
    """Add a null `layer` to rows about the whole network, so that they can be concatenated with rows of layers."""
    return curve.assign(layer=_names(run, np.full(len(curve), -1)))


def matrices(layer: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Feature weights of a layer that are matrices: name -> number of rows (outputs) and columns (inputs)."""
    found = [p for p in layer["parameters"] if p["role"] == FEATURE and len(p["shape"]) == 2]
    return {p["name"]: (p["shape"][0], p["shape"][1]) for p in found}


def _gains(run: Run) -> pd.DataFrame:
    """Norm of each layer's feature matrices over that of Glorot's initialization, geometric mean."""
    frame, shapes = _rows_of_matrices(run, "norm")
    size = np.sqrt(2 * shapes[:, 0] * shapes[:, 1] / shapes.sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.log(frame["norm"].to_numpy(np.float64) / size)
    return _by_layer(run, frame, np.where(np.isfinite(gain), gain, np.nan), "mean", np.exp)


def _spectral_shares(run: Run) -> pd.DataFrame:
    """Spectral over Frobenius norm of each layer's feature matrices of several rows and columns, the largest."""
    frame, shapes = _rows_of_matrices(run, "spectral_norm")
    frame = frame[shapes.min(axis=1) > 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = frame["spectral_norm"].to_numpy(np.float64) / frame["norm"].to_numpy(np.float64)
    return _by_layer(run, frame, share, "max", lambda value: value)


def _attention_paces(run: Run) -> pd.DataFrame:
    """Update ratio of each layer's attention vectors over that of its feature weights."""
    attention, features = (role_series(run, "update_ratio", role) for role in (ATTENTION, FEATURE))
    both = attention.merge(features, on=["step", "layer"], suffixes=("", "_of_features"))
    both = both[both["value_of_features"] > 0]
    return both.assign(value=both["value"] / both["value_of_features"])[["step", "layer", "value"]]


def _zero_inputs(run: Run) -> pd.DataFrame:
    """Share of each layer's inputs that were zero at every node when they were last looked at, if that was twice."""
    noted = (run.meta.get("signals") or {}).get("zero_inputs") or {}
    last = int(run.steps["step"].max()) if len(run.steps) else 0
    seen = {name: one for name, one in noted.items() if one.get("seen", math.inf) > (one["since"] or 0)}
    known = [name for name in run.layer_names if name in seen]
    places = np.array([run.layer_names.index(name) for name in known], np.int64)
    return _tidy(run, np.full(len(known), last), places, np.array([float(seen[name]["last"] or 0.0) for name in known]))


_DERIVED: Final[Mapping[str, Callable[[Run], pd.DataFrame]]] = {
    "parameters.gain": _gains,
    "parameters.spectral_share": _spectral_shares,
    "parameters.attention_pace": _attention_paces,
    "layers.zero_inputs": _zero_inputs,
}


def _rows_of_matrices(run: Run, column: str) -> tuple[pd.DataFrame, NDArray[np.float64]]:
    """The rows of feature matrices, but for tables of embeddings, where a column was measured, and their shapes."""
    shapes = {
        name: shape
        for layer in run.meta["structure"]["layers"]
        for name, shape in matrices(layer).items()
        if min(shape) > 0 and layer.get("kind") not in ("Embedding", "EmbeddingBag")
    }
    names = run.parameters["parameter"].astype(str)
    frame = run.parameters[run.is_measured("parameters", column) & names.isin([*shapes]).to_numpy()]
    return frame, np.array([shapes[name] for name in frame["parameter"].astype(str)], np.float64).reshape(-1, 2)


def _by_layer(
    run: Run, frame: pd.DataFrame, values: Floats, how: Literal["mean", "max"], scale: Callable[[Floats], Floats]
) -> pd.DataFrame:
    """The values of several parameters as one per step and layer."""
    layers = {
        parameter["name"]: layer["name"]
        for layer in run.meta["structure"]["layers"]
        for parameter in layer["parameters"]
    }
    names = frame["parameter"].astype(object).map(layers)
    place = pd.Categorical(names, categories=list(run.layer_names)).codes
    rows = pd.DataFrame({"step": frame["step"].to_numpy(), "place": place, "value": values})
    found = rows[rows["place"] >= 0].groupby(["step", "place"])["value"].agg(how).reset_index()
    return _tidy(run, found["step"].to_numpy(), found["place"].to_numpy(), scale(found["value"].to_numpy(np.float64)))


def _combine(run: Run, frame: pd.DataFrame, column: str, how: str, cell: NDArray[np.int64], count: int) -> Floats:
    values = frame[column].to_numpy(np.float64, na_value=np.nan)
    if how == "norm":
        return _norms(values, cell, count)
    norms = how.split(" / ")
    if len(norms) == 2 and count < len(values) and all(is_recorded(run, "parameters", each) for each in norms):
        above, below = (_norms(frame[name].to_numpy(np.float64), cell, count) for name in norms)
        with np.errstate(divide="ignore", invalid="ignore"):
            return above / below
    if how == "mean":
        weight = _counted_entries(run, frame, quantity("parameters", column).counted)
        weight[_is_alone(cell)] = 1.0
        with np.errstate(invalid="ignore"):
            return np.bincount(cell, weight * values, count) / np.bincount(cell, weight, count)
    return -_largest(-values, cell, count) if how == "smallest" else _largest(values, cell, count)


def _counted_entries(run: Run, frame: pd.DataFrame, counted: str) -> Floats:
    """The number of entries of each parameter that count; NaN if it was not recorded."""
    sizes = {parameter["name"]: float(np.prod(parameter["shape"])) for parameter in _parameters(run)}
    entries = frame["parameter"].astype(object).map(sizes).fillna(1.0).to_numpy(np.float64, copy=True)
    return entries * frame[counted].to_numpy(np.float64) if counted else entries


def _is_alone(cell: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a row is the only one of its cell."""
    alone: NDArray[np.bool_] = np.bincount(cell)[cell] == 1
    return alone


def _lacks_weights(
    frame: pd.DataFrame, column: str, counted: str, cell: NDArray[np.int64], count: int
) -> NDArray[np.bool_]:
    """Cells of several values, but not of how many entries these are, as in a run of an older version."""
    is_unknown = frame[counted].isna().to_numpy() & frame[column].notna().to_numpy() & ~_is_alone(cell)
    return np.bincount(cell, is_unknown, count) > 0


def _norms(values: Floats, cell: NDArray[np.int64], count: int) -> Floats:
    """The root of the sum of squares in each cell, scaled by the largest value so that it does not underflow."""
    largest = _largest(values, cell, count)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        parts = (values / largest[cell]) ** 2
    parts[largest[cell] == 0] = 0.0
    total = largest * np.sqrt(np.bincount(cell, parts, count))
    return np.where(np.isinf(largest), largest, total)


def _largest(values: Floats, cell: NDArray[np.int64], count: int) -> Floats:
    largest = np.full(count, -np.inf)
    with np.errstate(invalid="ignore"):  # the maximum with NaN is NaN
        np.maximum.at(largest, cell, values)
    return largest


def _parameters(run: Run) -> list[dict[str, Any]]:
    return [parameter for layer in run.meta["structure"]["layers"] for parameter in layer["parameters"]]


def _codes(frame: pd.DataFrame, run: Run) -> NDArray[np.integer]:
    return frame["layer"].cat.set_categories(list(run.layer_names)).cat.codes.to_numpy()


def _names(run: Run, codes: NDArray[np.integer]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, categories=pd.Index(run.layer_names, dtype=object), ordered=True)


def _tidy(run: Run, step: NDArray[np.int64], layer: NDArray[np.integer], value: Floats) -> pd.DataFrame:
    return pd.DataFrame({"step": step, "layer": _names(run, layer), "value": value})
