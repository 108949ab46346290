"""What the accuracies of "Are GATs Out of Balance?" depend on: features divided by their sums, or as stored."""

import pandas as pd

from gatdiag.experiments.reproduce.gats import BAL_O, NAMES, PRINTED_TABLE_3, PRINTED_TABLE_6, SEEDS, STOP, XAV
from gatdiag.experiments.reproduce.reproduction import Reproduction, published
from gatdiag.experiments.sweep import grid

_DEPTHS = (2, 5, 10)
_BY = ("layers", "initialization", "transform")
_SETTINGS = {"layers": _DEPTHS, "transform": ("usual", "none"), "initialization": (XAV, BAL_O)}
_FEATURES = {"usual": "divided by their sums", "none": "as stored"}
_BALANCED = {
    (layers, BAL_O, name): PRINTED_TABLE_6["gatv2", "Cora", layers] for layers in _DEPTHS for name in _FEATURES
}
_XAVIER = {(10, XAV, name): PRINTED_TABLE_3[XAV] for name in _FEATURES}
_PUBLISHED = (*published(_BALANCED, *_BY, source="table 6"), *published(_XAVIER, *_BY, source="table 3"))


def judged(results: pd.DataFrame) -> list[str]:
    """Of each published number, which features come nearer to it."""
    groups = results.groupby([*_BY])
    means = {key: rows[["test_accuracy", "epochs_to_best"]].mean() for key, rows in groups}
    said, nearer = [], []
    for known in _PUBLISHED[:: len(_FEATURES)]:
        layers, scheme, _ = (known.where[name] for name in _BY)
        found = {name: means[key] for name in _FEATURES if (key := (layers, scheme, name)) in means}
        if len(found) == len(_FEATURES):
            away = {name: abs(100 * row["test_accuracy"] - known.value) for name, row in found.items()}
            nearer.append(min(away, key=away.__getitem__))
            measured = "; ".join(
                f"{_FEATURES[name]} {row['test_accuracy']:.1%}, at its best after {row['epochs_to_best']:.0f} epochs"
                for name, row in found.items()
            )
            said.append(f"{layers} layers, {scheme}: the paper has {known.value} %; {measured}.")
    if nearer:
        counts = ", ".join(f"{_FEATURES[name]} {nearer.count(name)}" for name in _FEATURES)
        said.insert(0, f"Nearer to the published number, of {len(nearer)} that are known to us: features {counts}.")
    return said


REPRODUCTION = Reproduction(
    name="beyond-features",
    title="Features divided by their sums, or as stored: what the published accuracies on Cora depend on",
    claim='The code of "Are GATs Out of Balance?" divides each node\'s features by their sum, and so does every '
    "reproduction here. With features as stored balanced networks are at their best after far fewer epochs, two "
    "balanced layers reach the paper's accuracy, and Xavier's initialization trains ten layers, which in the paper it "
    "does not.",
    full=grid(**_SETTINGS, seed=SEEDS),
    quick=grid(**{**_SETTINGS, "layers": (2, 5)}, epochs=2000),
    published=_PUBLISHED,
    columns=("test_accuracy", "epochs_to_best"),
    judged=judged,
    notes=(NAMES, STOP, "transform none: features as stored, zeros and ones; else their rows sum to one."),
)
