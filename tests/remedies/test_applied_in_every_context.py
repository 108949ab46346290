"""A remedy that stays in the forward pass has its gradient however that pass is run: recomputed, compiled, autocast."""

from statistics import median

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from tests.remedies.test_applied import REMEDIES, X

EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 3, 4], [1, 2, 3, 4, 0, 3, 1, 0, 2]])
WEIGHTS = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
BFLOAT16_EPS = torch.finfo(torch.bfloat16).eps
RECOMPUTED = {
    "at once": (None, False),
    "within": (False, False),
    "within, reentrant": (True, False),
    "around": (False, True),
    "around, reentrant": (True, True),
}
"""Name -> use_reentrant of the checkpoints, None for none, and whether there is one around the model."""

COMPILED = {"at once": ("eager", None), "within": ("aot_eager", False)}
"""Name -> backend, and use_reentrant of the checkpoints."""


class Model(nn.Module):
    """All attention layers, each in a checkpoint of another kind: a closure, a bound method, a module, a function."""

    def __init__(self, reentrant):
        super().__init__()
        torch.manual_seed(0)
        layers = [GATConv(6, 3, heads=2), GATv2Conv(6, 6), TransformerConv(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)]
        self.convs = nn.ModuleList(layers)
        self.feedforward = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
        self.reentrant = reentrant

    def forward(self, x, edges):
        x = self.run(lambda x: F.relu(self.convs[0](F.relu(x), edges)) + x, x)
        x = self.run(self.bound, x, edges)
        x = self.run(self.convs[2], x, edges)
        x = self.run(self.feedforward, x)
        x = self.run(torch.relu, x) + self.run(F.relu, -x)
        return self.convs[4](self.convs[3](x).relu())

    def bound(self, x, edges):
        return self.convs[1](x.relu(), edges).relu_() + x

    def run(self, function, *args):
        return function(*args) if self.reentrant is None else checkpoint(function, *args, use_reentrant=self.reentrant)


def treated(kind, reentrant, dtype):
    model = Model(reentrant)
    REMEDIES[kind](model)
    return model.to(dtype)


def checkpointed(kind, how, dtype):
    """A function that runs a model as named in `RECOMPUTED`, and the model."""
    reentrant, is_around = RECOMPUTED[how]
    model = treated(kind, None if is_around else reentrant, dtype)
    return (lambda *inputs: checkpoint(model, *inputs, use_reentrant=reentrant)) if is_around else model, model


def output_and_gradients(model, run, x=X):
    """The output, and the gradients of a weighted sum of it: those of the features and of each parameter."""
    model.zero_grad()
    x = x.to(model.convs[3].weight.dtype, copy=True).requires_grad_()
    out = run(x, EDGES)
    (out * WEIGHTS).sum().backward()
    return out.detach(), [x.grad, *(parameter.grad for parameter in model.parameters())]


def check_by_differences(kind, gradients):
    """Compare derivatives along a direction of each tensor with differences of the loss, in float64 and run plainly."""
    model, x = treated(kind, None, torch.float64), X.double()
    generator, step = torch.Generator().manual_seed(3), 1e-6
    for tensor, gradient in zip([x, *model.parameters()], gradients, strict=True):
        direction, losses = torch.randn(tensor.shape, generator=generator, dtype=torch.float64), []
        for sign in (1, -1):
            with torch.no_grad():
                tensor += sign * step * direction
                losses.append((model(x, EDGES) * WEIGHTS).sum())
                tensor -= sign * step * direction
        assert float((gradient * direction).sum()) == pytest.approx(float(losses[0] - losses[1]) / (2 * step), abs=1e-7)


def largest_difference(gradients, expected):
    """Relative to the largest of the tensors."""
    differences = [(one - other).norm() for one, other in zip(gradients, expected, strict=True)]
    return float(max(differences) / max(tensor.norm() for tensor in expected))


@pytest.mark.parametrize("how", RECOMPUTED)
@pytest.mark.parametrize("kind", REMEDIES)
def test_a_checkpoint_recomputes_with_the_remedy(kind, how):
    run, model = checkpointed(kind, how, torch.float64)
    out, gradients = output_and_gradients(model, run)
    assert torch.equal(out, treated(kind, None, torch.float64)(X.double(), EDGES))
    check_by_differences(kind, gradients)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from torch.compile
@pytest.mark.parametrize("how", COMPILED)
@pytest.mark.parametrize("kind", REMEDIES)
def test_a_compiled_model_has_the_remedy(kind, how):
    backend, reentrant = COMPILED[how]
    model = treated(kind, reentrant, torch.float64)
    torch.compiler.reset()
    out, gradients = output_and_gradients(model, torch.compile(model, backend=backend))
    torch.testing.assert_close(out, treated(kind, None, torch.float64)(X.double(), EDGES))
    check_by_differences(kind, gradients)


@pytest.mark.parametrize("how", RECOMPUTED)
@pytest.mark.parametrize("kind", REMEDIES)
def test_a_checkpoint_recomputes_with_the_remedy_in_autocast(kind, how):
    run, model = checkpointed(kind, how, torch.float32)
    plain = treated(kind, None, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, gradients = output_and_gradients(model, run)
        expected, expected_gradients = output_and_gradients(plain, plain)
    assert torch.equal(out, expected)
    # a reentrant checkpoint adds up gradients in another order, with or without a remedy
    assert largest_difference(gradients, expected_gradients) < BFLOAT16_EPS / 2


@pytest.mark.parametrize("kind", REMEDIES)
def test_autocast_loses_no_more_than_the_digits_of_bfloat16(kind):
    model, differences = treated(kind, None, torch.float32), []
    for seed in range(5):  # of which rounding may move one across a kink
        x = torch.randn(X.shape, generator=torch.Generator().manual_seed(seed))
        _, exact = output_and_gradients(model, model, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, rounded = output_and_gradients(model, model, x)
        differences.append(largest_difference(rounded, exact))
    assert median(differences) < 3 * BFLOAT16_EPS
