"""preflight(): what is said of networks before they train, and that nothing of the user's is touched."""

import copy
import math
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch_geometric.nn import GATConv, SAGEConv

import gatdiag
from gatdiag.diagnosis import BEFORE_TRAINING, CAUSES
from gatdiag.errors import InputError, ModelError
from gatdiag.experiments.data import load_graph
from gatdiag.experiments.models import gat
from gatdiag.remedies import initialize_

Y = torch.arange(60) % 3
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) + 2 * F.one_hot(Y, 4)


def cross_entropy(out):
    return F.cross_entropy(out, Y)


def perceptron(*behind, width=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3), *behind)


def adam(model, lr=0.01):
    return torch.optim.Adam(model.parameters(), lr=lr)


def verdict_on(model, x=X, loss=cross_entropy, **others):
    return gatdiag.preflight(model, x, loss=loss, **others).verdict


# --- what is said -----------------------------------------------------------------------------------------------------


def scaled(model, factor):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model


def without_gradient():
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.last(self.first(x).relu().detach())

    return Detached()


def dead():
    model = perceptron()
    nn.init.constant_(model[0].bias, -100.0)
    return model


class OverRows(nn.Module):
    """Divides each column by its norm, where each row is meant."""

    def forward(self, x):
        return x / x.norm(dim=0, keepdim=True) * len(x) ** 0.5


def deep(depth=30):
    torch.manual_seed(0)
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(8, 8), nn.Sigmoid())]
    return nn.Sequential(nn.Linear(4, 8), *hidden, nn.Linear(8, 3))


def regression():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))


FAULTS = {
    "input-nonfinite": (perceptron, {"x": X.log()}),
    "input-scale": (perceptron, {"x": 1e4 * X}),
    "input-constant": (perceptron, {"x": torch.ones_like(X)}),
    "init-too-large": (lambda: scaled(perceptron(), 100), {}),
    "init-too-small": (lambda: scaled(perceptron(), 1e-3), {}),
    "depth-vanishing-gradient": (deep, {}),
    "dead-units": (dead, {}),
    "output-softmax-twice": (lambda: perceptron(nn.Softmax(1)), {}),
    "output-softmax-over-nodes": (lambda: perceptron(nn.LogSoftmax(0)), {"loss": lambda out: F.nll_loss(out, Y)}),
    "output-relu": (lambda: perceptron(nn.ReLU()), {}),
    "wrong-axis": (lambda: nn.Sequential(OverRows(), *perceptron()), {}),
    "loss-broadcast": (regression, {"loss": lambda out: (out - Y).square().mean()}),
    "no-training-signal": (perceptron, {"loss": lambda out: 0 * cross_entropy(out)}),
    "parameters-without-gradient": (without_gradient, {}),
    "nonfinite-operation": (perceptron, {"loss": lambda out: cross_entropy(out) + (0 * out).sqrt().sum()}),
}


@pytest.mark.parametrize(
    ("cause", "has_optimizer"), [*((cause, True) for cause in FAULTS), ("dead-units", False), ("loss-broadcast", False)]
)
def test_a_cause_that_exists_before_training_is_named(cause, has_optimizer):
    make, given = FAULTS[cause]
    model = make()
    verdict = verdict_on(model, **given, optimizer=adam(model) if has_optimizer else None)
    assert (verdict.code, verdict.is_cause) == (cause, True)
    assert verdict.severity in ("error", "warning")


@pytest.mark.parametrize("cause", [cause for cause in FAULTS if cause.startswith(("init", "depth", "rank", "dead"))])
def test_the_severity_of_what_is_there_before_training_does_not_depend_on_the_optimizer(cause):
    make, given = FAULTS[cause]
    model = make()
    one, other = (verdict_on(model, **given, optimizer=each) for each in (adam(model), None))
    assert (one.code, one.severity) == (other.code, other.severity)


@pytest.mark.parametrize("is_faulty", [True, False])
def test_messages_that_carry_nothing_of_the_neighbors_are_named(is_faulty):
    class OfTheNode(SAGEConv):
        def message(self, x_i, x_j):
            return x_i if is_faulty else x_j

    torch.manual_seed(0)
    model, edges = OfTheNode(4, 3), torch.randint(60, (2, 300))
    verdict = gatdiag.preflight(model, X, edges, loss=cross_entropy).verdict
    assert (verdict.code, verdict.severity) == (
        ("input-without-messages", "warning") if is_faulty else ("healthy", "note")
    )


def test_a_network_in_which_nothing_is_wrong_is_healthy():
    model = perceptron()
    diagnosis = gatdiag.preflight(model, X, loss=cross_entropy, optimizer=adam(model))
    assert (diagnosis.findings, diagnosis.state) == ((), "untrained")
    assert diagnosis.verdict.text == "Nothing was found that would keep the network from training."
    assert {code for code, why in diagnosis.skipped.items() if why == "it shows only during training"} == {
        *(code for code, one in CAUSES.items() if one.check)
    } - BEFORE_TRAINING


