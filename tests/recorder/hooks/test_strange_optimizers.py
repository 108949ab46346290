"""Optimizers without parameters of the model: they train nothing, or another model."""

import copy
import warnings

import pytest
import torch
from torch import nn

import gatdiag
from gatdiag.recorder import RecordingWarning
from tests.recorder.loops import Gat, graph, loss_of, sgd

STEPS = 5


def of_a_model_that_was_replaced():
    optimizer = torch.optim.Adam(Gat().parameters(), lr=0.01)
    return Gat(), optimizer


def of_a_copy():
    model = Gat()
    return model, torch.optim.SGD(copy.deepcopy(model).parameters(), lr=0.1, momentum=0.9)


def of_a_model_that_was_trained():
    old, data = Gat(), graph()
    optimizer = torch.optim.SGD(old.parameters(), lr=0.1)
    loss_of(old, data).backward()
    optimizer.step()
    return Gat(), optimizer


def messages(caught):
    return [str(item.message) for item in caught if issubclass(item.category, RecordingWarning)]


@pytest.mark.parametrize(
    ("make", "zeroes", "given"),
    [
        (of_a_model_that_was_replaced, "the model", True),
        (of_a_copy, "zeros", False),
        (of_a_model_that_was_trained, "none", False),
    ],
)
def test_a_training_that_moves_nothing_is_recorded_as_any_other(tmp_path, make, zeroes, given):
    torch.manual_seed(0)
    (model, optimizer), data, losses = make(), graph(), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with gatdiag.watch(model, tmp_path / "run", optimizer=optimizer if given else None) as recorder:
            for _ in range(STEPS):
                optimizer.zero_grad(set_to_none=zeroes == "none")
                if zeroes == "the model":
                    model.zero_grad()
                loss = loss_of(model, data)
                loss.backward()
                optimizer.step()
                recorder.log(loss=loss)
                losses.append(loss.item())
    run = gatdiag.load(tmp_path / "run")
    assert run.steps.step.tolist() == list(range(STEPS))
    assert run.steps.loss.tolist() == pytest.approx(losses)
    assert run.steps.gradient_norm.gt(0).all()
    assert run.steps.learning_rate.notna().all()
    assert run.layers.groupby("step").size().tolist() == [3] * STEPS
    assert run.layers.output_gradient_norm.notna().all()
    assert (run.parameters.update_ratio.dropna() == 0).all()
    assert (run.parameters.unchanged_fraction == 1).all()
    assert (run.parameters.groupby("step").gradient_norm.max() > 0).all()
    assert run.neurons.delta.abs().max() < 1e-4
    later = run.neurons[run.neurons.step > 0]
    assert (later.c == later.predicted_c).all()
    assert run.meta["optimizers"][0]["class"] == type(optimizer).__name__
    assert len([text for text in messages(caught) if "holds none of the model's parameters" in text]) == 1
    assert len(messages(caught)) == 1


def test_a_step_with_a_closure_is_one_too(tmp_path):
    (model, optimizer), data = of_a_model_that_was_replaced(), graph()

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, data)
        loss.backward()
        return loss

    with pytest.warns(RecordingWarning, match="holds none"), gatdiag.watch(model, tmp_path / "run", every=2):
        for _ in range(STEPS):
            optimizer.step(closure)
    run = gatdiag.load(tmp_path / "run")
    assert run.parameters.step.unique().tolist() == [0, 2, 4]
    assert run.layers.step.unique().tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("detached", "critic_steps", "first", "zeroes"),
    [
        (True, 3, "generator", False),
        (False, 1, "critic", True),
    ],
)
def test_the_critics_steps_are_none_of_the_generators(tmp_path, detached, critic_steps, first, zeroes):
    torch.manual_seed(0)
    generator, critic = nn.Linear(3, 5), nn.Linear(5, 1)
    mine, theirs = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())

    def train_critic():
        for _ in range(critic_steps):
            theirs.zero_grad(set_to_none=zeroes)
            fake = generator(torch.randn(4, 3))
            critic(fake.detach() if detached else fake).mean().backward()
            theirs.step()

    def train_generator():
        mine.zero_grad(set_to_none=zeroes)
        (-critic(generator(torch.randn(4, 3))).mean()).backward()
        mine.step()

    rounds = (train_critic, train_generator) if first == "critic" else (train_generator, train_critic)
    with gatdiag.watch(generator, tmp_path / "run", metrics="fast"):
        for _ in range(STEPS):
            for train in rounds:
                train()
    run = gatdiag.load(tmp_path / "run")
    assert run.steps.step.tolist() == list(range(STEPS))
    assert run.steps.learning_rate.notna().all()
    assert run.parameters.groupby("step").update_ratio.min().gt(0).all()
    assert not run.meta["notes"]
    assert len(run.meta["optimizers"]) == 1


def test_an_optimizer_without_gradients_that_steps_with_the_models_own_is_no_step(tmp_path):
    """As with the heads of other tasks, whose losses are not in this batch."""
    model, data = Gat(), graph()
    idle = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.5)
    own = sgd(model)
    with gatdiag.watch(model, tmp_path / "run", metrics="fast"):
        for _ in range(STEPS):
            loss_of(model, data).backward()
            for optimizer in (idle, own):
                optimizer.step()
                optimizer.zero_grad()
    run = gatdiag.load(tmp_path / "run")
    assert run.steps.step.tolist() == list(range(STEPS))
    assert run.steps.learning_rate.tolist() == [0.1] * STEPS
    assert "learning_rate_1" not in run.steps
    assert (run.parameters.groupby("step").update_ratio.max() > 0).all()
    assert not run.meta["notes"]
    assert len(run.meta["optimizers"]) == 1


@pytest.mark.parametrize("frozen", [True, False])
def test_the_head_of_a_network_that_is_not_trained_makes_no_steps(tmp_path, frozen):
    model, data, head = Gat(), graph(), nn.Linear(3, 3)
    model.requires_grad_(not frozen)
    optimizer = sgd(head)
    with (
        pytest.warns(RecordingWarning, match="no step of an optimizer"),
        gatdiag.watch(model, tmp_path / "run", metrics="fast"),
    ):
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(model(data.x, data.edge_index)), data.y).backward()
            optimizer.step()
    assert len(gatdiag.load(tmp_path / "run").steps) == 0


def test_once_the_models_own_optimizer_steps_no_other_does(tmp_path):
    (model, stale), data = of_a_copy(), graph()
    own = sgd(model)
    with pytest.warns(RecordingWarning, match="holds none"), gatdiag.watch(model, tmp_path / "run", metrics="fast"):
        for step in range(STEPS):
            model.zero_grad()
            loss_of(model, data).backward()
            (stale if step < 2 else own).step()
            if step >= 2:
                stale.step()
    run = gatdiag.load(tmp_path / "run")
    assert run.steps.step.tolist() == list(range(STEPS))
    moved = run.parameters.groupby("step").update_ratio.max() > 0
    assert moved.tolist() == [False, False, True, True, True]
