"""Compare several runs, one row each, or two runs, layer by layer and quantity by quantity."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatdiag.quantities import QUANTITIES, columns
from gatdiag.roles import ATTENTION, FEATURE, SCALE
from gatdiag.run import Run
from gatdiag.summary.series import layer_series, neuron_series, role_series
from gatdiag.summary.thinning import evenly_spaced
from gatdiag.summary.training import (
    compared_score,
    is_of_checkpoints,
    logged_series,
    loss_name,
    score_names,
    training_facts,
)

__all__ = [
    "MOST_NAMED", "UNNAMED", "compare", "confidence_half_width", "default_variant", "depth", "differences",
    "lines_of_runs", "mean_by", "normalization", "quantile", "results", "score_label", "width",
]  # fmt: skip

When: TypeAlias = Literal["last", "median"]
Floats: TypeAlias = NDArray[np.float64]

MOST_NAMED: Final = 12  # runs with a line of their own in one figure: more cannot be told apart
UNNAMED: Final = -1  # the line of all others

_OF_WEIGHTS: Final = tuple(each.name for each in columns("parameters") if each.is_compared)
_OF_OUTPUTS: Final = tuple(each.name for each in columns("layers") if each.is_compared)
_SHARES: Final = frozenset(each.name for each in QUANTITIES if each.is_share)


def compare(runs: Sequence[Run], variants: Mapping[str, str] | None = None) -> pd.DataFrame:
    """One row per run, in the given order.

    Args:
        runs: The runs.
        variants: Run name -> its group, for example its initialization. By default the name without its numbers, so
            that gat-xavier-L10-seed1 and gat-xavier-L20-seed2 are in the same group.

    Returns:
        run, variant, depth, width, normalization, steps (number of training steps), recorded (number of steps at which
        layers, or else parameters, were recorded), first_loss, best_loss, last_loss, best_step, epochs_to_best (step of
        the first best validation score, counted from 1), score (the kind of score that is compared: "accuracy", "AUC",
        ...; None if none was logged), and for each split that score at the best step as accuracy_* and at the last step
        as last_accuracy_*. NaN where nothing was logged.
    """
    return pd.DataFrame([_row(run, variants or {}) for run in runs])


def quantile(values: Sequence[float] | NDArray[np.float64], share: float) -> float:
    """A quantile of values; between two values it is their mean. NaN counts as larger than all numbers.

    Args:
        values: The values.
        share: The share of values below the quantile; 0.5 for the median.

    Example:
        >>> quantile([3.0, float("nan"), 1.0], 0.5)
        3.0
    """
    ordered = np.sort(np.asarray(values, np.float64))
    position = share * (len(ordered) - 1)
    return float((ordered[math.floor(position)] + ordered[math.ceil(position)]) / 2)


def _row(run: Run, variants: Mapping[str, str]) -> dict[str, object]:
    facts = training_facts(run)
    row: dict[str, object] = {
        "run": run.name,
        "variant": variants.get(run.name, default_variant(run.name)),
        "depth": depth(run),
        "width": width(run),
        "normalization": variants.get(run.name, normalization(run)),
        "steps": np.nan if facts.last_step is None or is_of_checkpoints(run) else facts.last_step + 1,
        "recorded": facts.recorded,
        "first_loss": facts.first_loss,
        "best_loss": facts.best_loss,
        "last_loss": facts.last_loss,
        "best_step": np.nan if facts.best_step is None else facts.best_step,
        "epochs_to_best": np.nan if facts.best_step is None else facts.best_step + 1,
    }
    names = score_names(run)
    row["score"] = compared_score(run) if names else None
    for of in ("train", "val", "test"):
        values = logged_series(run, names[of]).dropna() if of in names else pd.Series(dtype=np.float64)
        known = values[values.index <= facts.best_step] if facts.best_step is not None else values[:0]
        row[f"accuracy_{of}"] = float(known.iloc[-1]) if len(known) else np.nan
        row[f"last_accuracy_{of}"] = float(values.iloc[-1]) if len(values) else np.nan
    return row


def score_label(kinds: Iterable[str | None]) -> str:
    """A label for the scores of several runs: their kind, or "score" if they have different kinds.

    Example:
        >>> score_label(["AUC", None, "AUC"]), score_label(["AUC", "accuracy"]), score_label([])
        ('AUC', 'score', 'accuracy')
    """
    known = {kind for kind in kinds if isinstance(kind, str)}
    return "score" if len(known) > 1 else next(iter(known), "accuracy")


def results(runs: Sequence[Run]) -> dict[str, list[float | None]]:
    """The results of several trainings for display: label -> one number per run, None where it was not logged.

    Scores are those at the best step. Labels for which no run has a number are left out. A loss may be NaN.
    """
    frame = compare(runs)
    score = score_label(frame["score"])
    labels = {
        "accuracy_train": f"training {score}", "accuracy_val": f"validation {score}", "accuracy_test": f"test {score}",
        "best_step": "best step", "first_loss": "first loss", "best_loss": "best loss", "last_loss": "last loss",
        "depth": "depth", "width": "width", "steps": "steps", "recorded": "recorded steps",
    }  # fmt: skip
    found = {
        label: [_number_or_none(run, value, name) for run, value in zip(runs, frame[name], strict=True)]
        for name, label in labels.items()
    }
    return {label: values for label, values in found.items() if any(value is not None for value in values)}


def _number_or_none(run: Run, value: float | None, column: str) -> float | None:
    known = math.nan if value is None else float(value)
    if math.isfinite(known):
        return int(known) if known.is_integer() else known
    return known if math.isinf(known) or (column.endswith("loss") and loss_name(run) is not None) else None


def depth(run: Run) -> int:
    """Number of layers with feature weights."""
    return sum(bool(_features(layer)) for layer in run.meta["structure"]["layers"])


def width(run: Run) -> int | None:
    """The most common output width of the hidden layers' feature weights; None if there are no hidden layers."""
    first = [found[0]["shape"] for layer in run.meta["structure"]["layers"] if (found := _features(layer))]
    widths = Counter(int(shape[0]) for shape in first[:-1] if shape)
    return widths.most_common(1)[0][0] if widths else None


