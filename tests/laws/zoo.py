"""Every model on which the laws found are compared with the referee's count: name -> factory of a Case."""

from importlib import import_module

import torch

from tests.laws.models.graph import Case, Factory

ROOMS = (
    "plain convolutions attention adjacency library more_convolutions pooling architectures more_architectures "
    "language operations ordinary calls"
)
ZOO: dict[str, Factory] = {
    f"{room}: {name}": factory
    for room in ROOMS.split()
    for name, factory in import_module(f"tests.laws.models.{room}").ZOO.items()
}


def build(name: str) -> Case:
    """The named model, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ZOO[name]()
