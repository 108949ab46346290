"""Synthetic data."""

from dataclasses import replace

import pytest
import torch

from tests.bank import tasks
from tests.bank.network import make_network
from tests.bank.recipe import Recipe

SMALL = Recipe(width=8)


@pytest.mark.parametrize("task", ["nodes", "graphs", "links", "regression"])
def test_a_task_is_the_same_each_time_and_leaves_the_random_state(task):
    recipe = replace(SMALL, task=task, seed=3)
    state = torch.get_rng_state()
    first, again = tasks.make_task(recipe), tasks.make_task(recipe)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.x, tasks.make_task(replace(recipe, seed=4)).x)
    assert first.is_training.any()
    assert not first.is_training.all()


def test_links_that_are_asked_for_are_not_shown():
    task = tasks.make_task(replace(SMALL, task="links"))
    shown = {tuple(edge) for edge in task.edge_index.T.tolist()}
    pairs = [tuple(pair) for pair in task.groups.T.tolist()]
    assert len({*pairs}) == len(pairs) == 2 * int(task.y.sum())
    assert not shown & {*pairs}
    assert all((end, start) in shown for start, end in shown)


@pytest.mark.parametrize("task", ["nodes", "graphs", "links", "regression"])
def test_a_batch_is_what_the_whole_says_of_these_examples(task):
    """Of graphs and links outputs are those of all examples at once; of nodes, the features and labels at least."""
    made = tasks.make_task(replace(SMALL, task=task))
    batch = made.sample(10, torch.Generator().manual_seed(0))
    whole = made.split(is_training=True)
    assert len(batch.rows) == len(batch.y) == 10
    if task in ("nodes", "regression"):
        for row, label in zip(batch.args[0][batch.rows], batch.y, strict=True):
            assert any(torch.equal(made.x[n], row) and torch.equal(made.y[n], label) for n in whole.rows)
        return
    torch.manual_seed(0)
    model = make_network(replace(SMALL, task=task), made.x.shape[1], made.out_channels)
    all_rows = model(*whole.args)
    matches = torch.stack([(all_rows - row).abs().sum(1).argmin() for row in model(*batch.args)[batch.rows]])
    torch.testing.assert_close(all_rows[matches], model(*batch.args)[batch.rows])
    assert torch.equal(made.y[matches], batch.y)


@pytest.mark.parametrize("graph", [*tasks.GRAPHS])
def test_graphs_are_the_same_each_time_linked_both_ways_and_of_all_classes(graph):
    recipe = replace(SMALL, graph=graph, nodes=100, seed=3)
    task = tasks.make_task(recipe)
    links = {tuple(link) for link in task.edge_index.T.tolist()}
    assert torch.equal(tasks.make_task(recipe).edge_index, task.edge_index)
    assert len(links) == task.edge_index.shape[1]
    assert all((end, start) in links and start != end for start, end in links)
    assert task.edge_index.max() < 100 == len(task.x)
    assert task.y.unique().tolist() == [0, 1, 2, 3]
    alike = (task.y[task.edge_index[0]] == task.y[task.edge_index[1]]).float().mean()
    least, most = {"other classes": (0, 0.1), "all linked": (0.2, 0.3)}.get(graph, (0.35, 1))
    assert least <= alike <= most
