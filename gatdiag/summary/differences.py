"""Where two runs differ, layer by layer and quantity by quantity, what differs most first."""

from typing import Final, Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatdiag.quantities import QUANTITIES, columns
from gatdiag.run import Run
from gatdiag.summary.facts import logged, score, training_facts
from gatdiag.summary.series import ATTENTION, FEATURES, layer_series, neuron_series, role_series

When: TypeAlias = Literal["last", "median"]
Floats: TypeAlias = NDArray[np.float64]

_OF_WEIGHTS: Final = tuple(each.name for each in columns("parameters") if each.is_compared)
_OF_OUTPUTS: Final = tuple(each.name for each in columns("layers") if each.is_compared)
_SHARES: Final = frozenset(each.name for each in QUANTITIES if each.is_share)


def differences(first: Run, second: Run, when: When = "median") -> pd.DataFrame:
    """Each quantity of each layer in two runs, what differs most first.

    Shares (numbers from 0 to 1) differ by |a - b|, all else by |a - b| / (|a| + |b|), so that 0 is no difference and 1
    the largest possible one; c is compared with the squared norm of a neuron's weights, |a - b| / (||W_a||^2 +
    ||W_b||^2) times the neurons, for its own size is rounding where a layer balances.

    Args:
        first: One run.
        second: The other.
        when: Compare medians over all steps, or what was measured last.

    Returns:
        layer ("" for logged scalars), role ("" for outputs and scalars), quantity, first, second, difference. What one
        of the runs lacks has no row; what is NaN or infinite in one of them alone differs by 1.
    """
    one, other = _values(first, when), _values(second, when)
    keys = [key for key in one if key in other]
    a, b = (np.array([of[key] for key in keys], dtype=np.float64) for of in (one, other))
    table = pd.DataFrame(keys, columns=["layer", "role", "quantity"]).assign(first=a, second=b)
    table["difference"] = _difference(table, _squares(one, first), _squares(other, second))
    return table.sort_values("difference", ascending=False, kind="stable", ignore_index=True)


def outcomes(first: Run, second: Run) -> pd.DataFrame:
    """What came of two trainings: recorded steps, the loss, scores such as accuracies, whatever else was logged.

    Returns:
        what, first, second; NaN where a run has not logged it.
    """
    one, other = _outcomes(first), _outcomes(second)
    rows = [(what, one.get(what, np.nan), other.get(what, np.nan)) for what in dict.fromkeys([*one, *other])]
    rows.sort(key=lambda row: not row[0].startswith(("recorded steps", *_losses(first), *_losses(second))))
    return pd.DataFrame(rows, columns=["what", "first", "second"])


def _losses(run: Run) -> tuple[str, ...]:
    loss = training_facts(run).loss
    return () if loss is None else (f"{loss}, ",)


def _outcomes(run: Run) -> dict[str, float]:
    facts = training_facts(run)
    found = {"recorded steps": float(facts.steps)}
    if facts.loss is not None:
        loss = facts.first_loss, facts.best_loss, facts.last_loss
        found |= {f"{facts.loss}, {when}": value for when, value in zip(("first", "lowest", "last"), loss, strict=True)}
    for name in sorted(set(run.logged) - {facts.loss}, key=lambda name: (score(name) is None, name)):
        values = logged(run, name)
        if len(values) and score(name) is not None:
            found[f"{name}, highest"] = float(values.max())
        if len(values):
            found[f"{name}, last"] = float(values.iloc[-1])
    return found


def only_in(first: Run, second: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the layers that only the first run has, and of those that only the second has."""
    one, other = first.layer_names, second.layer_names
    return tuple(name for name in one if name not in other), tuple(name for name in other if name not in one)


def _values(run: Run, when: When) -> dict[tuple[str, str, str], float]:
    found: dict[tuple[str, str, str], float] = {}
    series = [
        (role, column, role_series(run, column, role)) for column in _OF_WEIGHTS for role in (FEATURES, ATTENTION)
    ]
    series += [("", column, layer_series(run, column)) for column in _OF_OUTPUTS]
    series += [("", "c", neuron_series(run, "c"))]
    for role, column, table in series:
        grouped = table.groupby("layer", observed=True)["value"]
        for layer, value in (grouped.last() if when == "last" else grouped.median()).items():
            found[str(layer), role, column] = float(value)
    for name in run.logged:
        values = logged(run, name).dropna()
        if len(values):
            found["", "", name] = float(values.iloc[-1] if when == "last" else values.median())
    return found


def _squares(values: dict[tuple[str, str, str], float], run: Run) -> dict[str, float]:
    """Mean squared norm of a neuron's feature weights, for each layer with laws."""
    neurons = run.neurons.groupby("layer", observed=True)["law"].nunique()
    norms = {layer: value for (layer, role, name), value in values.items() if name == "norm" and role == FEATURES}
    return {str(layer): norms.get(str(layer), 0.0) ** 2 / count for layer, count in neurons.items()}


def _difference(table: pd.DataFrame, one: dict[str, float], other: dict[str, float]) -> Floats:
    a, b = table["first"].to_numpy(), table["second"].to_numpy()
    share = table["quantity"].isin(_SHARES).to_numpy()
    is_c = (table["quantity"] == "c").to_numpy()
    squares = table["layer"].map(one).fillna(0) + table["layer"].map(other).fillna(0)
    size = np.where(share, 1.0, np.where(is_c, squares.to_numpy(), np.abs(a) + np.abs(b)))
    with np.errstate(all="ignore"):
        difference: Floats = np.where(a == b, 0.0, np.abs(a - b) / size)
    undefined = ~np.isfinite(difference)
    alike = (np.isnan(a) & np.isnan(b)) | (a == b)
    return np.where(undefined, np.where(alike, 0.0, 1.0), np.minimum(difference, 1.0))
