"""Every model on which the laws found are compared with the referee's count: name -> factory of a Case."""

import torch

from tests.laws.models import (
    adjacency,
    architectures,
    attention,
    calls,
    convolutions,
    language,
    library,
    more_convolutions,
    operations,
    ordinary,
    plain,
    pooling,
)
from tests.laws.models.graph import Case, Factory

LISTED: dict[str, Factory] = {
    f"{room.__name__.rpartition('.')[2]}: {name}": factory
    for room in (plain, convolutions, attention, adjacency, library)
    for name, factory in room.ZOO.items()
}
UNLISTED: dict[str, Factory] = {
    f"{room.__name__.rpartition('.')[2]}: {name}": factory
    for room in (more_convolutions, pooling, architectures, language, operations, ordinary, calls)
    for name, factory in room.ZOO.items()
}
ZOO = LISTED | UNLISTED


def build(name: str) -> Case:
    """The named model, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ZOO[name]()
