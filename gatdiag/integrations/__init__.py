"""Callbacks of frameworks that train for you, and trackers that you look at. Each file imports its package only.

    lightning    GatdiagCallback, for `lightning.Trainer(callbacks=[...])`
    huggingface  GatdiagCallback, for `transformers.Trainer(callbacks=[...])`
    ignite       GatdiagHandler, attached to the engine that trains
    graphgym     train, in place of `torch_geometric.graphgym.train`
    verdict      what they share: the end of a recording, with the verdict in one line

Each takes the arguments of `gatdiag.watch` by name, and needs none: without a folder, a run is written where the
framework writes, and a numbered sibling if that holds a run. Training stays what it was, bit for bit::

    from gatdiag.integrations.lightning import GatdiagCallback

    trainer = lightning.Trainer(callbacks=[GatdiagCallback()])
"""