def normalization(run: Run) -> str:
    """The kinds of layers with normalization scales, for example "BatchNorm"; "none" if there are none."""
    kinds = {
        layer["kind"]
        for layer in run.meta["structure"]["layers"]
        if any(p["role"] == SCALE for p in layer["parameters"])
    }
    return ", ".join(sorted(kinds)) or "none"


def default_variant(name: str) -> str:
    """A run's name without words that are a number with at most two letters before it.

    Example:
        >>> default_variant("gat-xavier-L10-seed1"), default_variant("gat10"), default_variant("3")
        ('gat-xavier', 'gat', '3')
        >>> default_variant("g0"), default_variant("L10-seed1")
        ('g', 'L-seed')
    """
    words = name.replace("_", "-").split("-")
    bare = [word.rstrip("0123456789.") for word in words]
    kept = [new for new, old in zip(bare, words, strict=True) if new == old or len(new) > 2]
    return "-".join(word for word in kept if word and word != "seed") or "-".join(filter(None, bare)) or name


def lines_of_runs(runs: Sequence[Run], most: int = MOST_NAMED) -> list[int]:
    """The line of each run in all figures of a page: the index of its color and style; `UNNAMED` for most of many.

    Of more than `most` runs, those at evenly spaced ranks of the last loss have a line, from the best to the worst.
    """
    facts = [training_facts(run) for run in runs] if len(runs) > most else []
    last = [one.last_loss if one.loss is not None else math.nan for one in facts] or [0.0] * len(runs)
    ranked = np.argsort(last, kind="stable")  # NaN is last
    named = np.sort(ranked[evenly_spaced(len(runs), most)]).tolist()
    return [named.index(place) if place in named else UNNAMED for place in range(len(runs))]


def mean_by(table: pd.DataFrame, value: str, by: Sequence[str]) -> pd.DataFrame:
    """The mean of a column in each group, with the half-width of its 95% confidence interval (Student's t).

    Returns:
        The columns of `by`, then mean, half_width (NaN for fewer than three runs; with two it would exceed any axis),
        lowest, highest and runs, in order of first appearance.
    """
    known = table.dropna(subset=[value, *by])
    grouped = known.groupby(list(by), sort=False)[value]
    result = grouped.agg(mean="mean", spread="std", lowest="min", highest="max", runs="count").reset_index()
    half_width = confidence_half_width(result["spread"], result["runs"]).where(result["runs"] > 2)
    return result.assign(half_width=half_width)[[*by, "mean", "half_width", "lowest", "highest", "runs"]]


