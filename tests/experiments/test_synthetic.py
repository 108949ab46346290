from collections import Counter
from math import factorial

import pytest
import torch

from gatdiag.experiments.synthetic import block_model, contextual_block_model, tree_neighbors_match


@pytest.fixture(scope="module")
def built_in():
    return block_model()


def test_it_is_the_same_each_time_and_leaves_the_random_state(built_in):
    state = torch.get_rng_state()
    again = block_model()
    assert torch.equal(again.x, built_in.x)
    assert torch.equal(again.edge_index, built_in.edge_index)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(block_model(seed=1).x, built_in.x)


def test_links_have_the_chances_of_their_classes(built_in):
    pairs = {(u, v) for u, v in built_in.edge_index.T.tolist()}
    assert all((v, u) in pairs and u != v for u, v in pairs)
    inside = sum(int(built_in.y[u] == built_in.y[v]) for u, v in pairs) / (4 * 100 * 99)
    across = sum(int(built_in.y[u] != built_in.y[v]) for u, v in pairs) / (4 * 100 * 300)
    assert inside == pytest.approx(0.06, rel=0.1)
    assert across == pytest.approx(0.003, rel=0.1)


def test_words_have_the_chances_of_their_classes(built_in):
    own = torch.cat([built_in.x[100 * k : 100 * k + 100, 16 * k : 16 * k + 16].flatten() for k in range(4)])
    foreign = (built_in.x.sum() - own.sum()) / (built_in.x.numel() - own.numel())
    assert float(own.mean()) == pytest.approx(0.2, rel=0.1)
    assert float(foreign) == pytest.approx(0.03, rel=0.1)


def test_the_split_is_disjoint_balanced_and_whole(built_in):
    masks = torch.stack([built_in.train_mask, built_in.val_mask, built_in.test_mask])
    assert masks.sum(0).eq(1).all()
    assert [torch.bincount(built_in.y[mask]).tolist() for mask in masks] == [[20] * 4, [25] * 4, [55] * 4]


@pytest.mark.parametrize(("classes", "homophily"), [(2, 0.0), (2, 0.5), (4, 0.25), (4, 0.9), (2, 1.0)])
def test_links_of_the_contextual_model_have_its_homophily_and_degree(classes, homophily):
    graph = contextual_block_model(nodes=800, classes=classes, homophily=homophily, degree=12)
    pairs = {(u, v) for u, v in graph.edge_index.T.tolist()}
    assert len(pairs) == graph.num_edges
    assert all((v, u) in pairs and u != v for u, v in pairs)
    same = sum(int(graph.y[u] == graph.y[v]) for u, v in pairs)
    assert same / len(pairs) == pytest.approx(homophily, abs=0.02)
    assert len(pairs) / 800 == pytest.approx(12, rel=0.05)
    assert torch.bincount(graph.y).tolist() == [800 // classes] * classes


def test_features_of_the_contextual_model_are_class_means_in_noise():
    state = torch.get_rng_state()
    plain, noise = (contextual_block_model(features=16, signal=signal, seed=3) for signal in (2.0, 0.0))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(plain.edge_index, noise.edge_index)
    shift = plain.x - noise.x
    means = [shift[plain.y == label] for label in (0, 1)]
    for rows in means:
        torch.testing.assert_close(rows, rows[:1].expand_as(rows), atol=1e-5, rtol=0)
    assert float(means[0][0] @ means[1][0]) != float(means[0][0] @ means[0][0])
    assert float(noise.x.square().sum(1).mean()) == pytest.approx(1, rel=0.05)
    masks = torch.stack([plain.train_mask, plain.val_mask, plain.test_mask])
    assert masks.sum(1).tolist() == [40, 50, 910]
    assert not torch.equal(plain.x, contextual_block_model(features=16, signal=2.0, seed=4).x)


def children(node, last):
    """Preorder: the left child follows its parent, the right one the left subtree."""
    return node + 1, node + 1 + (last - node) // 2


def walk(node, last, edges, leaves):
    edges.append((node, node))
    if node == last:
        leaves.append(node)
        return
    left, right = children(node, last)
    edges += [(left, node), (right, node)]
    walk(left, right - 1, edges, leaves)
    walk(right, last, edges, leaves)


@pytest.mark.parametrize(("depth", "permutations"), [(2, 24), (3, 1000)])
def test_trees_are_those_of_alon_and_yahav(depth, permutations):
    graph = tree_neighbors_match(depth)
    leaves, size = 2**depth, 2 ** (depth + 1) - 1
    assert graph.num_nodes == permutations * leaves * size
    edges, at_leaf = [], []
    walk(0, size - 1, edges, at_leaf)
    keys, values = (one.tolist() for one in graph.x.view(-1, size, 2, leaves + 1).argmax(3).unbind(2))
    labels = graph.y.tolist()
    assert graph.x.sum(1).eq(2).all()
    links = {}
    for source, target in graph.edge_index.T.tolist():
        links.setdefault(target // size, []).append((source - target // size * size, target % size))
    for example in range(0, permutations * leaves, 7):
        assert sorted(links[example]) == sorted(edges)
        key, value = keys[example], values[example]
        held = [value[leaf] for leaf in at_leaf]
        assert sorted(held) == [*range(1, leaves + 1)]
        assert [key[leaf] for leaf in at_leaf] == [*range(1, leaves + 1)]
        inner = [node for node in range(size) if node not in at_leaf]
        assert all(value[node] == 0 for node in inner)
        assert all(key[node] == 0 for node in inner[1:])
        assert labels[example * size] == held[key[0] - 1]
    examples = Counter((*(value[leaf] for leaf in at_leaf), key[0]) for key, value in zip(keys, values, strict=True))
    assert set(examples.values()) == {1}
    assert len(examples) == permutations * leaves
    assert permutations == min(1000, factorial(leaves))


@pytest.mark.parametrize(("depth", "per_label"), [(2, 19), (3, 800)])
def test_the_split_of_trees_is_that_of_their_roots_by_label(depth, per_label):
    graph = tree_neighbors_match(depth)
    leaves, size = 2**depth, 2 ** (depth + 1) - 1
    roots = torch.arange(graph.num_nodes) % size == 0
    assert torch.equal(graph.train_mask | graph.test_mask, roots)
    assert not (graph.train_mask & graph.test_mask).any()
    assert torch.equal(graph.val_mask, graph.test_mask)
    assert torch.bincount(graph.y[graph.train_mask]).tolist() == [0] + [per_label] * leaves
    assert not graph.y[~roots].any()
    assert torch.equal(graph.x, tree_neighbors_match(depth).x)
    assert not torch.equal(graph.train_mask, tree_neighbors_match(depth, seed=1).train_mask)