def test_without_an_optimizer_it_is_said_that_it_was_not_judged():
    diagnosis = gatdiag.preflight(perceptron(), X, loss=cross_entropy)
    assert {"lr-too-large", "parameters-not-in-optimizer"} <= {*diagnosis.skipped}
    assert "give it, too (optimizer= or --optimizer)" in diagnosis.verdict.text


@pytest.mark.parametrize(("lr", "code"), [(0.5, "healthy"), (500.0, "lr-too-large")])
def test_steps_that_replace_the_weights_are_a_rate_that_is_too_large(lr, code):
    model = perceptron()
    verdict = verdict_on(model, optimizer=torch.optim.SGD(model.parameters(), lr=lr))
    assert verdict.code == code


def test_the_evidence_on_the_learning_rate_is_that_of_the_step_made_by_hand():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=500.0)
    (measured, *_) = verdict_on(model, optimizer=optimizer).evidence
    before = [parameter.detach().clone() for parameter in model.parameters()]
    cross_entropy(model(X)).backward()
    optimizer.step()
    moved = sum(float((new - old).detach().square().sum()) for new, old in zip(model.parameters(), before, strict=True))
    assert measured.value == pytest.approx(
        math.sqrt(moved / sum(float(old.square().sum()) for old in before)), rel=1e-4
    )


def test_an_optimizer_that_was_made_for_another_model_is_found():
    verdict = verdict_on(perceptron(), optimizer=adam(perceptron()))
    assert verdict.code == "parameters-not-in-optimizer"


@pytest.mark.parametrize(("scheme", "code"), [("xavier", "init-unbalanced"), ("balanced_orthogonal", "healthy")])
def test_the_deep_attention_network_of_the_demo_is_told_from_its_balanced_twin(scheme, code):
    graph = load_graph("sbm")
    torch.manual_seed(0)
    model = gat(graph.num_features, 4)
    initialize_(model, scheme)
    verdict = gatdiag.preflight(
        model,
        graph.x,
        graph.edge_index,
        loss=lambda out: F.cross_entropy(out[graph.train_mask], graph.y[graph.train_mask]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    ).verdict
    assert verdict.code == code


class AttentionWithELU(nn.Module):
    def __init__(self, columns, depth):
        super().__init__()
        widths = [columns, *[32] * (depth - 1), 4]
        self.convs = nn.ModuleList(GATConv(*pair) for pair in pairwise(widths))

    def forward(self, x, edge_index):
        for conv in self.convs[:-1]:
            x = F.elu(conv(x, edge_index))
        return self.convs[-1](x, edge_index)


@pytest.mark.parametrize(("depth", "code"), [(20, "init-unbalanced"), (10, "healthy")])
def test_a_deep_attention_network_without_laws_is_judged_by_norms(depth, code):
    """With ELU no c is conserved: of a loss of 1.39 ten layers leave 0.6 in 400 steps, and twenty layers 1.3."""
    torch.manual_seed(0)
    y = torch.randint(4, (300,))
    edges = (torch.rand(300, 300) < torch.where(y[:, None] == y, 0.03, 0.004)).triu(1).nonzero().T
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    x = F.normalize(0.5 * torch.randn(4, 64)[y] + torch.randn(300, 64))
    torch.manual_seed(1)
    model = AttentionWithELU(64, depth)
    initialize_(model, "xavier")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    verdict = verdict_on(model, x, lambda out: F.cross_entropy(out, y), edge_index=edges, optimizer=optimizer)
    assert verdict.code == code
    assert code == "healthy" or (verdict.severity == "warning" and "no laws" in verdict.text)


def test_a_deep_network_that_learns_at_once_is_not_accused():
    torch.manual_seed(0)
    layers = [layer for _ in range(9) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), *layers, nn.Linear(64, 3))
    assert verdict_on(model, optimizer=adam(model, 0.003)).code == "healthy"


def test_frozen_parameters_are_a_note():
    model = perceptron()
    model[0].requires_grad_(False)
    verdict = verdict_on(model, optimizer=adam(model))
    assert (verdict.code, verdict.severity) == ("parameters-without-gradient", "note")


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_a_weight_that_its_layer_leaves_unused_is_a_note(has_optimizer):
    model = perceptron()
    model[0].unused = nn.Parameter(torch.randn(16, 4))
    verdict = verdict_on(model, optimizer=adam(model) if has_optimizer else None)
    assert (verdict.code, verdict.severity) == ("parameters-without-gradient", "note")


def test_a_batch_that_is_seen_again_has_no_more_labels():
    model, x, y = nn.Linear(4, 1), X[:16], torch.zeros(16, 1)
    loss = F.binary_cross_entropy_with_logits
    assert verdict_on(model, x, lambda out: loss(out, y), optimizer=adam(model)).code == "healthy"


