"""The steps, loss and scores of a training."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gatdiag.run import Run

__all__ = [
    "TrainingFacts", "compared_score", "in_words", "is_empty", "is_of_checkpoints", "kind_of_score", "logged_series",
    "loss_name", "score_names", "scores", "split", "training_facts",
]  # fmt: skip

_SCORES = {  # kind of score -> words in the name of a logged scalar that identify it
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
_SPLIT_WORDS = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class TrainingFacts:
    """Facts about the steps, loss and best metric of a training.

    Attributes:
        steps: Number of steps with measurements or logged scalars.
        recorded: Number of steps at which layers, or else parameters, were recorded.
        last_step: The last step; None if there are none.
        loss: Name of the logged loss; None if none was logged.
        first_loss: Its first value, which may be NaN.
        last_loss: Its last value.
        best_loss: Its smallest finite value; NaN if none is finite.
        best_loss_step: The first step with `best_loss`.
        metric: Name of the logged scalar that decides which step is best: that of `watch(best=...)`, else a validation
            score.
        best_metric: Its best value.
        best_step: The first step with `best_metric`.
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
    """The facts of a run's training."""
    step = run.steps["step"]
    loss = loss_name(run)
    values = logged_series(run, loss) if loss else pd.Series(dtype=np.float64)
    finite = values[np.isfinite(values)]
    metric, mode = _metric_and_mode(run)
    measured = logged_series(run, metric) if metric else pd.Series(dtype=np.float64)
    measured = measured[np.isfinite(measured)]
    best_step = (measured.idxmin() if mode == "min" else measured.idxmax()) if len(measured) else None
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
        best_metric=float(measured[best_step]) if best_step is not None else np.nan,
        best_step=int(best_step) if best_step is not None else None,
    )


def is_empty(run: Run) -> bool:
    """Whether no table of the run has a row."""
    return not any(len(table) for table in (run.steps, run.layers, run.parameters, run.neurons))


def is_of_checkpoints(run: Run) -> bool:
    """Whether a run was made from saved checkpoints, rather than recorded in a training."""
    return bool(run.meta["cadence"].get("every") == "checkpoint")


def logged_series(run: Run, name: str) -> pd.Series:
    """A logged scalar by step, without the steps at which it was not logged. Logged NaN are kept."""
    keep = run.is_measured("steps", name)
    return pd.Series(run.steps[name].to_numpy(np.float64)[keep], index=run.steps["step"].to_numpy()[keep])


def loss_name(run: Run) -> str | None:
    """The name of the logged training loss: "loss", else the first with "loss" in it that is not of other data."""
    names = [name for name in run.logged_names if "loss" in name.lower()]
    training = [name for name in names if split(name) in (None, "train")]
    exact = [name for name in names if name.lower() in ("loss", "train_loss", "training_loss")]
    return next(iter([*exact, *training, *names]), None)


def kind_of_score(name: str) -> str | None:
    """The kind of score that a logged scalar is by its name: "accuracy", "AUC", "F1", ...; None if it is no score.

    Scores are scalars of which larger values are better.

    Example:
        >>> kind_of_score("val_acc"), kind_of_score("test/roc_auc"), kind_of_score("loss")
        ('accuracy', 'AUC', None)
    """
    words = _words(name)
    return next((kind for kind, known in _SCORES.items() if any(word in known for word in words)), None)


def scores(run: Run) -> dict[str, list[str]]:
    """Kind of score -> names of the logged scalars: training, validation, test, then those of unknown split."""
    found: dict[str, list[str]] = {}
    for name in sorted(run.logged_names, key=lambda name: _ORDER.index(split(name))):
        if (kind := kind_of_score(name)) is not None:
            found.setdefault(kind, []).append(name)
    return dict(sorted(found.items(), key=lambda item: [*_SCORES].index(item[0])))


def compared_score(run: Run) -> str:
    """The kind of score that is compared: that which decides the best step, else the first with a validation split."""
    best = kind_of_score(str((run.meta.get("best") or {}).get("name")))
    known = scores(run)
    validated = [kind for kind, names in known.items() if any(split(name) == "val" for name in names)]
    return next(iter([*([best] if best in known else []), *validated, *known]), "accuracy")


def score_names(run: Run) -> dict[str, str]:
    """Names of the logged scores of kind `compared_score(run)` by split: {"train": ..., "val": ..., "test": ...}."""
    found: dict[str, str] = {}
    for name in scores(run).get(compared_score(run), []):
        if (of := split(name)) is not None:
            found.setdefault(of, name)
    return found


def split(name: str) -> str | None:
    """The data split of a logged scalar by its name: "train", "val" or "test"; None if unknown.

    Example:
        >>> split("val_accuracy"), split("accuracy/test"), split("loss")
        ('val', 'test', None)
    """
    words = _words(name)
    return next((group[0] for group in _SPLITS if any(word in words for word in group)), None)


def in_words(name: str) -> str:
    """The name of a logged scalar as figures, tables and texts write it.

    Example:
        >>> in_words("val_accuracy"), in_words("auc/test"), in_words("val_loss"), in_words("weight_decay")
        ('validation accuracy', 'test AUC', 'validation loss', 'weight decay')
    """
    kind, of = kind_of_score(name), split(name)
    if kind is None and of is None:
        return name.replace("_", " ")
    of_split = next((group for group in _SPLITS if group[0] == of), ())
    rest = [word for word in _words(name) if word not in of_split]
    shown = [str(kind) if word in _SCORES.get(str(kind), ()) else word for word in rest]
    return " ".join([_SPLIT_WORDS[of], *shown] if of else shown)


def _words(name: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()


def _metric_and_mode(run: Run) -> tuple[str | None, str]:
    best = run.meta.get("best")
    if best and best.get("name") in run.logged_names:
        return best["name"], best.get("mode", "max")
    return score_names(run).get("val"), "max"
