"""The same network trained twice: from Xavier's weights, and from balanced ones."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch_geometric.data import Data

from gatdiag.experiments.models import gat
from gatdiag.experiments.training import Epoch, TrainingSettings, train
from gatdiag.remedies import initialize_
from gatdiag.watching import watch

# The paper's two ends: what everyone uses, and what it proposes. Run folders are called after the schemes.
SCHEMES: Final = ("xavier", "balanced_orthogonal")

Progress = Callable[[str, int, Epoch], None]


def settings_for(name: str) -> TrainingSettings:
    """How a ten-layer network is trained on a graph, for long enough to tell whether it trains at all.

    Gradient descent, as in "Are GATs Out of Balance?": with its figures' learning rate of 0.1 on the citation graphs,
    and its table's 0.01 on the heterophilic ones. The built-in graph, whose features are larger, has 0.01.
    """
    graph = name.partition(":")[0].lower()
    rate = {"cora": 0.1, "citeseer": 0.1, "pubmed": 0.1}.get(graph, 0.01)
    return TrainingSettings(learning_rate=rate, epochs=200 if graph == "sbm" else 300)


def compare_initializations(
    graph: Data,
    folder: Path,
    settings: TrainingSettings,
    layers: int = 10,
    width: int = 64,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Train a GAT from each scheme in turn, watched: one run folder each, called after the scheme.

    Args:
        graph: With ``x``, ``edge_index``, ``y`` and masks of train, val and test.
        folder: Where the run folders go.
        settings: Of both trainings. Its seed also draws the weights.
        layers: Number of convolutions.
        width: Of the hidden layers.
        overwrite: Replace runs that are there.
        progress: Called after each epoch.

    Returns:
        The folder of each run, in the order of `SCHEMES`.

    Raises:
        InputError: A run folder is there already and is not to be replaced.

    Source:
        Figures 2 to 5 and table 3 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023).
    """
    places = tuple(folder / folder_name(scheme) for scheme in SCHEMES)
    for scheme, place in zip(SCHEMES, places, strict=True):
        model = gat(graph.num_features, int(graph.y.max()) + 1, hidden_channels=width, layers=layers)
        initialize_(model, scheme, generator=torch.Generator().manual_seed(settings.seed))
        on_progress = None if progress is None else partial(progress, scheme)
        with watch(model, place, best="val_accuracy", overwrite=overwrite) as recorder:
            train(model, graph, settings, recorder, on_progress)
    return places


def folder_name(scheme: str) -> str:
    """Of the run that began with this scheme, and so the name of that run."""
    return scheme.replace("_", "-")
