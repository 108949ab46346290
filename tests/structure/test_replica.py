"""A replica computes what the model computes, and does not change the model."""

import contextlib
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.data import Data

from gatdiag.errors import InputError, ModelError
from gatdiag.structure import replicate, unwrap

X = torch.linspace(-1, 1, 32).view(4, 8)
EDGES = torch.tensor([[0, 1, 2, 3, 1, 2], [1, 2, 3, 0, 0, 1]])


class Careless(nn.Module):
    """Keeps state of every kind, uses every random generator and changes its inputs in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = gnn.GCNConv(8, 8, cached=True)
        self.norm = nn.BatchNorm1d(8)
        self.lstm = nn.LSTM(8, 4)
        self.seen = []
        self.hidden = [nn.Parameter(torch.ones(4))]
        self.shift = torch.ones(4)

    def forward(self, x, edges, extra):
        x.mul_(2)
        extra["x"].zero_()
        self.last = self.norm(self.conv(x, edges))
        self.seen.append(self.last)
        noise = random.random() + np.random.rand()  # noqa: NPY002
        x = nn.functional.dropout(self.lstm(self.last)[0]) + noise
        return x * self.hidden[0].float() + self.shift + torch.zeros(4)


def test_output_is_that_of_the_model():
    model = gnn.GAT(8, 6, 2, heads=2, norm="batch", dropout=0.5, v2=True)
    replica = replicate(model, (X, EDGES))
    torch.manual_seed(0)
    output = replica.run()
    torch.manual_seed(0)
    assert torch.equal(output, model(X, EDGES))


def test_every_run_sees_the_same_inputs_and_random_numbers():
    replica = replicate(Careless().eval(), (X, EDGES), {"extra": {"x": torch.ones(1)}})
    assert torch.equal(replica.run(), replica.run())


class Remembering(nn.Module):
    """Keeps state in buffers, attributes and a layer of PyG, and may fail."""

    def __init__(self, fails):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm1d(8), gnn.GCNConv(8, 8, cached=True)
        self.calls, self.last, self.fails = 0, None, fails
        self.memory = torch.zeros(8)
        self.register_buffer("adjacency", torch.eye(3).to_sparse())

    def forward(self, x, edges):
        self.calls += 1
        self.last = x if self.last is None else x + self.last
        self.memory.add_(1)
        self.new = self.norm(self.conv(x, edges))
        if self.fails and self.calls == 2:
            raise KeyError
        return self.new + self.memory


@pytest.mark.parametrize("fails", [False, True])
def test_state_is_given_back(fails):
    replica = replicate(Remembering(fails), (X, EDGES))
    model = replica.model
    buffers = dict(model.named_buffers())
    with contextlib.suppress(ModelError), replica.isolated() as call:
        call()
        assert (model.calls, float(model.memory[0]), int(model.norm.num_batches_tracked)) == (1, 1, 1)
        call()
    assert (model.calls, model.last, model.conv._cached_edge_index, hasattr(model, "new")) == (0, None, None, False)
    assert (float(model.memory[0]), int(model.norm.num_batches_tracked)) == (0, 0)
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())


def test_a_buffer_is_given_back_without_a_new_version():
    replica = replicate(nn.BatchNorm1d(2).eval(), (torch.ones(3, 2),))
    replica.model.running_mean.fill_(torch.nan)  # never equal to its copy
    output = replica.run()
    version = replica.model.running_mean._version
    replica.run()
    assert replica.model.running_mean._version == version
    output.sum().backward()


def test_parameters_are_named_as_in_the_model_and_detached_from_it():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    replica = replicate(model, (X,))
    assert list(replica.parameters) == ["0.weight", "0.bias", "1.bias"]
    assert replica.model[1].weight is replica.model[0].weight is replica.parameters["0.weight"]
    with torch.no_grad():
        replica.parameters["0.weight"].zero_()
    assert model[0].weight.abs().sum() > 0


def test_parameters_in_lists_stay_the_same_parameter():
    model = Careless()
    model.registered = model.hidden[0]
    replica = replicate(model, (X, EDGES))
    assert replica.model.hidden[0] is replica.parameters["registered"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "rewrite", [nn.utils.weight_norm, nn.utils.spectral_norm, nn.utils.parametrizations.weight_norm]
)
def test_rewritten_weights_follow_the_parameters_of_the_replica(rewrite: Callable[[nn.Module], nn.Module]):
    model = rewrite(nn.Linear(8, 4)).eval()
    model(X)  # leaves a non-leaf weight behind in the old style
    replica = replicate(model, (X,))
    replica.run().sum().backward()
    assert all(parameter.grad is not None for parameter in replica.parameters.values())
    assert torch.allclose(replica.run(), model(X))


def test_hooks_of_the_user_are_dropped_and_those_of_torch_kept():
    model, calls = nn.Linear(8, 4), []
    torch.nn.utils.spectral_norm(model)
    model.register_full_backward_hook(lambda *_: calls.append("backward"))
    model.register_forward_hook(lambda *_: calls.append("forward"))
    model.register_forward_pre_hook(lambda *_: calls.append("before"))
    replica = replicate(model, (X,))
    replica.run().sum().backward()
    assert not calls
    assert len(replica.model._forward_pre_hooks) == 1
    assert (len(model._backward_hooks), len(model._forward_hooks), len(model._forward_pre_hooks)) == (1, 1, 2)


class Insisting(nn.Module):
    """Names single precision explicitly."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.cached = None
        self.constant = (torch.ones(8),)

    def forward(self, data):
        if self.cached is None:
            self.cached = data.x.float() + torch.zeros(8, dtype=torch.float32)
        return self.lin(self.cached * self.constant[0]).float()


