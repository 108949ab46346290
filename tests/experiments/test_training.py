import math
from dataclasses import replace

import pytest
import torch

from gatdiag.errors import InputError
from gatdiag.experiments.data import prepared_graph
from gatdiag.experiments.experiment import prepared_model
from gatdiag.experiments.models import gcn
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.synthetic import block_model
from gatdiag.experiments.training import Epoch, TrainingResult, accuracy, train

GRAPH = block_model(nodes=200, words=16)
SETTINGS = Experiment(learning_rate=0.5, epochs=6)


def network(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    return gcn(16, 4, hidden_channels=8, layers=2, dropout=dropout)


def by_hand(model, rate, decay, epochs):
    """Gradient descent on the mean negative log-likelihood, node by node."""
    nodes = GRAPH.train_mask.nonzero().flatten().tolist()
    for _ in range(epochs):
        log = model(GRAPH.x, GRAPH.edge_index).log_softmax(1)
        loss = -sum(log[node, GRAPH.y[node]] for node in nodes) / len(nodes)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight -= rate * (gradient + decay * weight)
        yield float(loss.detach())


def share(model, mask):
    guesses = model(GRAPH.x, GRAPH.edge_index).argmax(1).tolist()
    return sum(guesses[i] == int(GRAPH.y[i]) for i in range(200) if mask[i]) / int(mask.sum())


def test_it_is_gradient_descent():
    model, expected = network(), network()
    result = train(model, GRAPH, replace(SETTINGS, weight_decay=0.01))
    assert [epoch.loss for epoch in result.epochs] == pytest.approx([*by_hand(expected, 0.5, 0.01, 6)], rel=1e-4)
    for weight, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-3, atol=1e-5)


def test_adam_is_torchs():
    model, expected = network(), network()
    train(model, GRAPH, Experiment(optimizer="Adam", learning_rate=0.01, epochs=1))
    moved = [(a - b).abs().max() for a, b in zip(model.parameters(), expected.parameters(), strict=True)]
    assert [float(m.detach()) for m in moved] == pytest.approx([0.01, 0.01], rel=1e-3)


def test_accuracies_are_those_after_the_step():
    model = network()
    result = train(model, GRAPH, SETTINGS)
    masks = (GRAPH.train_mask, GRAPH.val_mask, GRAPH.test_mask)
    assert accuracy(model, GRAPH) == pytest.approx([share(model, mask) for mask in masks])
    last = result.epochs[-1]
    assert (last.train_accuracy, last.val_accuracy, last.test_accuracy) == accuracy(model, GRAPH)


def test_accuracies_are_without_dropout():
    model = network(dropout=0.9)
    assert accuracy(model, GRAPH) == accuracy(network(), GRAPH)
    assert model.training


def test_the_best_epoch_is_the_first_of_the_highest_validation_accuracy():
    numbers = [(0.2, 0.9), (0.7, 0.5), (0.6, 0.8), (0.7, 0.6)]
    result = TrainingResult(tuple(Epoch(1.0, 0.0, val, test) for val, test in numbers), converged=False)
    assert result.best_epoch == 1


def test_it_stops_below_the_threshold():
    losses = [epoch.loss for epoch in train(network(), GRAPH, SETTINGS).epochs]
    result = train(network(), GRAPH, replace(SETTINGS, stop_below=losses[2] + 1e-6))
    assert result.converged
    assert [epoch.loss for epoch in result.epochs] == losses[:3]
    assert not train(network(), GRAPH, SETTINGS).converged


def test_dropout_repeats_by_seed_and_the_random_state_stays():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = (
        train(model, GRAPH, replace(SETTINGS, seed=seed)).epochs
        for model, seed in zip([network(dropout=0.5) for _ in range(3)], (1, 1, 2), strict=True)
    )
    torch.set_rng_state(state)
    train(network_without_drawing(), GRAPH, SETTINGS)
    assert torch.equal(torch.get_rng_state(), state)
    assert first == again
    assert first != other


