"""Gradient norms before clipping, for every way of clipping."""

import pytest
import torch
from torch import nn

import gatdiag
from tests.recorder.loops import Gat, gradient_norm, graph, loss_of, sgd


def by_data(parameters):
    for parameter in parameters:
        parameter.grad.data.clamp_(-1e-3, 1e-3)


def in_place(parameters):
    for parameter in parameters:
        parameter.grad *= 0.1


def replaced(parameters):
    for parameter in parameters:
        parameter.grad = parameter.grad * 0.1


CLIPS = {
    "norm": lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.01),
    "norm, loop": lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.01, foreach=False),
    "value": lambda parameters: nn.utils.clip_grad_value_(parameters, 1e-3),
    "data": by_data,
    "in place": in_place,
    "replaced": replaced,
    "foreach": lambda parameters: torch._foreach_mul_([parameter.grad for parameter in parameters], 0.1),
    "no_grad": torch.no_grad()(in_place),
}


def trained(
    folder, clip, clips_at, make_optimizer=lambda p: torch.optim.SGD(p, lr=0.1), every=1, passes=1, steps=6, **options
):
    """True norms before and after clipping, and the recorded steps."""
    torch.manual_seed(0)
    model, batches = Gat(), [graph(seed=seed) for seed in range(passes)]
    optimizer, before, after = make_optimizer(model.parameters()), [], []
    with gatdiag.watch(model, folder, every=every, law_search_seconds=0, **options):
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


@pytest.mark.parametrize("passes", [1, 2])
def test_where_layers_are_measured_more_rarely_than_steps_are_recorded(tmp_path, passes):
    before, after, steps = trained(
        tmp_path / "run", CLIPS["norm"], lambda step: True, passes=passes, steps=23, metrics="fast"
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


@pytest.mark.parametrize("name", ["data", "norm"])
def test_at_recorded_steps_alone_and_over_accumulated_passes(tmp_path, name):
    before, after, steps = trained(tmp_path / "run", CLIPS[name], lambda step: step % 4 == 3, every=3, passes=2)
    assert same(steps.gradient_norm.dropna(), after[::3])
    assert same(steps.gradient_norm_before_clipping.dropna(), before[::3])


def test_gradients_asked_for_after_clipping_are_not_taken_for_those_of_the_step(tmp_path):
    model, data = Gat(), graph()
    optimizer, before = sgd(model), []
    with gatdiag.watch(model, tmp_path / "run", law_search_seconds=0):
        for _ in range(3):
            loss_of(model, data).backward()
            before.append(gradient_norm(model))
            by_data(model.parameters())
            torch.autograd.grad(loss_of(model, data), list(model.parameters()))
            optimizer.step()
            optimizer.zero_grad()
    assert same(gatdiag.load(tmp_path / "run").steps.gradient_norm_before_clipping, before)


def test_two_losses_of_one_forward_pass_that_are_clipped(tmp_path):
    class Branched(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.heads = nn.Linear(4, 5), nn.ModuleList([nn.Linear(5, 2), nn.Linear(5, 3)])

        def forward(self, x):
            hidden = self.body(x).tanh()
            return [head(hidden) for head in self.heads]

    model, x = Branched(), torch.randn(6, 4)
    optimizers, before = [sgd(head) for head in model.heads], []
    with gatdiag.watch(model, tmp_path / "run", law_search_seconds=0):
        for _ in range(3):
            for output, optimizer in zip(model(x), optimizers, strict=True):
                model.zero_grad()
                output.square().sum().backward(retain_graph=True)
                before.append(gradient_norm(model))
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()
    assert same(gatdiag.load(tmp_path / "run").steps.gradient_norm_before_clipping, before)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("clips", [True, False])
def test_a_scaled_loss(tmp_path, given, fused, clips):
    torch.manual_seed(0)
    model, data = Gat(), graph()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=2)
    before, after = [], []
    with gatdiag.watch(model, tmp_path / "run", scaler=scaler if given else None, law_search_seconds=0):
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
    with gatdiag.watch(model, tmp_path / "run", law_search_seconds=0, warn=False) as recorder:
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


@pytest.mark.parametrize("scale", [1e-28, 1e25])
def test_gradients_whose_squares_are_out_of_range(tmp_path, scale):
    model, data = Gat(), graph()
    optimizer, before = torch.optim.SGD(model.parameters(), lr=0.1 / scale), []
    with gatdiag.watch(model, tmp_path / "run", law_search_seconds=0):
        for _ in range(3):
            (scale * loss_of(model, data)).backward()
            before.append(gradient_norm(model))
            in_place(model.parameters()) if scale < 1 else nn.utils.clip_grad_value_(model.parameters(), 0.02 * scale)
            optimizer.step()
            optimizer.zero_grad()
    assert same(gatdiag.load(tmp_path / "run").steps.gradient_norm_before_clipping, before)


def test_gradients_that_are_clipped_between_two_optimizers_of_a_step(tmp_path):
    model, data = Gat(), graph()
    optimizers = [sgd(conv) for conv in model.convs]
    before = []
    with gatdiag.watch(model, tmp_path / "run", law_search_seconds=0):
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


def test_complex_parameters_count_in_neither_norm(tmp_path):
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    model[0].turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))
    x, before = torch.randn(6, 5), []
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run", law_search_seconds=0):
        for _ in range(3):
            (model[1](model[0](x) * model[0].turn.abs()).square().sum() + model(x).sum()).backward()
            before.append(
                gradient_norm(nn.ModuleList([nn.ParameterList(p for p in model.parameters() if p.is_floating_point())]))
            )
            in_place(model.parameters())
            optimizer.step()
            optimizer.zero_grad()
    steps = gatdiag.load(tmp_path / "run").steps
    assert same(steps.gradient_norm_before_clipping, before)
    assert same(steps.gradient_norm, [0.1 * norm for norm in before])