def test_conversion_reaches_parameters_buffers_attributes_caches_and_inputs():
    model = nn.Sequential(Insisting(), nn.BatchNorm1d(8))
    single = model(Data(x=X))
    replica = replicate(model, (Data(x=X),))
    double = replica.to(torch.float64).run()  # the cache that the model's own run left is converted, too
    assert replica.model[0].cached.dtype == double.dtype == torch.float64
    assert replica.args[0].x.dtype == torch.float64
    assert {parameter.dtype for parameter in replica.parameters.values()} == {torch.float64}
    assert list(replica.parameters) == [name for name, _ in model.named_parameters()]
    assert dict(replica.model.named_parameters())["0.lin.weight"] is replica.parameters["0.lin.weight"]
    assert torch.allclose(single.double(), double, atol=1e-5)


def test_complex_and_integer_tensors_convert_to_what_fits_them():
    replica = replicate(nn.Identity(), ((torch.ones(1, dtype=torch.complex64), EDGES),)).to(torch.float64)
    assert [tensor.dtype for tensor in replica.run()] == [torch.complex128, torch.int64]


@pytest.mark.parametrize("grad", [True, False])
def test_grad_mode_is_the_callers(grad):
    with torch.set_grad_enabled(grad):
        assert replicate(nn.Linear(8, 2), (X,)).run().requires_grad is grad


def test_inputs_are_detached():
    x = X.clone().requires_grad_()
    output = replicate(nn.Linear(8, 2), (x * 2,)).run()
    output.sum().backward()
    assert x.grad is None


def test_wrappers_are_looked_through():
    model = nn.Linear(8, 2)
    assert unwrap(nn.DataParallel(torch.compile(model, backend="eager"))) is model
    assert unwrap(model) is model


def test_compiled_parts_run_eagerly():
    def backend(graph, inputs):
        raise AssertionError("compiled")

    model = nn.Sequential(torch.compile(nn.Linear(8, 2), backend=backend), nn.Linear(2, 2))
    model[1].compile(backend=backend)
    assert replicate(model, (X,)).run().shape == (4, 2)


class Compiled(nn.Linear):
    """A method, a list of methods or the forward pass are compiled."""

    def __init__(self, kind):
        def backend(graph, inputs):
            raise AssertionError("compiled")

        super().__init__(8, 2)
        compiled = torch.compile(super().forward, backend=backend)
        self.steps = {"method": compiled, "list": [compiled], "forward": None}[kind]
        if kind == "forward":
            self.forward = compiled

    def forward(self, x):
        return self.steps[0](x) if isinstance(self.steps, list) else self.steps(x)


@pytest.mark.parametrize("kind", ["method", "list", "forward"])
def test_a_compiled_method_of_the_copy_reads_the_weights_of_the_copy(kind):
    model = Compiled(kind)
    replica = replicate(model, (X,))
    expected = nn.functional.linear(X, model.weight, model.bias)
    with torch.no_grad():
        model.weight.zero_()
    torch.testing.assert_close(replica.run(), expected)


def test_failure_names_the_innermost_layer():
    with pytest.raises(ModelError, match=r"failed in layer 'conv\.lin' \(Linear\) with RuntimeError") as caught:
        replicate(Careless(), (X[:, :3], EDGES, {"x": X.clone()})).run()
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_failure_of_the_call_itself():
    with pytest.raises(ModelError, match=r"the model itself \(Careless\) with TypeError.*missing"):
        replicate(Careless(), (X,)).run()


def test_interrupts_and_own_errors_pass_unchanged():
    for error in (KeyboardInterrupt(), InputError("mine")):

        class Raising(nn.Linear):
            def forward(self, x):
                raise error

        model = Raising(8, 2)
        with pytest.raises(type(error)) as caught:
            replicate(model, (X,)).run()
        assert caught.value is error


@pytest.mark.parametrize("layer", [gnn.Linear(-1, 2), nn.LazyLinear(2), nn.LazyBatchNorm1d()])
def test_lazy_layers_are_refused(layer):
    with pytest.raises(ModelError, match=r"layer '0' .* is lazy: .*run it once on the data"):
        replicate(nn.Sequential(layer), (X,))


def test_a_lazy_layer_that_is_never_called_is_left_out():
    model = nn.Linear(8, 2)
    model.unused = nn.LazyLinear(3)
    with pytest.raises(ModelError, match=r"layer 'unused' .* is lazy: .*never called: leave it out"):
        replicate(model)

    replica = replicate(model, (X,)).to(torch.float64)
    assert torch.allclose(replica.run(), model(X).double(), atol=1e-6)
    assert list(replica.parameters) == ["weight", "bias"]


def test_what_cannot_be_copied_is_refused():
    model = nn.Linear(8, 2)
    model.stream = (value for value in ())
    with pytest.raises(ModelError, match=r"copying it failed with TypeError: .*generator"):
        replicate(model, (X,))
    with pytest.raises(InputError, match=r"copying failed with TypeError: .*generator"):
        replicate(nn.Linear(8, 2), (model.stream,))
