import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook

import gatdiag
from gatdiag.errors import InputError
from gatdiag.experiments.experiment import prepared_model, run_experiment
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.synthetic import tree_neighbors_match
from gatdiag.experiments.training import train, tree_batches

GRAPH = tree_neighbors_match(2)
PAPER = Experiment(
    data="tree:depth=2", model="gat", layers=3, width=8, heads=4, bias=True, residual=True, norm="layernorm",
    activation="none", initialization="default", optimizer="Adam", learning_rate=1e-2, stop_below=0, schedule="plateau",
    trees=16, epochs=3,
)  # fmt: skip
SETTINGS = replace(PAPER, schedule="constant")
GGNN = {"model": "ggnn", "width": 32, "heads": 1, "residual": False, "norm": "none"}


def network(**changes):
    return prepared_model(replace(PAPER, **changes), GRAPH)


@pytest.mark.parametrize("changes", [{}, GGNN, {"model": "gcn", "width": 32, "heads": 1, "activation": "relu"}])
def test_a_tree_in_a_batch_is_the_tree_alone(changes):
    model, chosen = network(**changes).eval(), torch.tensor([7, 3, 95])
    ((x, edge_index, roots, y),) = tree_batches(GRAPH, chosen, 3)
    whole = model(GRAPH.x, GRAPH.edge_index)
    torch.testing.assert_close(model(x, edge_index)[roots], whole[7 * chosen], rtol=1e-4, atol=1e-5)
    for place, number in enumerate(chosen.tolist()):
        mine = slice(7 * number, 7 * number + 7)
        links = (GRAPH.edge_index - 7 * number)[:, GRAPH.edge_index[1] // 7 == number]
        alone = model(GRAPH.x[mine], links)
        torch.testing.assert_close(alone[0], whole[7 * number], rtol=1e-4, atol=1e-5)
        assert y[place] == GRAPH.y[mine.start]


def test_the_network_is_that_of_the_authors():
    """Layer by layer, with embeddings looked up instead of multiplied."""
    model = network(activation="relu")
    pairs = GRAPH.x.view(len(GRAPH.x), 2, 5).argmax(2)
    keys, values = model.first.weight.T.split(5)
    x = keys[pairs[:, 0]] + values[pairs[:, 1]]
    for conv, norm in zip(model.convs, model.norms, strict=True):
        x = F.layer_norm(x + conv(x, GRAPH.edge_index).clamp(min=0), (32,), norm.weight, norm.bias)
    torch.testing.assert_close(model(GRAPH.x, GRAPH.edge_index), x @ model.last.weight.T)
    assert [(conv.heads, conv.out_channels) for conv in model.convs] == [(4, 8)] * 3
    assert float(model.first.weight.detach().std()) == pytest.approx(1, abs=0.2)  # as embeddings begin


def test_steps_are_those_of_a_plain_loop():
    model = network(model="gin", width=16, heads=1)
    expected = copy.deepcopy(model)
    epochs = train(model, GRAPH, replace(SETTINGS, seed=4, trees=20, passes=2)).epochs
    numbers = [number for number in range(96) if GRAPH.train_mask[7 * number]] * 2
    optimizer = torch.optim.Adam(expected.parameters(), lr=1e-2)
    torch.manual_seed(4)
    for epoch in epochs:
        lost, right = [], 0
        order = [numbers[place] for place in torch.randperm(len(numbers))]
        for start in range(0, len(order), 20):
            nodes = [7 * tree + node for tree in order[start : start + 20] for node in range(7)]
            edge_index = torch.cat([links_of_one() + 7 * place for place in range(len(nodes) // 7)], 1)
            logits = expected(GRAPH.x[nodes], edge_index)[::7]
            losses = F.cross_entropy(logits, GRAPH.y[nodes[::7]], reduction="none")
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            lost += losses.tolist()
            right += int((logits.argmax(1) == GRAPH.y[nodes[::7]]).sum())
        assert epoch.loss == pytest.approx(sum(lost) / len(lost), rel=1e-3)
        assert epoch.train_accuracy == pytest.approx(right / len(order), abs=0.02)
    rights = expected.eval()(GRAPH.x, GRAPH.edge_index).argmax(1) == GRAPH.y
    assert epochs[-1].test_accuracy == pytest.approx(float(rights[GRAPH.test_mask].float().mean()), abs=0.06)


def links_of_one():
    children = [(node, node) for node in range(7)] + [(1, 0), (4, 0), (2, 1), (3, 1), (5, 4), (6, 4)]
    return torch.tensor(children).T


def test_the_rate_falls_as_torchs_scheduler_has_it_by_hand():
    class Rates:
        def __init__(self):
            self.rates = []

        def log(self, **_):
            self.rates.append(optimizers[-1].param_groups[0]["lr"])

    optimizers = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: optimizers.append(optimizer))
    recorder = Rates()
    settings = replace(PAPER, learning_rate=1e-6, epochs=50, trees=96)  # nothing gets better
    try:
        epochs = train(network(), GRAPH, settings, recorder).epochs
    finally:
        hook.remove()
    other = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1e-6)
    scheduler = ReduceLROnPlateau(other, mode="max", threshold_mode="abs", factor=0.5, patience=10)
    expected = []
    for epoch in epochs:
        scheduler.step(epoch.train_accuracy)
        expected.append(other.param_groups[0]["lr"])
    assert recorder.rates == expected
    assert len(epochs) == 21  # the first is the best
    assert expected[-1] == 5e-7


def test_it_ends_when_all_is_right():
    result = train(network(), GRAPH, replace(SETTINGS, epochs=300))
    assert result.converged
    assert [epoch.train_accuracy == 1 for epoch in result.epochs] == [False] * (len(result.epochs) - 1) + [True]


def test_an_experiment_on_trees_is_watched_like_any_other(tmp_path):
    state = torch.get_rng_state()
    experiment = replace(PAPER, lipschitz="paper", passes=2)
    bare, watched = run_experiment(experiment), run_experiment(experiment, folder=tmp_path / "run")
    assert watched == bare
    assert torch.equal(torch.get_rng_state(), state)
    run = gatdiag.load(tmp_path / "run")
    assert run.steps["train_accuracy"].dropna().iloc[-1] == bare.last_train_accuracy


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"data": "Cora"}, "trees=16 expects data to be tree"),
        ({"model": "sage", "heads": 1}, "of gcn, gat, gin, ggnn, got tree:depth=2 with sage"),
        ({"trees": -1}, "trees to be 0 or more"),
        ({"passes": 0}, "passes"),
        ({"trees": 0, "passes": 2}, "passes"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        replace(PAPER, **wrong)
