"""Facts of a training: its steps, its loss, its scores."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gatdiag.run import Run

__all__ = [
    "TrainingFacts", "accuracies", "is_empty", "is_of_checkpoints", "logged", "loss_name", "score", "score_kind",
    "scores", "split", "training_facts",
]  # fmt: skip

_SCORES = {  # what a logged scalar is -> the words in its name that say so
    "accuracy": ("accuracy", "acc"),
    "AUC": ("auc", "auroc", "rocauc"),
    "AP": ("ap", "aupr", "auprc"),
    "F1": ("f1",),
    "MRR": ("mrr",),
    "hits": ("hits", "hit"),
    "precision": ("precision",),
    "recall": ("recall",),
}
_SPLITS = (("train", "training"), ("val", "valid", "validation", "dev"), ("test",))
_ORDER = ("train", "val", "test", None)


@dataclass(frozen=True)
class TrainingFacts:
    """The course of one training.

    Attributes:
        steps: How many steps there is anything of: measurements, or what was logged.
        recorded: At how many of them layers were recorded; parameters, if no layer was.
        last_step: The last of them; None if there is none.
        loss: Name of the logged loss; None if none was logged.
        first_loss: Its first recorded value, NaN included.
        last_loss: Its last one.
        best_loss: Its smallest finite one; NaN if none is finite.
        best_loss_step: When that was reached first.
        metric: Name of the logged scalar that chose the best step (as `watch(best=...)` or a validation accuracy).
        best_metric: Its best value.
        best_step: When that was reached first.
    """

    steps: int
    recorded: int
    last_step: int | None
    loss: str | None
    first_loss: float
    last_loss: float
    best_loss: float
    best_loss_step: int | None
    metric: str | None
    best_metric: float
    best_step: int | None


def training_facts(run: Run) -> TrainingFacts:
    """The facts of one run; nothing in them is a verdict."""
    step = run.steps["step"]
    loss = loss_name(run)
    values = logged(run, loss) if loss else pd.Series(dtype=np.float64)
    finite = values[np.isfinite(values)]
    metric, mode = _chosen_by(run)
    chosen = logged(run, metric) if metric else pd.Series(dtype=np.float64)
    chosen = chosen[np.isfinite(chosen)]
    best_step = (chosen.idxmin() if mode == "min" else chosen.idxmax()) if len(chosen) else None
    return TrainingFacts(
        steps=len(step),
        recorded=next((len(table["step"].unique()) for table in (run.layers, run.parameters) if len(table)), 0),
        last_step=int(step.iloc[-1]) if len(step) else None,
        loss=loss,
        first_loss=float(values.iloc[0]) if len(values) else np.nan,
        last_loss=float(values.iloc[-1]) if len(values) else np.nan,
        best_loss=float(finite.min()) if len(finite) else np.nan,
        best_loss_step=int(finite.idxmin()) if len(finite) else None,
        metric=metric,
        best_metric=float(chosen[best_step]) if best_step is not None else np.nan,
        best_step=int(best_step) if best_step is not None else None,
    )


def is_empty(run: Run) -> bool:
    """True if no table of the run has a row."""
    return not any(len(table) for table in (run.steps, run.layers, run.parameters, run.neurons))


def is_of_checkpoints(run: Run) -> bool:
    """True if it was made of saved checkpoints, and not recorded in a training."""
    return bool(run.meta["cadence"].get("every") == "checkpoint")


def logged(run: Run, name: str) -> pd.Series:
    """A scalar by step, without the steps at which it was not logged; NaN where it was logged as NaN."""
    keep = run.is_measured("steps", name)
    return pd.Series(run.steps[name].to_numpy(np.float64)[keep], index=run.steps["step"].to_numpy()[keep])


def loss_name(run: Run) -> str | None:
    """The logged scalar that is the training loss: "loss", else the first whose name says loss and not validation."""
    names = [name for name in run.logged if "loss" in name.lower()]
    training = [name for name in names if split(name) in (None, "train")]
    exact = [name for name in names if name.lower() in ("loss", "train_loss", "training_loss")]
    return next(iter([*exact, *training, *names]), None)


def score(name: str) -> str | None:
    """Kind of a logged scalar of which more is better: "accuracy", "AUC", "F1", ...; None if it is no score.

    Example:
        >>> score("val_acc"), score("test/roc_auc"), score("loss")
        ('accuracy', 'AUC', None)
    """
    words = _words(name)
    return next((kind for kind, known in _SCORES.items() if any(word in known for word in words)), None)


def scores(run: Run) -> dict[str, list[str]]:
    """Kind of score -> the logged scalars of that kind: training, validation, test, then those of no known split."""
    found: dict[str, list[str]] = {}
    for name in sorted(run.logged, key=lambda name: _ORDER.index(split(name))):
        if (kind := score(name)) is not None:
            found.setdefault(kind, []).append(name)
    return dict(sorted(found.items(), key=lambda item: [*_SCORES].index(item[0])))


def score_kind(run: Run) -> str:
    """The kind of score by which a run is judged: what chose the best step, else the first with a validation split."""
    best = score(str((run.meta.get("best") or {}).get("name")))
    known = scores(run)
    validated = [kind for kind, names in known.items() if any(split(name) == "val" for name in names)]
    return next(iter([*([best] if best in known else []), *validated, *known]), "accuracy")


def accuracies(run: Run) -> dict[str, str]:
    """The logged scores of one kind (`score_kind`) by split: {"train": ..., "val": ..., "test": ...}."""
    found: dict[str, str] = {}
    for name in scores(run).get(score_kind(run), []):
        if (of := split(name)) is not None:
            found.setdefault(of, name)
    return found


def split(name: str) -> str | None:
    """Which part of the data a logged scalar belongs to: "train", "val" or "test"; None if its name does not say.

    Example:
        >>> split("val_accuracy"), split("accuracy/test"), split("loss")
        ('val', 'test', None)
    """
    words = _words(name)
    return next((group[0] for group in _SPLITS if any(word in words for word in group)), None)


def _words(name: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()


def _chosen_by(run: Run) -> tuple[str | None, str]:
    best = run.meta.get("best")
    if best and best.get("name") in run.logged:
        return best["name"], best.get("mode", "max")
    return accuracies(run).get("val"), "max"