# --- nothing is touched -----------------------------------------------------------------------------------------------


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_model_optimizer_inputs_and_random_states_stay_bit_for_bit(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    optimizer = OPTIMIZERS[kind](list(model.parameters()))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    calls, x = [], X.clone().requires_grad_()
    model[0].register_forward_hook(lambda *_: calls.append("forward"))
    optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    value = cross_entropy(model(x))
    value.backward()
    optimizer.step(lambda: value)
    scheduler.step()

    def state():
        gradients = [tensor.grad.clone() for tensor in (*model.parameters(), x)]
        everything = (model.state_dict(), optimizer.state_dict(), gradients, x, len(calls), model.training)
        drawn = torch.get_rng_state(), repr((random.getstate(), np.random.get_state()))  # noqa: NPY002
        return copy.deepcopy((everything, drawn[0])), drawn[1]

    before, gradients = state(), [tensor.grad for tensor in (*model.parameters(), x)]

    def loss(out):  # it draws numbers, and looks at the user's own model
        penalty = sum(parameter.square().sum() for parameter in model.parameters())
        return cross_entropy(out + 0.01 * torch.randn_like(out)) + 0.01 * penalty

    gatdiag.preflight(model, x, loss=loss, optimizer=optimizer)
    after = state()
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=0, equal_nan=True)
    assert after[1] == before[1]
    assert all(tensor.grad is old for tensor, old in zip((*model.parameters(), x), gradients, strict=True))
    assert not nn.modules.module._global_forward_hooks
    assert not _global_optimizer_pre_hooks


def test_the_answer_is_the_same_each_time():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    ones = [gatdiag.preflight(model, 1e3 * X, loss=cross_entropy, optimizer=adam(model)) for _ in range(2)]
    assert ones[0] == ones[1]


# --- bad input --------------------------------------------------------------------------------------------------------


class Returning(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.net, self.form = perceptron(), form

    def forward(self, x):
        return self.form(self.net(x))


def failing(*_):
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("model", "given", "error", "says"),
    [
        (Returning(failing), {}, KeyError, "mine"),
        (perceptron(), {"loss": failing}, KeyError, "mine"),
        (perceptron(), {"x": X.to("meta")}, RuntimeError, "device"),
        (perceptron(), {"x": X[:, :3]}, RuntimeError, "shapes cannot be multiplied"),
        (perceptron(), {"loss": None}, InputError, "loss= expects a function"),
        (perceptron(), {"loss": lambda out: out}, InputError, r"one element, got shape \(60, 3\)"),
        (perceptron(), {"loss": lambda out: cross_entropy(out).item()}, InputError, "one element, got float"),
        (perceptron(), {"loss": lambda out: out.argmax()}, InputError, "got shape .*int64"),
        (perceptron(), {"optimizer": "Adam"}, InputError, "optimizer= expects a torch.optim.Optimizer"),
        (perceptron().to("meta"), {}, ModelError, "meta device"),
        (nn.ReLU(), {"loss": torch.sum}, ModelError, "Expected a model with parameters"),
        (nn.LazyLinear(3), {}, ModelError, "is lazy"),
        (failing, {}, InputError, "expects a torch.nn.Module, got function"),
    ],
)
def test_bad_input_is_the_user_s_exception_or_one_clear_line(model, given, error, says):
    with pytest.raises(error, match=says) as caught:
        verdict_on(model, **given)
    assert "\n" not in str(caught.value) or error is RuntimeError
    assert not nn.modules.module._global_forward_hooks


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: perceptron().eval(), {}),
        (perceptron, {"x": X.clone().requires_grad_()}),
        (lambda: Returning(lambda out: (out, out.sum())), {"loss": lambda out: cross_entropy(out[0])}),
        (lambda: Returning(lambda out: {"logits": out}), {"loss": lambda out: cross_entropy(out["logits"])}),
        (lambda: nn.Sequential(nn.Embedding(3, 8), nn.Linear(8, 3)), {"x": Y}),
        (lambda: perceptron().double(), {"x": X.double()}),
        (lambda: nn.DataParallel(perceptron()), {}),
    ],
)
def test_odd_models_and_inputs_are_judged(make, given):
    model = make()
    was_training = model.training
    assert verdict_on(model, **given, optimizer=adam(model)).code == "healthy"
    assert model.training == was_training


@pytest.mark.parametrize("loss", [lambda out: cross_entropy(out.detach()), lambda out: torch.ones(())])
def test_a_loss_without_a_graph_is_no_training_signal(loss):
    model = perceptron()
    for optimizer in (None, adam(model)):
        assert verdict_on(model, loss=loss, optimizer=optimizer).code == "no-training-signal"


def test_gradients_may_be_off_where_it_is_called():
    with torch.no_grad():
        assert verdict_on(perceptron()).code == "healthy"
    with torch.inference_mode():
        assert verdict_on(perceptron(), X.clone()).code == "healthy"


def test_where_recording_is_turned_off_nothing_is_said(monkeypatch):
    monkeypatch.setenv("GATDIAG_DISABLE", "1")
    diagnosis = gatdiag.preflight(perceptron(), X, loss=cross_entropy)
    assert (diagnosis.findings, {*diagnosis.skipped}) == ((), {code for code, one in CAUSES.items() if one.check})


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-3])
def test_a_model_has_one_verdict_with_and_without_an_optimizer(scale):
    model = perceptron()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    codes = {verdict_on(model).code, verdict_on(model, optimizer=adam(model)).code}
    assert len(codes) == 1
