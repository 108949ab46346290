"""Built-in graphs: deterministic functions of their arguments."""

import math
from itertools import permutations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from gatdiag.errors import InputError

_WITHIN, _BETWEEN = 0.06, 0.003  # probability of a link in the built-in graph
_OWN, _OTHER = 0.2, 0.03  # probability of a word
_TRAIN, _VAL = 20, 25  # nodes per class; the others are for testing


def block_model(nodes: int = 400, classes: int = 4, words: int = 64, seed: int = 0) -> Data:
    """An undirected graph of a stochastic block model with equal classes.

    Two nodes of one class are linked with probability 0.06, two of different classes with 0.003. Each class has an
    equal share of the words; a node has a word of its own class with probability 0.2, any other with 0.03. Twenty nodes
    of each class are for training, the next twenty-five for validation, the others for testing.

    Args:
        nodes: Number of nodes, a multiple of ``classes``.
        classes: Number of classes.
        words: Number of features, a multiple of ``classes``.
        seed: Seed of the graph; the global random state is not touched.

    Returns:
        ``x`` (nodes, words) of zeros and ones, ``edge_index`` (2, edges) with both directions of each link and no
        self-loops, ``y`` (nodes,), ``train_mask``, ``val_mask`` and ``test_mask`` (nodes,).

    Raises:
        InputError: An argument is out of range.

    Source:
        Holland, Laskey, Leinhardt, "Stochastic blockmodels: first steps" (1983).

    Example:
        >>> graph = block_model()
        >>> graph.is_undirected(), int(graph.train_mask.sum())
        (True, 80)
    """
    if not 1 <= classes <= nodes or words < 1:
        raise InputError(f"Expected 1 or more classes, words, and nodes per class, got {nodes=}, {classes=}, {words=}")
    generator = make_generator(seed)
    y = torch.arange(nodes) * classes // nodes
    same = y[:, None] == y[None, :]
    links = _draw(torch.where(same, _WITHIN, _BETWEEN), generator).triu(1)
    topic = torch.arange(words) * classes // words
    x = _draw(torch.where(y[:, None] == topic[None, :], _OWN, _OTHER), generator)
    return _undirected_graph(x.float(), links, y, torch.arange(nodes) % (nodes // classes))


def _undirected_graph(x: Tensor, links: Tensor, y: Tensor, place: Tensor) -> Data:
    """A graph from an upper triangle of links; nodes are split by their place within their class."""
    return Data(
        x=x,
        edge_index=(links | links.T).nonzero().T.contiguous(),
        y=y,
        train_mask=place < _TRAIN,
        val_mask=(place >= _TRAIN) & (place < _TRAIN + _VAL),
        test_mask=place >= _TRAIN + _VAL,
    )


def make_generator(seed: int) -> torch.Generator:
    """A new generator with this seed.

    Raises:
        InputError: The seed is not from 0 to 2**63 - 1.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"Expected seed to be from 0 to 2**63 - 1, got {seed}")
    return torch.Generator().manual_seed(seed)


def _draw(probability: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(probability.shape, generator=generator) < probability


def contextual_block_model(
    nodes: int = 1000,
    classes: int = 2,
    features: int = 64,
    degree: float = 10.0,
    homophily: float = 0.8,
    signal: float = 1.0,
    seed: int = 0,
) -> Data:
    """A contextual stochastic block model of any homophily.

    Two nodes of one class are linked with the probability that gives a node ``homophily * degree`` such links on
    average, two nodes of different classes with the one that gives it ``(1 - homophily) * degree``. Features of a node
    of class c are signal m_c + z with m_c, z ~ N(0, I / features), one m_c for each class. Twenty nodes of each class
    are for training, the next twenty-five for validation, the others for testing.

    Args:
        nodes: Number of nodes, a multiple of ``classes``.
        classes: Number of classes, 2 or more.
        features: Number of features.
        degree: Mean number of links of a node.
        homophily: Expected share of links within a class, from 0 to 1; about ``1 / classes`` if links do not depend on
            the classes.
        signal: Distance between the means of classes, relative to the noise; 0: features carry no information.
        seed: Seed of the graph; the global random state is not touched.

    Returns:
        As for `block_model`, with real-valued features.

    Raises:
        InputError: An argument is out of range.

    Source:
        After Deshpande, Sen, Montanari, Mossel, "Contextual Stochastic Block Models" (NeurIPS 2018), with two
        classes of means u and -u, and signal^2 = mu / nodes.

    Example:
        >>> graph = contextual_block_model(homophily=0.2)
        >>> same = graph.y[graph.edge_index[0]] == graph.y[graph.edge_index[1]]
        >>> round(float(same.float().mean()), 1)
        0.2
    """
    if classes < 2 or nodes % classes or nodes // classes <= _TRAIN + _VAL:
        least = _TRAIN + _VAL + 1
        raise InputError(f"Expected {least} nodes or more in each of 2 or more equal classes, got {nodes=}, {classes=}")
    if features < 1 or not degree > 0 or not 0 <= homophily <= 1 or not math.isfinite(signal):
        raise InputError(
            "Expected a homophily from 0 to 1, 1 or more features, a positive degree and a finite signal, got "
            f"{homophily=}, {features=}, {degree=}, {signal=}"
        )
    size = nodes // classes
    within, between = homophily * degree / (size - 1), (1 - homophily) * degree / (nodes - size)
    if max(within, between) > 1:
        raise InputError(f"Expected a degree that {nodes} nodes can have, got {degree=} with {homophily=}")
    generator = make_generator(seed)
    y = torch.arange(nodes) // size
    links = _draw(torch.where(y[:, None] == y[None, :], within, between), generator).triu(1)
    means, noise = (torch.randn(count, features, generator=generator) / features**0.5 for count in (classes, nodes))
    return _undirected_graph(signal * means[y] + noise, links, y, torch.arange(nodes) % size)


def tree_neighbors_match(depth: int = 2, seed: int = 11) -> Data:
    """Tree-NeighborsMatch: at the root of a binary tree, name the value of the leaf whose key it holds.

    The graph holds all examples, without edges between them. An example is a complete binary tree with a key from
    1..2^depth and a permutation of 1..2^depth: its root holds (key, 0), inner nodes (0, 0), the j-th leaf from the left
    (j, value j); the label of the root is the value at leaf ``key``. Edges lead from child to parent, and every node
    has a self-loop. Each permutation has one example per key. There are min(1000, 32000 // 2^depth) permutations (24 at
    depth 2), drawn without replacement up to depth 3, and with replacement beyond.

    Args:
        depth: Depth of the trees, from 2 to 8. From 6 on the graph takes gigabytes.
        seed: Seed of the graph; the global random state is not touched.

    Returns:
        ``x`` (nodes, 2 (2^depth + 1)): key and value, each one-hot, so that a linear layer without bias is the sum of
        two embeddings. ``y`` (nodes,): the label of a root, 0 for all other nodes. ``train_mask``: roots of four fifths
        of the examples, equally many for each label. ``val_mask`` and ``test_mask``: the other roots, as the benchmark
        has no validation split; it reports training accuracy.

    Raises:
        InputError: An argument is out of range.

    Source:
        Alon & Yahav, "On the Bottleneck of Graph Neural Networks and its Practical Implications", ICLR 2021, and their
        code.

    Example:
        >>> graph = tree_neighbors_match(2)
        >>> graph.num_nodes // 7, int(graph.train_mask.sum()), graph.num_features
        (96, 76, 10)
    """
    if not 2 <= depth <= 8:
        raise InputError(f"Expected depth to be from 2 to 8, got {depth}")
    generator = make_generator(seed)
    leaves, nodes = 2**depth, 2 ** (depth + 1) - 1
    values = 1 + _draw_permutations(depth, generator)
    count = len(values)
    links, at_leaf = _binary_tree(depth)
    pairs = torch.zeros(count, leaves, nodes, 2, dtype=torch.long)  # permutation, key, node, (key, value)
    keys = 1 + torch.arange(leaves)
    pairs[:, :, 0, 0] = keys
    pairs[:, :, at_leaf, 0] = keys
    pairs[:, :, at_leaf, 1] = values[:, None]
    examples = count * leaves
    offsets = nodes * torch.arange(examples)
    y, train, test = (torch.zeros(examples, nodes, dtype=kind) for kind in (torch.long, torch.bool, torch.bool))
    y[:, 0] = values.flatten()
    train[:, 0] = _draw_per_label(y[:, 0], count * 4 // 5, generator)
    test[:, 0] = ~train[:, 0]
    return Data(
        x=F.one_hot(pairs.view(-1, 2), leaves + 1).float().flatten(1),
        edge_index=(links[:, None] + offsets[:, None]).flatten(1),
        y=y.flatten(),
        train_mask=train.flatten(),
        val_mask=test.flatten(),
        test_mask=test.flatten(),
    )


def _draw_permutations(depth: int, generator: torch.Generator) -> Tensor:
    leaves = 2**depth
    if depth <= 3:
        every = torch.tensor([*permutations(range(leaves))])
        return every[torch.randperm(len(every), generator=generator)[:1000]]
    count = min(1000, 32000 // leaves)
    return torch.stack([torch.randperm(leaves, generator=generator) for _ in range(count)])


def _binary_tree(depth: int) -> tuple[Tensor, Tensor]:
    """Edges (2, edges) of a tree, numbered parent, left subtree, right subtree; and its leaves (2^depth,)."""
    size = 2 ** (depth + 1) - 1
    links, leaves = [(node, node) for node in range(size)], []

    def grow(node: int, last: int) -> None:
        if node == last:
            leaves.append(node)
            return
        left, right = node + 1, node + 1 + (last - node) // 2
        links.extend([(left, node), (right, node)])
        grow(left, right - 1)
        grow(right, last)

    grow(0, size - 1)
    return torch.tensor(links).T, torch.tensor(leaves)


def _draw_per_label(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """A random mask (len(labels),) of ``count`` places per label."""
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        places = (labels == label).nonzero().flatten()
        mask[places[torch.randperm(len(places), generator=generator)[:count]]] = True
    return mask
