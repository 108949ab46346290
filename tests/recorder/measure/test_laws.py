"""delta, c and predicted c with several optimizers, in float64."""

from itertools import chain, pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop

import gatdiag
from tests.recorder.loops import Gat, graph

STEPS = 8


def mlp():
    return nn.Sequential(
        nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def gat():
    return Gat()


def parts(model, count):
    """The parameters in so many groups, by layer."""
    layers = [list(layer.parameters()) for layer in getattr(model, "convs", model)]
    layers = [layer for layer in layers if layer]
    bounds = [len(layers) * number // count for number in range(count + 1)]
    return [list(chain(*layers[start:end])) for start, end in pairwise(bounds)]


def biases(model):
    named = list(model.named_parameters())
    return [[p for name, p in named if "bias" not in name], [p for name, p in named if "bias" in name]]


def alternating(model):
    """The parameters of each law belong to different optimizers."""
    return [list(model.parameters())[start::2] for start in (0, 1)]


def groups(parameters):
    half = len(parameters) // 2
    return [
        {"params": parameters[:half], "lr": 0.03, "weight_decay": 0.1},
        {"params": parameters[half:], "lr": 0.07, "weight_decay": 0.0},
    ]


TOGETHER = {
    "one": lambda m: [SGD(m.parameters(), lr=0.05)],
    "two": lambda m: [SGD(part, lr=0.05) for part in parts(m, 2)],
    "three": lambda m: [SGD(part, lr=0.05) for part in parts(m, 3)],
    "two, two rates": lambda m: [SGD(part, lr=rate) for part, rate in zip(parts(m, 2), (0.02, 0.1), strict=True)],
    "sgd and adam": lambda m: [SGD(parts(m, 2)[0], lr=0.05), Adam(parts(m, 2)[1], lr=0.01)],
    "momentum, decay and adamw": lambda m: [
        SGD(parts(m, 3)[0], lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.05),
        AdamW(parts(m, 3)[1], lr=0.01, weight_decay=0.1),
        SGD(parts(m, 3)[2], lr=0.02, weight_decay=0.2),
    ],
    "groups": lambda m: [SGD(groups(part), lr=0.05, momentum=0.5) for part in parts(m, 2)],
    "biases": lambda m: [kind(part, lr=0.02) for kind, part in zip((SGD, Adam), biases(m), strict=True)],
    "alternating": lambda m: [SGD(part, lr=0.05, weight_decay=0.01) for part in alternating(m)],
    "a part at rest": lambda m: [SGD(part, lr=0.05) for part in parts(m, 3)[:2]],
}

ORDERS = {
    "as they are": lambda step, optimizers: optimizers,
    "reversed": lambda step, optimizers: optimizers[::-1] if step % 2 else optimizers,
    "the others every second time": lambda step, optimizers: optimizers if step % 2 else optimizers[:1],
    "in turn": lambda step, optimizers: [optimizers[step % len(optimizers)]],
}


def trained(folder, make_model, make, order=ORDERS["as they are"], between=lambda model: None, **options):
    torch.manual_seed(1)
    model, data = make_model().double(), graph()
    optimizers = make(model)
    with gatdiag.watch(model, folder, **options):
        for step in range(STEPS):
            args = (data.x.double(), data.edge_index) if isinstance(model, Gat) else (data.x.double(),)
            F.cross_entropy(model(*args), data.y).backward()
            for optimizer in order(step, optimizers):
                optimizer.step()
                between(model)
            model.zero_grad()
    return gatdiag.load(folder)


def check(run, least=1e-5):
    """c is as predicted, up to rounding errors, and moves by much more than that."""
    table = run.neurons[run.neurons.step > 0]
    assert run.steps.step.tolist() == list(range(STEPS))
    assert table.predicted_c.notna().all()
    scale = run.neurons.c.abs().max()
    assert (table.c - table.predicted_c).abs().max() < 1e-14 * scale
    assert run.neurons.delta.abs().max() < 1e-14
    by_step = run.neurons.pivot(index="step", columns="law", values="c")
    assert by_step.diff().abs().max().max() > least * scale


@pytest.mark.parametrize(
    ("name", "make_model"), [*((name, gat) for name in TOGETHER), ("three", mlp), ("groups", mlp), ("biases", mlp)]
)
def test_what_several_optimizers_make_of_c_is_predicted(tmp_path, make_model, name):
    check(trained(tmp_path / "run", make_model, TOGETHER[name]))


@pytest.mark.parametrize("order", [name for name in ORDERS if name != "as they are"])
@pytest.mark.parametrize("name", ["sgd and adam", "momentum, decay and adamw"])
def test_optimizers_may_step_in_any_order_and_not_always(tmp_path, name, order):
    check(trained(tmp_path / "run", gat, TOGETHER[name], ORDERS[order]))


def test_two_networks_in_one_model_that_are_trained_in_turn(tmp_path):
    """As with a generator and its critic: the first backward pass also reaches the second optimizer's parameters."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator, self.critic = mlp(), nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))

        def forward(self, x):
            return self.critic(self.generator(x))

    torch.manual_seed(0)
    model = Pair().double()
    mine, theirs = Adam(model.generator.parameters(), lr=0.01), SGD(model.critic.parameters(), lr=0.05, momentum=0.9)
    with gatdiag.watch(model, tmp_path / "run"):
        for step in range(STEPS // 2):
            noise = torch.randn(20, 5, dtype=torch.float64)
            (model(noise).square().mean() + step).backward()
            theirs.step()
            model.zero_grad()
            (-model(noise).mean()).backward()
            mine.step()
            model.zero_grad()
    check(gatdiag.load(tmp_path / "run"))


def test_gradients_that_are_scaled_between_two_optimizers_are_those_of_the_step(tmp_path):
    """As a gradient scaler does, which unscales the gradients of an optimizer just before its step."""
    used = []

    def shrink(model):
        first, second = parts(model, 2)
        if len(used) % 2 == 0:
            for parameter in second:
                parameter.grad.data.mul_(0.1)
        used.append([p.grad.norm().item() for p in (first[0], second[0])])

    run = trained(tmp_path / "run", mlp, TOGETHER["two"], between=shrink)
    inside = run.neurons[run.neurons.layer.isin(["0", "4"]) & (run.neurons.step > 0)]
    assert len(inside)
    assert inside.delta.abs().max() < 1e-14
    assert (inside.c - inside.predicted_c).abs().max() < 1e-14
    across = run.neurons[run.neurons.layer == "2"]
    assert (across.delta.abs() > 1e-6).any(), "a law across both has gradients of two scales"
    for number, name in enumerate(("0.weight", "4.weight")):
        norms = run.parameters[run.parameters.parameter == name].gradient_norm
        assert norms.tolist() == pytest.approx([norm[number] for norm in used[1::2]])
    total = run.parameters.groupby("step").gradient_norm.apply(lambda norms: norms.pow(2).sum() ** 0.5)
    assert run.steps.gradient_norm.tolist() == pytest.approx(total.tolist())


def test_recorded_steps_alone_are_predicted_where_the_one_before_is_seen(tmp_path):
    run = trained(tmp_path / "run", gat, TOGETHER["sgd and adam"], every=lambda step: step in (0, 3, 4, 7))
    by_step = run.neurons.set_index("step")
    assert (by_step.c - by_step.predicted_c).abs().max() < 1e-14
    assert by_step.predicted_c.groupby(level=0).count().gt(0).to_dict() == {0: False, 3: True, 4: True, 7: True}


@pytest.mark.parametrize("makes", ["unknown", "the same weights"])
def test_what_cannot_be_predicted_is_left_out_at_those_steps_and_noted(tmp_path, makes):
    def make(model):
        first, second = parts(model, 2)
        if makes == "unknown":
            return [SGD(first, lr=0.05), RMSprop(second, lr=0.01)]
        return [SGD(first, lr=0.05), SGD(second + first[:1], lr=0.05)]

    run = trained(tmp_path / "run", mlp, make, ORDERS["the others every second time"])
    by_step = run.neurons.set_index("step")
    assert (by_step.c - by_step.predicted_c).abs().max() < 1e-14
    found = by_step.predicted_c.groupby(level=0).count().gt(0)
    assert found.to_dict() == {step: step % 2 == 1 for step in range(STEPS)}
    why = "got RMSprop" if makes == "unknown" else "0.weight is updated by two optimizers"
    assert len([note for note in run.meta["notes"] if why in note]) == 1


def test_an_optimizer_of_what_is_in_no_law_spoils_no_prediction(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = mlp(), nn.Linear(3, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.body(x)))

    check(
        trained(
            tmp_path / "run",
            Scaled,
            lambda m: [SGD(m.body.parameters(), lr=0.05), RMSprop(m.head.parameters(), lr=0.01)],
        )
    )


def test_an_optimizer_that_takes_the_place_of_another_has_its_learning_rate(tmp_path):
    def fresh(step, optimizers):
        parameters = [parameter for group in optimizers[0].param_groups for parameter in group["params"]]
        return [SGD(parameters, lr=0.1 * (step + 1))]

    steps = trained(tmp_path / "run", mlp, TOGETHER["one"], fresh, metrics="fast").steps
    assert steps.learning_rate.tolist() == pytest.approx([0.1 * (step + 1) for step in range(STEPS)])
    assert "learning_rate_1" not in steps
