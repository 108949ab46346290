"""GraphGym: its `train`, recorded. GraphGym makes the Lightning trainer itself, and takes no callbacks."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_geometric.graphgym import train as train_by_graphgym
from torch_geometric.graphgym.model_builder import GraphGymModule
from torch_geometric.graphgym.train import GraphGymDataModule

from gatdiag.integrations.lightning import GatdiagCallback


def train(
    model: GraphGymModule,
    datamodule: GraphGymDataModule,
    logger: bool = True,
    trainer_config: Mapping[str, Any] | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> None:
    """Train as `torch_geometric.graphgym.train` does, record it, and print the verdict.

    Args:
        model: As there.
        datamodule: As there.
        logger: As there.
        trainer_config: As there.
        folder: Where the run is written; by default the folder ``gatdiag-run`` in the trainer's `log_dir`. If it holds
            a run, a numbered sibling is written.
        settings: Other arguments of `gatdiag.watch`.

    Example::

        from gatdiag.integrations.graphgym import train  # in place of torch_geometric.graphgym.train

        train(create_model(), GraphGymDataModule())
    """
    own: Callable[[], Sequence[Any]] = model.configure_callbacks
    callback = GatdiagCallback(folder, **settings)
    model.configure_callbacks = lambda: [*_as_list(own()), callback]
    try:
        train_by_graphgym(model, datamodule, logger, trainer_config)
    finally:
        del model.configure_callbacks


def _as_list(callbacks: Any) -> Sequence[Any]:
    return callbacks if isinstance(callbacks, Sequence) else [callbacks]
