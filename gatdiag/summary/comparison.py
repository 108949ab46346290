"""Several runs, one row each: depth, width, accuracy, and how long it took to get there."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from gatdiag.run import Run
from gatdiag.summary.facts import accuracies, logged, score_kind, training_facts
from gatdiag.summary.series import FEATURES


def compare(runs: Sequence[Run], variants: Mapping[str, str] | None = None) -> pd.DataFrame:
    """One row a run, in the order given.

    Args:
        runs: The runs.
        variants: The group of each run by its name, for example its initialization; by default the run's name without
            its numbers, so that gat-xavier-L10-seed1 and gat-xavier-L20-seed2 belong together.

    Returns:
        run, variant, depth, width, normalization, steps, first_loss, best_loss, last_loss, best_step,
        epochs_to_best (the step of the first best validation score, counted from 1), score (what it is by which the
        run is judged: "accuracy", "AUC", ...; None if nothing was logged), and for each split that score as accuracy_*
        at that step and as last_accuracy_*. NaN where nothing was logged.
    """
    return pd.DataFrame([_row(run, variants or {}) for run in runs])


def _row(run: Run, variants: Mapping[str, str]) -> dict[str, object]:
    facts = training_facts(run)
    row: dict[str, object] = {
        "run": run.name,
        "variant": variants.get(run.name, default_variant(run.name)),
        "depth": depth(run),
        "width": width(run),
        "normalization": variants.get(run.name, normalization(run)),
        "steps": facts.steps,
        "first_loss": facts.first_loss,
        "best_loss": facts.best_loss,
        "last_loss": facts.last_loss,
        "best_step": np.nan if facts.best_step is None else facts.best_step,
        "epochs_to_best": np.nan if facts.best_step is None else facts.best_step + 1,
    }
    names = accuracies(run)
    row["score"] = score_kind(run) if names else None
    for of in ("train", "val", "test"):
        values = logged(run, names[of]).dropna() if of in names else pd.Series(dtype=np.float64)
        known = values[values.index <= facts.best_step] if facts.best_step is not None else values[:0]
        row[f"accuracy_{of}"] = float(known.iloc[-1]) if len(known) else np.nan
        row[f"last_accuracy_{of}"] = float(values.iloc[-1]) if len(values) else np.nan
    return row


def score_label(kinds: Iterable[str | None]) -> str:
    """What the scores of several runs are called together: their kind, or "score" where it is not the same.

    Example:
        >>> score_label(["AUC", None, "AUC"]), score_label(["AUC", "accuracy"]), score_label([])
        ('AUC', 'score', 'accuracy')
    """
    known = {kind for kind in kinds if isinstance(kind, str)}
    return "score" if len(known) > 1 else next(iter(known), "accuracy")


def depth(run: Run) -> int:
    """How many layers have feature weights."""
    return sum(bool(_features(layer)) for layer in run.meta["structure"]["layers"])


def width(run: Run) -> int | None:
    """The most common output width of the hidden layers' feature weights; None if there is no hidden layer."""
    layers = [layer for layer in run.meta["structure"]["layers"] if _features(layer)]
    widths = Counter(int(_features(layer)[0]["shape"][0]) for layer in layers[:-1] if _features(layer)[0]["shape"])
    return widths.most_common(1)[0][0] if widths else None


def normalization(run: Run) -> str:
    """The layer kinds that hold normalization scales, for example "BatchNorm"; "none" if no layer does."""
    kinds = {
        layer["kind"]
        for layer in run.meta["structure"]["layers"]
        if any(p["role"] == "norm scale" for p in layer["parameters"])
    }
    return ", ".join(sorted(kinds)) or "none"


def default_variant(name: str) -> str:
    """A run's name without the words that are a number, with or without a letter or two before it.

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


def mean_by(table: pd.DataFrame, value: str, by: Sequence[str]) -> pd.DataFrame:
    """The mean of a column in each group, with the half-width of its 95 % confidence interval (Student's t).

    Returns:
        The columns of `by`, then mean, half_width (NaN for fewer than three runs: of two it would be longer than any
        axis), lowest, highest and runs, in the order of first appearance.
    """
    known = table.dropna(subset=[value, *by])
    grouped = known.groupby(list(by), sort=False)[value]
    result = grouped.agg(mean="mean", spread="std", lowest="min", highest="max", runs="count").reset_index()
    freedom = result["runs"].to_numpy() - 1
    t = np.where(freedom < 2, np.nan, stdtrit(np.maximum(freedom, 1), 0.975))
    half_width = t * result["spread"].to_numpy(np.float64) / np.sqrt(result["runs"].to_numpy())
    return result.assign(half_width=half_width)[[*by, "mean", "half_width", "lowest", "highest", "runs"]]


def _features(layer: Mapping[str, list[dict[str, list[int]]]]) -> list[dict[str, list[int]]]:
    return [p for p in layer["parameters"] if str(p["role"]) == FEATURES]
