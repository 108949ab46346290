"""Leaky ReLU where a function of the forward pass runs again in the backward pass, however that is written."""

import copy
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import DeepGCNLayer, GCNConv, GroupAddRev

from gatdiag.laws import find_laws
from gatdiag.remedies import leaky_relu_

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])


class Model(nn.Module):
    """Two linear layers with ReLU before, between and after them, run by a function that may call them again."""

    def __init__(self, run):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.run = nn.Linear(4, 4), nn.Linear(4, 4), run

    def forward(self, x):
        return self.run(self, x).relu()

    def between(self, x):
        return self.second(F.relu(self.first(x.relu())))


def gradients(model, *inputs):
    x = X.clone().requires_grad_()
    model.zero_grad()
    model(x * 1, *inputs).square().sum().backward()  # a reversible layer frees its input, which is no leaf
    return [x.grad, *(parameter.grad for parameter in model.parameters())]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def with_checkpoint(reentrant):
    return lambda model, x: checkpoint(model.between, x, use_reentrant=reentrant)


def nested(reentrant):
    def run(model, x):
        return checkpoint(lambda x: F.relu(with_checkpoint(reentrant)(model, x.relu())), x, use_reentrant=reentrant)

    return run


def plainly(model, x):
    return model.between(x)


def nested_plainly(model, x):
    return F.relu(model.between(x.relu()))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of a checkpoint in a reentrant one
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("run", "plain"), [(with_checkpoint, plainly), (nested, nested_plainly)])
def test_a_recomputation_is_leaky_in_a_leaky_forward_pass_only(run, plain, reentrant):
    model, expected = Model(run(reentrant)), Model(plain)
    without = gradients(model)
    assert same(without, gradients(expected))
    with leaky_relu_(model, 0.5), leaky_relu_(expected, 0.5):
        leaky = gradients(model)
        assert same(leaky, gradients(expected))
        assert not same(leaky, without)
    assert same(gradients(model), without)


def test_the_laws_of_a_model_with_checkpoints_stay():
    model = Model(with_checkpoint(False))
    assert len(find_laws(model, X)) == 4
    leaky_relu_(model)
    assert len(find_laws(model, X)) == 4


def test_the_slope_of_the_innermost_model_counts():
    inner, outer = Model(with_checkpoint(False)), Model(plainly)
    outer.second, inner_plain, outer_plain = inner, Model(plainly), copy.deepcopy(outer)
    outer_plain.second = inner_plain
    for model in (outer, outer_plain):
        leaky_relu_(model, 0.5)
        leaky_relu_(model.second, 0.1)
    assert same(gradients(outer), gradients(outer_plain))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_kept_while_the_remedy_is_undone_is_still_leaky(reentrant):
    """The backward pass belongs to the forward pass that was made, whatever happens to the model in between."""
    model, expected = Model(with_checkpoint(reentrant)), Model(plainly)
    leaky_relu_(expected, 0.5)
    with leaky_relu_(model, 0.5):
        x = X.clone().requires_grad_()
        loss = model(x).square().sum()
    loss.backward()
    assert same([x.grad, *(parameter.grad for parameter in model.parameters())], gradients(expected))


def test_a_backward_pass_in_another_thread_is_leaky():
    model, expected, found = Model(with_checkpoint(False)), Model(plainly), []
    for each in (model, expected):
        leaky_relu_(each, 0.5)
    thread = threading.Thread(target=lambda: found.append(gradients(model)))
    thread.start()
    thread.join()
    assert same(found[0], gradients(expected))


def deep_gcn_layer(ckpt_grad):
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    layer = DeepGCNLayer(conv, nn.LayerNorm(4), nn.ReLU(), block="res+", ckpt_grad=ckpt_grad)
    leaky_relu_(layer, 0.5)
    return layer


def test_the_checkpoints_of_pyg_are_leaky():
    assert same(gradients(deep_gcn_layer(ckpt_grad=True)), gradients(deep_gcn_layer(ckpt_grad=False)))


@pytest.mark.slow
def test_a_model_is_leaky_in_a_process_that_only_loads_it(tmp_path):
    torch.save((deep_gcn_layer(ckpt_grad=True), X), tmp_path / "model.pt")
    program = (
        "import sys, torch\n"
        "model, x = torch.load(sys.argv[1], weights_only=False)\n"
        "model(x.requires_grad_() * 1).square().sum().backward()\n"
        "torch.save([x.grad, *(parameter.grad for parameter in model.parameters())], sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "model.pt")], check=True)
    assert same(torch.load(tmp_path / "model.pt"), gradients(deep_gcn_layer(ckpt_grad=False)))


def test_a_reversible_layer_is_inverted_with_leaky_relu():
    def model(disable):
        torch.manual_seed(0)
        layer = DeepGCNLayer(GCNConv(2, 2), nn.LayerNorm(2), nn.ReLU(), block="res+")
        made = GroupAddRev(layer, num_groups=2, disable=disable)
        leaky_relu_(made, 0.5)
        return made

    for got, expected in zip(gradients(model(False), EDGES), gradients(model(True), EDGES), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from torch.compile
def test_what_torch_can_only_compile_is_refused():
    model = Model(lambda model, x: torch.cond(x.sum() > 0, model.between, torch.neg, (x,)))
    model(X)
    leaky_relu_(model, 0.5)
    with pytest.raises(RuntimeError, match=r"leaky_relu_: a function that .*torch\.cond.* calls cannot be compiled"):
        model(X)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from torch.compile
def test_a_checkpoint_is_not_compiled():
    model = Model(with_checkpoint(False))
    leaky_relu_(model, 0.5)
    torch.compiler.reset()
    with pytest.raises(RuntimeError, match=r"leaky_relu_: a function that a checkpoint.* calls cannot be compiled"):
        torch.compile(model, backend="eager", fullgraph=True)(X)
