"""Callbacks of frameworks that train for you, and trackers that you look at. Each file imports its package only.

    lightning    GatdiagCallback, for `lightning.Trainer(callbacks=[...])`
    huggingface  GatdiagCallback, for `transformers.Trainer(callbacks=[...])`
    ignite       GatdiagHandler, attached to the engine that trains
    graphgym     train, in place of `torch_geometric.graphgym.train`
    tensorboard  to_tensorboard, for `gatdiag.watch(..., tracker=to_tensorboard(writer))`
    wandb        to_wandb, the same for the active run of W&B
    mlflow       to_mlflow, the same for the active run of MLflow
    verdict      what they share: the end of a recording, with the verdict in one line

Callbacks take the arguments of `gatdiag.watch` by name, and need none: without a folder, a run is written where the
framework writes, and a numbered sibling if that holds a run. Training stays what it was, bit for bit. A tracker is any
function of a `gatdiag.recorder.Update`, and gets the scalars that `gatdiag.summary.SCALARS` lists::

    from gatdiag.integrations.lightning import GatdiagCallback

    trainer = lightning.Trainer(callbacks=[GatdiagCallback()])
"""