def confidence_half_width(spread: pd.Series, count: pd.Series) -> pd.Series:
    """Half the width of the 95% confidence interval of a mean by Student's t; NaN for one value.

    Args:
        spread: Standard deviation of the values.
        count: Number of values.

    Example:
        >>> confidence_half_width(pd.Series([1.0, 1.0]), pd.Series([1, 4])).round(3).to_list()
        [nan, 1.591]
    """
    from scipy.special import stdtrit  # slow to import

    half_width: pd.Series = stdtrit(count - 1, 0.975) * spread / np.sqrt(count)
    return half_width


def _features(layer: Mapping[str, list[dict[str, list[int]]]]) -> list[dict[str, list[int]]]:
    return [p for p in layer["parameters"] if str(p["role"]) == FEATURE]


def differences(first: Run, second: Run, when: When = "median") -> pd.DataFrame:
    """Each quantity of each layer in two runs, sorted by how much it differs.

    The difference of shares (numbers from 0 to 1) is |a - b|, that of other quantities |log10(a / b)|, in orders of
    magnitude. That of c is |a - b| / (||W_a||^2 + ||W_b||^2) times the number of neurons, relative to the squared norm
    of a neuron's weights, because c itself is rounding in a balanced layer.

    Args:
        first: The first run.
        second: The second run.
        when: Whether to compare medians over all steps, or the last measurements.

    Returns:
        layer ("" for logged scalars), role ("" for outputs and scalars), quantity, first, second, factor (second over
        first; NaN for shares, for c and where it is not positive), difference. Only quantities that both runs have; the
        difference is infinite if only one of them is NaN, infinite or zero.
    """
    one, other = _values(first, when), _values(second, when)
    keys = [key for key in one if key in other]
    a, b = (np.array([of[key] for key in keys], dtype=np.float64) for of in (one, other))
    table = pd.DataFrame(keys, columns=["layer", "role", "quantity"]).assign(first=a, second=b)
    is_number = ~table["quantity"].isin([*_SHARES, "c"])
    table["factor"] = (table["second"] / table["first"]).where(is_number & (table["first"] * table["second"] > 0))
    table["difference"] = _difference(table, _squared_norms(one, first), _squared_norms(other, second))
    return table.sort_values("difference", ascending=False, kind="stable", ignore_index=True)


def _values(run: Run, when: When) -> dict[tuple[str, str, str], float]:
    found: dict[tuple[str, str, str], float] = {}
    series: list[tuple[str, str, pd.DataFrame]] = [
        *((role, column, role_series(run, column, role)) for column in _OF_WEIGHTS for role in (FEATURE, ATTENTION)),
        *(("", column, layer_series(run, column)) for column in _OF_OUTPUTS),
        ("", "c", neuron_series(run, "c")),
    ]
    for role, column, table in series:
        grouped = table.groupby("layer", observed=True)["value"]
        for layer, value in (grouped.last() if when == "last" else grouped.median()).items():
            found[str(layer), role, column] = float(value)
    for name in run.logged_names:
        values = logged_series(run, name).dropna()
        if len(values):
            found["", "", name] = float(values.iloc[-1] if when == "last" else values.median())
    return found


def _squared_norms(values: dict[tuple[str, str, str], float], run: Run) -> dict[str, float]:
    """Mean squared norm of a neuron's feature weights in each layer with laws."""
    neurons = run.neurons.groupby("layer", observed=True)["law"].nunique()
    norms = {layer: value for (layer, role, name), value in values.items() if name == "norm" and role == FEATURE}
    return {str(layer): norms.get(str(layer), 0.0) ** 2 / count for layer, count in neurons.items()}


def _difference(table: pd.DataFrame, one: dict[str, float], other: dict[str, float]) -> Floats:
    a, b = table["first"].to_numpy(), table["second"].to_numpy()
    is_c, is_share = (table["quantity"] == "c").to_numpy(), table["quantity"].isin(_SHARES).to_numpy()
    squares = (table["layer"].map(one).fillna(0) + table["layer"].map(other).fillna(0)).to_numpy()
    with np.errstate(all="ignore"):
        orders = np.abs(np.log10(table["factor"].to_numpy()))
        found = np.where(is_share, np.abs(a - b), np.where(is_c, np.fmin(np.abs(a - b) / squares, 1.0), orders))
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.where(np.isnan(found), np.inf, found))