def network_without_drawing():
    with torch.random.fork_rng():
        return network(dropout=0.5)


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"optimizer": "Adadelta"}, {"learning_rate": -1.0}, {"seed": -1}, {"seed": 2**63}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong)).replace("_", " ")):
        replace(SETTINGS, **wrong)


def test_the_largest_seed_is_taken():
    settings = replace(SETTINGS, seed=2**63 - 1, epochs=1)
    assert len(train(network(), GRAPH, settings).epochs) == 1


def test_the_mode_of_the_model_stays():
    model = network(dropout=0.5).eval()
    accuracy(model, GRAPH)
    assert not model.training
    train(model, GRAPH, SETTINGS)
    assert model.training


def test_recorder_and_progress_hear_of_each_epoch():
    class Recorder:
        def __init__(self):
            self.heard = []

        def log(self, **scalars):
            self.heard.append(scalars)

    recorder, heard = Recorder(), []
    result = train(network(), GRAPH, SETTINGS, recorder, lambda number, epoch: heard.append((number, epoch)))
    assert recorder.heard == [vars(epoch) for epoch in result.epochs]
    assert heard == [*enumerate(result.epochs)]
    assert all(math.isfinite(value) for value in recorder.heard[0].values())


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "gatv2", "heads": 2, "schedule": "plateau", "learning_rate": 3.0},
        {"model": "gcn", "weight_norm": 2.0, "residual": True, "norm": "layernorm"},
        {"model": "deep-gat", "lipschitz": "paper", "norm": "pairnorm", "optimizer": "Adam"},
        {"model": "transformer", "stop_below": 1.3},
    ],
)
def test_one_pass_for_evaluation_and_the_next_step_changes_no_number(settings):
    experiment = Experiment(layers=3, width=8, data="csbm:nodes=100,features=8", epochs=12, **settings)
    assert not experiment.has_modes
    graph = prepared_graph(experiment.data)
    found = []
    for has_modes in (True, False):
        model = prepared_model(experiment, graph)
        calls = []
        model.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        found.append((train(model, graph, experiment, has_modes=has_modes), [*model.parameters()], len(calls)))
    (twice, weights, many), (once, others, few) = found
    assert once == twice
    assert all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))
    assert (many, few) == (2 * len(once.epochs), len(once.epochs) + 1)


@pytest.mark.parametrize("setting", [{"dropout": 0.1}, {"attention_dropout": 0.1}, {"norm": "batchnorm"}])
def test_dropout_and_batch_norm_have_modes(setting):
    assert Experiment(**setting).has_modes


def test_the_rate_falls_as_torchs_scheduler_has_it_by_hand():
    """A rate that is too large, so that the validation loss soon gets worse, and a loop of its own."""
    settings = Experiment(optimizer="SGD", learning_rate=30.0, epochs=40, stop_below=0, schedule="plateau")
    model, expected = network(), network()
    losses = [epoch.loss for epoch in train(model, GRAPH, settings).epochs]
    optimizer = torch.optim.SGD(expected.parameters(), lr=30.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=10)
    mask, val = GRAPH.train_mask, GRAPH.val_mask
    for loss in losses:
        own = torch.nn.functional.cross_entropy(expected(GRAPH.x, GRAPH.edge_index)[mask], GRAPH.y[mask])
        optimizer.zero_grad()
        own.backward()
        optimizer.step()
        log = expected(GRAPH.x, GRAPH.edge_index)[val].log_softmax(1)
        scheduler.step(float(-log.gather(1, GRAPH.y[val, None]).mean().detach()))
        assert loss == pytest.approx(float(own.detach()), rel=1e-5)
    assert optimizer.param_groups[0]["lr"] < 30.0
    assert losses != [epoch.loss for epoch in train(network(), GRAPH, replace(settings, schedule="constant")).epochs]
