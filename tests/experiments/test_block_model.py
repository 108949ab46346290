import pytest
import torch

from gatdiag.experiments.block_model import block_model


@pytest.fixture(scope="module")
def graph():
    return block_model()


def test_it_is_the_same_each_time_and_leaves_the_random_state(graph):
    state = torch.get_rng_state()
    again = block_model()
    assert torch.equal(again.x, graph.x)
    assert torch.equal(again.edge_index, graph.edge_index)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(block_model(seed=1).x, graph.x)


def test_links_have_the_chances_of_their_classes(graph):
    pairs = {(u, v) for u, v in graph.edge_index.T.tolist()}
    assert all((v, u) in pairs and u != v for u, v in pairs)
    inside = sum(int(graph.y[u] == graph.y[v]) for u, v in pairs) / (4 * 100 * 99)
    across = sum(int(graph.y[u] != graph.y[v]) for u, v in pairs) / (4 * 100 * 300)
    assert inside == pytest.approx(0.06, rel=0.1)
    assert across == pytest.approx(0.003, rel=0.1)


def test_words_have_the_chances_of_their_classes(graph):
    own = torch.cat([graph.x[100 * k : 100 * k + 100, 16 * k : 16 * k + 16].flatten() for k in range(4)])
    foreign = (graph.x.sum() - own.sum()) / (graph.x.numel() - own.numel())
    assert float(own.mean()) == pytest.approx(0.2, rel=0.1)
    assert float(foreign) == pytest.approx(0.03, rel=0.1)


def test_the_split_is_disjoint_balanced_and_whole(graph):
    masks = torch.stack([graph.train_mask, graph.val_mask, graph.test_mask])
    assert masks.sum(0).eq(1).all()
    assert [torch.bincount(graph.y[mask]).tolist() for mask in masks] == [[20] * 4, [25] * 4, [55] * 4]
