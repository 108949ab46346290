"""One training from its settings: graph, network, initialization, remedies and loop; its result beside the run."""

import json
import math
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import nn
from torch_geometric.data import Data

from gatdiag.errors import InputError, ModelError
from gatdiag.experiments.data import SPLITS, Transform, prepared_graph
from gatdiag.experiments.models import build
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.training import Epoch, TrainingResult, train
from gatdiag.recorder import Every, Metrics
from gatdiag.remedies import initialize_, lipschitz_normalize_, weight_normalize_
from gatdiag.run.files import atomic_write
from gatdiag.structure.isolation import random_state
from gatdiag.watching import watch

FILE: Final = "experiment.json"
"""File in the run folder with the keys ``settings``, ``versions`` and ``result``: the attributes of `Result`, or null
during training."""


@dataclass(frozen=True)
class Result:
    """The result of a training; accuracies are in [0, 1].

    Attributes:
        test_accuracy: Test accuracy at the first epoch with the highest validation accuracy.
        val_accuracy: Highest validation accuracy.
        epochs_to_best: Number of that epoch, from 1.
        last_test_accuracy: Test accuracy after the last epoch.
        last_train_accuracy: Training accuracy after the last epoch.
        loss: Loss of the last epoch; NaN and infinity are null in the file.
        epochs: Number of epochs.
        converged: Whether the loss fell below `Experiment.stop_below`.
    """

    test_accuracy: float
    val_accuracy: float
    epochs_to_best: int
    last_test_accuracy: float
    last_train_accuracy: float
    loss: float
    epochs: int
    converged: bool


def run_experiment(
    experiment: Experiment,
    root: str | os.PathLike[str] = "data",
    folder: str | os.PathLike[str] | None = None,
    *,
    every: Every = "auto",
    metrics: Metrics = "standard",
    overwrite: bool = False,
    progress: Callable[[int, Epoch], None] | None = None,
) -> Result:
    """Run the training that the settings describe; watched, if a folder is given.

    Args:
        experiment: The settings.
        root: Data set folder.
        folder: Folder for the run, the parameters of the best validation accuracy, and `FILE`. None: not watched.
        every: Passed to `gatdiag.watch`.
        metrics: Passed to `gatdiag.watch`.
        overwrite: Replace a run in the folder. By default, a numbered sibling of it is written, as by `gatdiag.watch`.
        progress: Called after each epoch with its index and numbers.

    Returns:
        The result: the same watched or not, and on the CPU the same for equal settings and versions.

    Raises:
        InputError: Settings contradict each other, the graph cannot be loaded, or the folder holds other files.
        ModelError: The initialization or a remedy does not fit the network.

    Example:
        >>> result = run_experiment(Experiment(data="sbm", model="gcn", layers=2, learning_rate=0.5, epochs=50))
        >>> result.test_accuracy > 0.9
        True
    """
    if experiment.device == "cuda" and not torch.cuda.is_available():
        raise InputError("Expected device to be cpu, as torch finds no GPU, got cuda")
    graph = graph_of(experiment, root)
    if empty := [split for split in SPLITS if not graph[f"{split}_mask"].any()]:
        raise InputError(
            f"{experiment.data} has no nodes for {' and '.join(empty)}: expected some for each of {', '.join(SPLITS)}"
        )
    model = prepared_model(experiment, graph).to(experiment.device)
    graph = graph.to(experiment.device)
    fit = partial(train, model, graph, experiment, progress=progress, has_modes=experiment.has_modes)
    if folder is None:
        return _make_result(fit())
    with watch(model, folder, every=every, metrics=metrics, best="val_accuracy", overwrite=overwrite) as recorder:

        def on_epoch(number: int, epoch: Epoch) -> None:
            if number == 0:  # the folder is made at the first step
                _write_document(experiment, None, recorder.folder)
            if progress is not None:
                progress(number, epoch)

        result = _make_result(fit(recorder=recorder, progress=on_epoch))
        _write_document(experiment, result, recorder.folder)
    return result


def graph_of(experiment: Experiment, root: str | os.PathLike[str] = "data") -> Data:
    """The graph of an experiment, after its feature transform.

    Raises:
        InputError: There is no such graph, or it cannot be loaded.

    Example:
        >>> graph_of(Experiment(data="sbm")).num_features
        64
    """
    transform = None if experiment.transform == "usual" else cast("Transform", experiment.transform)
    return prepared_graph(experiment.data, root, transform)


def prepared_model(experiment: Experiment, graph: Data) -> nn.Module:
    """The initialized network with its remedies; torch's random state does not change.

    Raises:
        InputError: There is no such initialization.
        ModelError: The initialization or a remedy does not fit the network.
    """
    with random_state(experiment.seed, ()):
        model = build(experiment, graph.num_features, int(graph.y.max()) + 1)
    if experiment.initialization != "default":
        _initialize(model, experiment, graph)
    if experiment.lipschitz == "paper":
        lipschitz_normalize_(model)
    if experiment.weight_norm:
        weight_normalize_(model, experiment.weight_norm)
    experiment.change_(model)
    return model


def _initialize(model: nn.Module, experiment: Experiment, graph: Data) -> None:
    """Initialize a stack layer by layer, as in the paper; other networks by their laws."""
    generator = torch.Generator()
    try:
        initialize_(model, experiment.initialization, generator=generator.manual_seed(experiment.seed))
    except ModelError:
        inputs = graph.x, graph.edge_index
        initialize_(model, experiment.initialization, *inputs, generator=generator.manual_seed(experiment.seed))


def _make_result(trained: TrainingResult) -> Result:
    best, last = trained.epochs[trained.best_epoch], trained.epochs[-1]
    return Result(
        best.test_accuracy,
        best.val_accuracy,
        trained.best_epoch + 1,
        last.test_accuracy,
        last.train_accuracy,
        last.loss,
        len(trained.epochs),
        trained.converged,
    )


def make_document(experiment: Experiment, result: Result | None) -> dict[str, Any]:
    """The contents of `FILE`, as strict JSON."""
    values = None if result is None else asdict(result)
    if values is not None and not math.isfinite(values["loss"]):
        values["loss"] = None
    return {
        "version": 1,
        "settings": asdict(experiment.resolved),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "torch-geometric")},
            "platform": sys.platform,
        },
        "result": values,
    }


def _write_document(experiment: Experiment, result: Result | None, folder: Path) -> None:
    with atomic_write(folder / FILE) as part:
        part.write_text(json.dumps(make_document(experiment, result), indent=1) + "\n")
