"""A graph that needs no download: a stochastic block model with the features of a small vocabulary."""

import torch
from torch import Tensor
from torch_geometric.data import Data

_INSIDE, _ACROSS = 0.06, 0.003  # chance of a link
_OWN, _FOREIGN = 0.2, 0.03  # chance of a word


def block_model(nodes: int = 400, classes: int = 4, words: int = 64, seed: int = 0) -> Data:
    """An undirected graph of equal classes, the same for the same arguments.

    Two nodes of one class are linked with probability 0.06, two of different classes with 0.003. Each class has an
    equal share of the words; a node has a word of its own class with probability 0.2, any other with 0.03. Twenty nodes
    of each class are for training, the next twenty-five for validation, the others for testing.

    Args:
        nodes: Number of nodes, a multiple of ``classes``.
        classes: Number of classes.
        words: Number of features, a multiple of ``classes``.
        seed: Seed of a generator of its own; the global random state is not touched.

    Returns:
        ``x`` (nodes, words) of zeros and ones, ``edge_index`` (2, edges) with both directions of each link and no
        self-loops, ``y`` (nodes,), ``train_mask``, ``val_mask`` and ``test_mask`` (nodes,).

    Source:
        Holland, Laskey, Leinhardt, "Stochastic blockmodels: first steps" (1983).

    Example:
        >>> graph = block_model()
        >>> graph.is_undirected(), int(graph.train_mask.sum())
        (True, 80)
    """
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(nodes) * classes // nodes
    alike = y[:, None] == y[None, :]
    links = _draw(torch.where(alike, _INSIDE, _ACROSS), generator).triu(1)
    topic = torch.arange(words) * classes // words
    x = _draw(torch.where(y[:, None] == topic[None, :], _OWN, _FOREIGN), generator)
    place = torch.arange(nodes) % (nodes // classes)
    return Data(
        x=x.float(),
        edge_index=(links | links.T).nonzero().T.contiguous(),
        y=y,
        train_mask=place < 20,
        val_mask=(place >= 20) & (place < 45),
        test_mask=place >= 45,
    )


def _draw(chance: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(chance.shape, generator=generator) < chance
