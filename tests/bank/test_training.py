"""Trainings: the loop, the yardstick, what is planted in them."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import gatdiag
from tests.bank import tasks
from tests.bank.network import make_network
from tests.bank.recipe import Recipe
from tests.bank.training import OPTIMIZED, Training, train

SMALL = Recipe(width=8, steps=6, optimizer="SGD", lr=0.5)


def test_a_plain_training_is_gradient_descent(tmp_path):
    """The loop against one written out: the same losses, to the bit."""
    train(SMALL, tmp_path / "run")
    task = tasks.make_task(SMALL)
    torch.manual_seed(SMALL.seed)
    tasks.make_task(SMALL)
    model = make_network(SMALL, 32, 4)
    losses = []
    for _ in range(SMALL.steps):
        loss = F.cross_entropy(model(task.x, task.edge_index)[task.is_training], task.y[task.is_training])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.5 * gradient
        losses.append(loss.item())
    assert gatdiag.load(tmp_path / "run").steps["loss"].tolist() == losses


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"task": "graphs", "batch": 5, "layer": "gin"},
        {"task": "links", "layer": "mlp", "dropout": 0.5, "optimizer": "AdamW", "lr": 0.01},
        {"resumed": True, "schedule": "warm-up", "clip": 0.1},
    ],
)
def test_equal_recipes_give_equal_runs(tmp_path, change):
    recipe = replace(SMALL, **change)
    state = torch.get_rng_state()
    first = train(recipe, tmp_path / "first")
    torch.manual_seed(5)
    assert repr(train(recipe, tmp_path / "second")) == repr(first)
    torch.set_rng_state(state)
    runs = [gatdiag.load(tmp_path / name) for name in ("first", "second")]
    for table in ("steps", "layers", "parameters", "neurons"):
        one, other = (getattr(run, table).drop(columns="time", errors="ignore") for run in runs)
        assert one.equals(other), table
    assert len(runs[0].steps) == recipe.steps


def test_the_yardstick_is_the_share_of_the_loss_that_was_removed(tmp_path):
    """Against the loss by hand, whatever the training minimized."""
    recipe = replace(SMALL, output="softmax", steps=40)
    outcome = train(recipe, tmp_path / "run")
    task = tasks.make_task(recipe)
    model = make_network(replace(recipe, output="logits"), 32, 4)
    weights = gatdiag.load(tmp_path / "run").snapshot("final")
    model.load_state_dict({name: torch.as_tensor(value) for name, value in weights.items()})
    log = model(task.x, task.edge_index).detach().log_softmax(1)
    nodes = task.is_training.nonzero().flatten().tolist()
    loss = -sum(float(log[node, task.y[node]]) for node in nodes) / len(nodes)
    assert outcome.train == pytest.approx(1 - loss / math.log(4), abs=1e-5)


def test_drift_is_how_far_c_went(tmp_path):
    outcome = train(SMALL, tmp_path / "run")
    run = gatdiag.load(tmp_path / "run")
    before, after = (run.neurons[run.neurons["step"] == step]["c"].to_numpy() for step in (0, SMALL.steps - 1))
    assert outcome.drift == pytest.approx(abs(after - before).sum(), rel=1e-9)


@pytest.mark.parametrize("part", [*OPTIMIZED])
def test_what_the_optimizer_is_given(part):
    torch.manual_seed(0)
    model = Training(replace(SMALL, depth=3, optimizes=part)).make_model()
    all_of_it = {id(parameter) for parameter in model.parameters()}
    given = {id(parameter) for parameter in OPTIMIZED[part](model)}
    now = {id(parameter) for parameter in model.parameters()}
    trained = {
        "all": all_of_it,
        "last": {id(parameter) for parameter in model.encoder.convs[-1].parameters()},
        "biases": {id(conv.bias) for conv in model.encoder.convs},
        "of a copy": set(),
        "before rebuilding": {id(parameter) for parameter in model.encoder.convs[-1].parameters()},
        "layers in a list": {id(parameter) for parameter in model.encoder.convs[-1].parameters()},
    }
    assert given & {*now, *(id(p) for conv in model.encoder.convs for p in conv.parameters())} == trained[part]
    task = tasks.make_task(SMALL)
    assert model(task.x, task.edge_index).requires_grad


def test_an_unwatched_training_is_that_of_its_recipe(tmp_path):
    recipe = replace(SMALL, steps=12, dropout=0.5, batch=20, seed=3)
    whole = train(recipe, tmp_path / "run")
    training = Training(recipe)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = training.make_model()
        losses = [scalars["loss"] for scalars in training.run_steps(model, training.make_optimizer(model))]
        outcome = training.evaluate(model)
    assert losses == gatdiag.load(tmp_path / "run").steps["loss"].tolist()
    assert (outcome.train, outcome.val) == (whole.train, whole.val)
