"""Gradient norms before clipping, for every way of clipping."""

import pytest
import torch
from torch import nn

import gatdiag
from tests.recorder.loops import Gat, gradient_norm, graph, loss_of, sgd


def by_data(parameters):
    for parameter in parameters:
        parameter.grad.data.clamp_(-1e-3, 1e-3)


def replaced(parameters):
    for parameter in parameters:
        parameter.grad = parameter.grad * 0.1


CLIPS = {
    "norm": lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.01),
    "data": by_data,
    "replaced": replaced,
}


def trained(
    folder, clip, clips_at, make_optimizer=lambda p: torch.optim.SGD(p, lr=0.1), every=1, passes=1, steps=6, **options
):
    """True norms before and after clipping, and the recorded steps."""
    torch.manual_seed(0)
    model, batches = Gat(), [graph(seed=seed) for seed in range(passes)]
    optimizer, before, after = make_optimizer(model.parameters()), [], []
    with gatdiag.watch(model, folder, every=every, laws=False, **options):
        for step in range(steps):
            for batch in batches:
                loss_of(model, batch).backward()
            before.append(gradient_norm(model))
            if clips_at(step):
                clip(list(model.parameters()))
            after.append(gradient_norm(model))
            optimizer.step()
            optimizer.zero_grad()
    return before, after, gatdiag.load(folder).steps


def same(recorded, expected):
    return recorded.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", CLIPS)
def test_the_norm_before_clipping_is_known_at_each_step(tmp_path, name):
    before, after, steps = trained(tmp_path / "run", CLIPS[name], lambda step: step % 2 == 1)
    assert min(after) < 0.5 * max(before), "nothing was clipped"
    assert same(steps.gradient_norm, after)
    assert same(steps.gradient_norm_before_clipping, before)


def test_where_layers_are_measured_more_rarely_than_steps_are_recorded(tmp_path):
    before, after, steps = trained(
        tmp_path / "run", CLIPS["norm"], lambda step: True, passes=2, steps=23, metrics="fast"
    )
    assert gatdiag.load(tmp_path / "run").layers.step.unique().tolist() == [0, 10, 20]
    assert same(steps.gradient_norm, after)
    assert same(steps.gradient_norm_before_clipping, before)


class Odd(nn.Module):
    """Its first layer reaches the loss in unusual ways, or not at all."""

    def __init__(self, way):
        super().__init__()
        self.first, self.last, self.way, self.aside = nn.Linear(4, 5), nn.Linear(5, 2), way, None

    def forward(self, x):
        hidden = self.first(x)
        if self.way == "aside":
            self.aside, hidden = hidden.square().mean(), torch.ones(len(x), 5)
        out = self.last(hidden.detach() if self.way != "in a row" else hidden)
        return {"first": hidden, "other": [out]} if self.way == "second output" else out


@pytest.mark.parametrize("way", ["in a row", "detached", "aside", "second output"])
def test_a_first_layer_that_the_gradient_does_not_come_back_to(tmp_path, way):
    model, x, before = Odd(way), torch.randn(6, 4), []
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run", every=1, metrics="fast", warn=False):
        for _ in range(4):
            optimizer.zero_grad()
            out = model(x)
            if model.aside is not None:
                model.aside.backward()
            (out["other"][0] if isinstance(out, dict) else out).square().mean().backward()
            before.append(gradient_norm(model))
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
    assert same(gatdiag.load(tmp_path / "run").steps.gradient_norm_before_clipping, before)


def test_at_recorded_steps_alone_and_over_accumulated_passes(tmp_path):
    before, after, steps = trained(tmp_path / "run", by_data, lambda step: step % 4 == 3, every=3, passes=2)
    assert same(steps.gradient_norm.dropna(), after[::3])
    assert same(steps.gradient_norm_before_clipping.dropna(), before[::3])


def test_gradients_asked_for_after_clipping_are_not_taken_for_those_of_the_step(tmp_path):
    model, data = Gat(), graph()
    optimizer, before = sgd(model), []
    with gatdiag.watch(model, tmp_path / "run", laws=False):
        for _ in range(3):
            loss_of(model, data).backward()
            before.append(gradient_norm(model))
            by_data(model.parameters())
            torch.autograd.grad(loss_of(model, data), list(model.parameters()))
            optimizer.step()
            optimizer.zero_grad()
    assert same(gatdiag.load(tmp_path / "run").steps.gradient_norm_before_clipping, before)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("clips", [True, False])
def test_a_scaled_loss(tmp_path, fused, clips):
    torch.manual_seed(0)
    model, data = Gat(), graph()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=2)
    before, after = [], []
    with gatdiag.watch(model, tmp_path / "run", laws=False):
        for step in range(6):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, data)).backward()
            before.append(gradient_norm(model) / scaler.get_scale())
            if clips and step % 2:
                scaler.unscale_(optimizer)
                by_data(model.parameters())
                after.append(gradient_norm(model))
            else:
                after.append(before[-1])
            scaler.step(optimizer)
            scaler.update()
    steps = gatdiag.load(tmp_path / "run").steps
    assert same(steps.gradient_norm, after)
    assert same(steps.gradient_norm_before_clipping, before)


@pytest.mark.parametrize("scales", [True, False])
def test_clipping_of_a_scaled_loss_is_to_follow_unscaling(tmp_path, scales):
    torch.manual_seed(0)
    model, data = Gat(), graph()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", enabled=scales)
    with gatdiag.watch(model, tmp_path / "run", laws=False, warn=False) as recorder:
        for _ in range(30):
            optimizer.zero_grad()
            loss = loss_of(model, data)
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            scaler.step(optimizer)
            scaler.update()
            recorder.log(loss=loss)
    diagnosis = gatdiag.diagnose(tmp_path / "run")
    remedy = next(finding.remedy for finding in diagnosis if finding.code == "clipping-too-tight")
    assert ("scaler.unscale_(optimizer)" in remedy) == scales


def test_gradients_that_are_clipped_between_two_optimizers_of_a_step(tmp_path):
    model, data = Gat(), graph()
    optimizers = [sgd(conv) for conv in model.convs]
    before = []
    with gatdiag.watch(model, tmp_path / "run", laws=False):
        for _ in range(3):
            loss_of(model, data).backward()
            before.append(gradient_norm(model))
            for conv, optimizer in list(zip(model.convs, optimizers, strict=True))[::-1]:
                if conv is not model.convs[2]:
                    nn.utils.clip_grad_norm_(conv.parameters(), 1e-3)
                optimizer.step()
            model.zero_grad()
    steps = gatdiag.load(tmp_path / "run").steps
    assert same(steps.gradient_norm_before_clipping, before)
    assert (steps.gradient_norm < steps.gradient_norm_before_clipping).all()
