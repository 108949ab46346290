"""Training that calls parts of the model instead of the model: its laws are those of the traced computation."""

import random
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch_geometric.nn import GAE, VGAE, GATv2Conv, GCNConv

import gatdiag
from gatdiag.recorder import RecordingWarning
from tests.recorder.loops import graph, sgd

DATA = graph()
PAIRS = torch.randint(0, 20, (2, 30), generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, conv=GCNConv, dropout=0.0):
        super().__init__()
        self.conv1, self.conv2, self.dropout = conv(5, 6), conv(6, 3), dropout

    def forward(self, x, edge_index):
        x = F.dropout(F.relu(self.conv1(x, edge_index)), self.dropout, self.training)
        return self.conv2(x, edge_index)


class Methods(Net):
    """The ways in which training reaches a network."""

    def training_step(self, batch, number):
        x = F.dropout(batch.x, 0.1, self.training)  # changes the inputs before the first layer
        hidden = F.relu(self.conv1(x, edge_index=batch.edge_index))
        return F.cross_entropy(self.conv2(hidden, batch.edge_index), batch.y)

    def encode(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    def decode(self, z, pairs):
        return (z[pairs[0]] * z[pairs[1]]).sum(dim=-1)


class Around(nn.Module):
    """As in a LightningModule."""

    def __init__(self):
        super().__init__()
        self.net = Net(GATv2Conv, dropout=0.2)

    def training_step(self, batch, number):
        return F.cross_entropy(self.net(batch.x, batch.edge_index), batch.y)


class Split(nn.Module):
    """Two parts with common laws."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 6), nn.Linear(6, 3)

    def encode(self, x):
        return F.leaky_relu(self.encoder(x))

    def decode(self, z):
        return self.decoder(z)


class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.mu, self.logstd = GCNConv(5, 6), GCNConv(6, 3), GCNConv(6, 3)

    def forward(self, x, edge_index):
        x = self.conv(x, edge_index).relu()
        return self.mu(x, edge_index), self.logstd(x, edge_index)


def in_a_function(model, inplace=False):
    """Layers called one after the other, with a module of the caller in between."""
    hidden = nn.ReLU(inplace)(model.conv1(DATA.x, DATA.edge_index))
    return F.cross_entropy(model.conv2(hidden, DATA.edge_index), DATA.y)


def predicted_links(model):
    z = model.encode(DATA.x, DATA.edge_index)
    assert len(z) == 20
    out = model.decode(z, PAIRS).view(-1)
    return F.binary_cross_entropy_with_logits(out, torch.ones(30))


def autoencoded(model):
    loss = model.recon_loss(model.encode(DATA.x, DATA.edge_index), DATA.edge_index)
    return loss + (model.kl_loss() / 20 if isinstance(model, VGAE) else 0)


def with_changes_in_place(model):
    hidden = model.conv1(DATA.x, DATA.edge_index)
    hidden[DATA.y == 0] *= 3
    hidden *= 2
    both = torch.zeros(20, 6)
    both.add_(hidden.relu_())
    with torch.no_grad():
        assert float(both.sum()) > 0
    return F.cross_entropy(model.conv2(both, edge_index=DATA.edge_index), DATA.y)


LOOPS = {
    "training_step": (Methods, lambda model: model.training_step(DATA, 0)),
    "training_step around a network": (Around, lambda model: model.training_step(DATA, 0)),
    "encode and decode": (Methods, predicted_links),
    "two parts": (Split, lambda model: F.cross_entropy(model.decode(model.encode(DATA.x)), DATA.y)),
    "autoencoder": (lambda: GAE(Net()), autoencoded),
    "variational": (lambda: VGAE(Variational()), autoencoded),
    "a function": (Net, in_a_function),
    "a function, in place": (lambda: Net(GATv2Conv), lambda model: in_a_function(model, inplace=True)),
    "forward itself": (Net, lambda model: F.cross_entropy(model.forward(DATA.x, DATA.edge_index), DATA.y)),
    "in place": (Net, with_changes_in_place),
}


def trained(make, loss_of, folder=None, steps=3):
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (PyG draws negative edges from it)
    torch.manual_seed(0)
    model = make()
    optimizer = sgd(model)
    losses = []
    with nullcontext() if folder is None else gatdiag.watch(model, folder):
        for _ in range(steps):
            loss = loss_of(model)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses, torch.get_rng_state()


def same(left, right):
    weights = zip(left[0].parameters(), right[0].parameters(), strict=True)
    return left[1] == right[1] and torch.equal(left[2], right[2]) and all(torch.equal(*pair) for pair in weights)


@pytest.mark.parametrize("name", LOOPS)
def test_laws_are_those_of_what_training_computes(tmp_path, name):
    make, loss_of = LOOPS[name]
    watched = trained(make, loss_of, tmp_path / "run")
    assert same(watched, trained(make, loss_of))
    assert torch._C._len_torch_function_stack() == 0
    run = gatdiag.load(tmp_path / "run")
    assert run.meta["structure"]["order"] == "execution"
    assert len(run.laws) == 6  # one for each hidden unit, as of the network itself
    assert len(run.neurons) == 3 * 6
    assert run.neurons.delta.abs().max() < 1e-6
    assert (run.neurons.c - run.neurons.predicted_c).abs().max() < 1e-5
    assert not run.meta["notes"]


def test_laws_are_the_same_as_of_the_network_called_by_itself(tmp_path):
    for name, make in (("one", Methods), ("other", lambda: Net(dropout=0.1))):
        call = (
            LOOPS["training_step"][1]
            if name == "one"
            else lambda m: F.cross_entropy(m(DATA.x, DATA.edge_index), DATA.y)
        )
        trained(make, call, tmp_path / name, steps=1)
    names = [[law.name for law in gatdiag.load(tmp_path / name).laws] for name in ("one", "other")]
    assert names[0] == names[1]


def test_a_step_that_is_made_inside(tmp_path):
    """Manual optimization: `training_step` runs the backward pass and the optimizer step."""

    class Manual(Methods):
        def training_step(self, batch, number):
            loss = super().training_step(batch, number)
            self.optimizer.zero_grad()
            torch.autograd.backward([loss])
            self.optimizer.step()

    model = Manual()
    model.optimizer = torch.optim.Adam(model.parameters())
    with gatdiag.watch(model, tmp_path / "run"):
        for number in range(2):
            model.training_step(DATA, number)
    run = gatdiag.load(tmp_path / "run")
    assert len(run.neurons) == 2 * 6
    assert run.neurons.delta.abs().max() < 1e-6


class Reversed(torch.autograd.Function):
    """Its gradient is not that of its output."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def through_a_function_of_its_own(model):
    hidden = Reversed.apply(model.conv1(DATA.x, DATA.edge_index)).relu()
    return F.cross_entropy(model.conv2(hidden, DATA.edge_index), DATA.y)


def with_a_penalty(model):
    return in_a_function(model) + 0.1 * model.conv1.lin.weight.square().sum()


@pytest.mark.parametrize("loss_of", [through_a_function_of_its_own, with_a_penalty])
def test_what_the_tape_cannot_see_is_held_fixed(tmp_path, loss_of):
    """Each of these breaks every law of the two layers."""
    with pytest.warns(RecordingWarning, match="the model has no conservation law"):
        watched = trained(Net, loss_of, tmp_path / "run")
    assert same(watched, trained(Net, loss_of))
    run = gatdiag.load(tmp_path / "run")
    assert run.meta["laws"]["found"] == []
    assert len(run.parameters) == 3 * 4


class Other(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_where_training_cannot_be_followed_it_says_what_it_calls(tmp_path):
    def loss_of(model):
        with Other():
            return in_a_function(model)

    message = "training calls conv1 instead of the model.*Other is active around training; call the model"
    with pytest.warns(RecordingWarning, match=message):
        watched = trained(Net, loss_of, tmp_path / "run")
    assert same(watched, trained(Net, loss_of))
    assert torch._C._len_torch_function_stack() == 0


def test_a_default_device_may_be_set_meanwhile(tmp_path):
    model = Net()
    optimizer = sgd(model)
    try:
        with gatdiag.watch(model, tmp_path / "run"):
            torch.set_default_device("cpu")
            hidden = model.conv1(DATA.x, DATA.edge_index)
            torch.set_default_device("cpu")
            F.cross_entropy(model.conv2(hidden.relu(), DATA.edge_index), DATA.y).backward()
            optimizer.step()
    finally:
        torch.set_default_device(None)
    assert torch._C._len_torch_function_stack() == 0
    assert len(gatdiag.load(tmp_path / "run").neurons) == 6


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from torch.compile
def test_compiled_code_is_not_looked_into_and_computes_the_same(tmp_path):
    """Laws are found up to the compiled function, whose graph is the same as without a tape."""
    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module.code)
        return graph_module.forward

    torch.compiler.reset()
    between, criterion = (torch.compile(f, backend=backend) for f in (torch.relu, lambda out: out.square().mean()))

    def loss_of(model):
        hidden = model.conv1(DATA.x, DATA.edge_index).relu()
        return criterion(between(model.conv2(hidden, DATA.edge_index)))

    bare = trained(Net, loss_of)
    first, graphs[:] = graphs[:], []
    torch.compiler.reset()
    assert same(bare, trained(Net, loss_of, tmp_path / "run"))
    assert set(graphs) == set(first)
    torch.compiler.reset()
    run = gatdiag.load(tmp_path / "run")
    assert len(run.neurons) == 3 * 6
    assert run.neurons.delta.abs().max() < 1e-6


def test_an_exception_between_layers_goes_on_as_it_came(tmp_path):
    model = Net()
    with pytest.raises(ZeroDivisionError), gatdiag.watch(model, tmp_path / "run"):
        model.conv1(DATA.x, DATA.edge_index)
        assert torch._C._len_torch_function_stack() == 1
        raise ZeroDivisionError
    assert torch._C._len_torch_function_stack() == 0


def test_evaluation_between_steps_changes_nothing(tmp_path):
    def loss_of(model):
        model.eval()
        with torch.no_grad():
            model.encode(DATA.x, DATA.edge_index)
        model.train()
        with torch.no_grad():
            target = model.encode(DATA.x, DATA.edge_index)
        return F.mse_loss(model.encode(DATA.x, DATA.edge_index), target + 1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(Methods, loss_of, tmp_path / "run")
    run = gatdiag.load(tmp_path / "run")
    assert len(run.neurons) == 3 * 6
    assert run.neurons.delta.abs().max() < 1e-6
