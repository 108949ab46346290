"""The effect of feature normalization on the accuracies of "Are GATs Out of Balance?"."""

from dataclasses import replace

import pandas as pd

from gatdiag.experiments.sweep import grid
from reports.papers.gats import BAL_O, NAMES, SEEDS, STOP, XAV
from reports.papers.published import published
from reports.papers.study import Study, matches

_DEPTHS = (2, 5, 10)
_BY = ("layers", "initialization", "transform")
_SETTINGS = {"layers": _DEPTHS, "transform": ("usual", "none"), "initialization": (XAV, BAL_O)}
_FEATURES = {"usual": "divided by their sums", "none": "as stored"}
_FULL = grid(**_SETTINGS, seed=SEEDS)
_KNOWN = [
    one
    for one in (*published("6"), *published("3"))
    if one.source == {BAL_O: "table 6", XAV: "table 3"}.get(one.where["initialization"])
    and any(matches(cell, one.where) for cell in _FULL)
]
_PUBLISHED = tuple(replace(one, where={**one.where, "transform": name}) for one in _KNOWN for name in _FEATURES)


def judge(results: pd.DataFrame) -> list[str]:
    """For each published number, the results with both kinds of features, and which is closer."""
    groups = results.groupby([*_BY])
    means = {key: rows[["test_accuracy", "epochs_to_best"]].mean() for key, rows in groups}
    sentences, closer = [], []
    for known in _PUBLISHED[:: len(_FEATURES)]:
        layers, scheme, _ = (known.where[name] for name in _BY)
        found = {name: means[key] for name in _FEATURES if (key := (layers, scheme, name)) in means}
        if len(found) == len(_FEATURES):
            distance = {name: abs(100 * row["test_accuracy"] - known.value) for name, row in found.items()}
            closer.append(min(distance, key=distance.__getitem__))
            measured = "; ".join(
                f"{_FEATURES[name]} {row['test_accuracy']:.1%}, best after {row['epochs_to_best']:.0f} epochs"
                for name, row in found.items()
            )
            sentences.append(f"{layers} layers, {scheme}: published {known.value}%; {measured}.")
    if closer:
        counts = ", ".join(f"{_FEATURES[name]} {closer.count(name)}" for name in _FEATURES)
        sentences.insert(0, f"Closer to the {len(closer)} published numbers that are known: features {counts}.")
    return sentences


STUDY = Study(
    name="beyond-features",
    title="Features divided by their sums, or as stored: what the published accuracies on Cora depend on",
    claim='The code of "Are GATs Out of Balance?" divides the features of each node by their sum, and so does every '
    "reproduction here. With features as stored, balanced networks need far fewer epochs, two balanced layers reach "
    "the paper's accuracy, and Xavier's initialization trains ten layers, unlike in the paper.",
    full=_FULL,
    quick=grid(**{**_SETTINGS, "layers": (2, 5)}, epochs=2000),
    published=_PUBLISHED,
    columns=("test_accuracy", "epochs_to_best"),
    judge=judge,
    notes=(NAMES, STOP, "transform none: features as stored, zeros and ones; else their rows sum to one."),
)
