"""Every recorded value against an independent computation, at every step."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch_geometric.utils import add_self_loops, remove_self_loops

import gatdiag
from gatdiag import metrics
from gatdiag.quantities import GROUPS, LEVELS, STORED, gradient_name, metric_functions
from gatdiag.weight_change import FRACTIONS
from tests.metrics import oracles
from tests.recorder.loops import Gat, graph, loss_of

STEPS = 4
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.2, weight_decay=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


class Observed:
    """A loop that keeps weights, gradients, and layer outputs with their gradients at every step."""

    def __init__(self, folder, make_optimizer):
        torch.manual_seed(3)
        self.model, self.data = Gat(), graph()
        self.weights, self.gradients, self.outputs, self.output_gradients = [], [], [], []
        self.losses, self.rates = [], []
        optimizer = make_optimizer(self.model.parameters())
        with gatdiag.watch(self.model, folder, metrics="full") as recorder:
            for step in range(STEPS):
                loss, kept = self.forward()
                loss.backward()
                self.weights.append(self.copies(lambda p: p.detach().clone()))
                self.gradients.append(self.copies(lambda p: p.grad.clone()))
                self.outputs.append([output.detach().clone() for output in kept])
                self.output_gradients.append([output.grad.clone() for output in kept])
                self.rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                optimizer.zero_grad()
                optimizer.param_groups[0]["lr"] *= 0.5
                recorder.log(loss=loss, double=2 * step)
                self.losses.append(loss.item())
        self.weights.append(self.copies(lambda p: p.detach().clone()))
        self.run = gatdiag.load(folder)

    def forward(self):
        kept = []

        def keep(conv, args, output):
            output.retain_grad()
            kept.append(output)

        handles = [conv.register_forward_hook(keep) for conv in self.model.convs]
        loss = loss_of(self.model, self.data)
        for handle in handles:
            handle.remove()
        return loss, kept

    def of(self, of, step, name):
        """The weight, gradient or update of a parameter at a step."""
        if of == "update":
            return self.weights[step + 1][name] - self.weights[step][name]
        return {"weight": self.weights, "gradient": self.gradients}[of][step][name]

    def copies(self, copy):
        return {name: copy(parameter) for name, parameter in self.model.named_parameters()}


@pytest.fixture(scope="module", params=OPTIMIZERS)
def observed(request, tmp_path_factory):
    return Observed(tmp_path_factory.mktemp("runs") / "run", OPTIMIZERS[request.param])


def close(found, expected, tolerance=2e-5):
    found, expected = np.asarray(found, dtype=float), np.asarray(expected, dtype=float)
    return np.allclose(found, expected, rtol=tolerance, atol=1e-12, equal_nan=True)


def of_parameters(observed, column):
    table = observed.run.parameters
    return [table[table.step == step].set_index("parameter")[column] for step in range(STEPS)]


def test_steps(observed):
    table = observed.run.steps
    assert table.step.tolist() == list(range(STEPS))
    assert close(table.loss, observed.losses)
    assert table.double.tolist() == [0, 2, 4, 6]
    assert table.learning_rate.tolist() == observed.rates
    assert (np.diff(table.time) > 0).all()
    total = [math.sqrt(sum(float(g.double().square().sum()) for g in by.values())) for by in observed.gradients]
    assert close(table.gradient_norm, total)
    assert close(table.gradient_norm_before_clipping, total)


def test_norms_of_parameters(observed):
    for step in range(STEPS):
        weight, gradient, after = observed.weights[step], observed.gradients[step], observed.weights[step + 1]
        table = observed.run.parameters[observed.run.parameters.step == step].set_index("parameter")
        assert list(table.index) == list(observed.run.parameter_names)
        for name, row in table.iterrows():
            w, g = weight[name].double().norm().item(), gradient[name].double().norm().item()
            moved = (after[name].double() - weight[name].double()).norm().item()
            assert close(row["norm"], w)
            assert close(row.gradient_norm, g)
            assert close(row.relative_gradient_norm, np.divide(g, w) if w else (math.inf if g else math.nan))
            assert close(row.update_ratio, np.divide(moved, w) if w else (math.inf if moved else math.nan), 1e-4)
            assert row.non_finite == row.gradient_non_finite == 0
            assert row.layer == name.rsplit(".", 1 if name.count(".") == 2 else 2)[0]


def test_changes(observed):
    roles = {info.name: info.role for info in gatdiag.discover(observed.model).parameters}
    initial = observed.weights[0]
    for step in range(STEPS):
        table = observed.run.parameters[observed.run.parameters.step == step].set_index("parameter")
        for name, row in table.iterrows():
            first, now = initial[name], observed.weights[step][name]
            assert row.role == roles[name]
            assert close(row[[*FRACTIONS]], oracles.changes(first, now, roles[name] == "attention vector"))
            relative, absolute = oracles.change_quantiles(first, now)
            levels = [f"q{round(100 * level)}" for level in LEVELS]
            assert close(row[[f"relative_change_{level}" for level in levels]], relative)
            assert close(row[[f"absolute_change_{level}" for level in levels]], absolute)


@pytest.mark.parametrize("metric", metric_functions("parameters"), ids=lambda metric: f"{metric.function} {metric.of}")
def test_functions_of_parameters(observed, metric):
    function = getattr(metrics, metric.function)
    for step in range(STEPS):
        table = observed.run.parameters[observed.run.parameters.step == step].set_index("parameter")
        for name, row in table.iterrows():
            if name.endswith("weight") or metric.needs != "matrix":
                expected = function(observed.of(metric.of, step, name).double())
                for column, value in metric.by_column(expected).items():
                    assert close(row[column], value, 1e-5)
            else:
                assert row[[each.name for each in metric.quantities]].isna().all()


def test_spectral_norms(observed):
    for step, values in enumerate(of_parameters(observed, "spectral_norm")):
        for name, value in values.items():
            if name.endswith("weight"):
                assert close(value, torch.linalg.matrix_norm(observed.weights[step][name].double(), 2), 1e-5)


def measures(x, edges):
    """Each recorded number of a layer's output or of its gradient."""
    found = {}
    for metric in metric_functions("layers"):
        if metric.of == "output":
            inputs = (x, edges) if metric.needs == "edges" else (x,)
            found |= metric.by_column(getattr(metrics, metric.function)(*inputs))
    x = x.double()
    size, spread = x.norm(), (x - x.mean(0)).norm()
    energy = sum((x[i] - x[j]).square().sum() / 2 for i, j in edges.T)
    dead = (x == 0).all(0).double().mean()
    found |= {"output_norm": size, "mu": spread, "relative_mu": spread / size}
    return found | {"dead_fraction": dead, "dirichlet_energy": energy}


def test_layers(observed):
    for step in range(STEPS):
        table = observed.run.layers[observed.run.layers.step == step]
        assert table.layer.tolist() == ["convs.0", "convs.1", "convs.2"]
        for tensors, column in ((observed.outputs[step], str), (observed.output_gradients[step], gradient_name)):
            expected = [measures(x, observed.data.edge_index) for x in tensors]
            for name in expected[0]:
                assert close(table[column(name)], [float(each[name]) for each in expected]), (step, column(name))
        assert (table.non_finite == 0).all()
        assert (table.gradient_non_finite == 0).all()


def test_attention(observed):
    edges = add_self_loops(remove_self_loops(observed.data.edge_index)[0])[0]
    for step in range(STEPS):
        table = observed.run.layers[observed.run.layers.step == step].set_index("layer")
        x = observed.data.x
        for number, conv in enumerate(observed.model.convs):
            with torch.no_grad():
                for name, parameter in conv.named_parameters():
                    parameter.copy_(observed.weights[step][f"convs.{number}.{name}"])
                out, (index, alpha) = conv(x, observed.data.edge_index, return_attention_weights=True)
            assert torch.equal(index, edges)
            row = table.loc[f"convs.{number}"]
            found = row.attention_entropy, row.relative_attention_entropy
            assert close(found, oracles.attention_entropies(alpha, index[1]))
            x = F.relu(out)


def test_laws(observed):
    """Theorem 6.3 in its corrected form, written out: separate weights, three kinds of bias."""
    convs = [f"convs.{number}" for number in range(3)]
    inside = ("lin_l.weight", "lin_r.weight", "lin_l.bias", "lin_r.bias", "bias")
    found = {(law.layer, law.neuron): law.kind for law in observed.run.laws}
    for step in range(STEPS):
        table = observed.run.neurons[observed.run.neurons.step == step]
        weight = {name: value.double() for name, value in observed.weights[step].items()}
        gradient = {name: value.double() for name, value in observed.gradients[step].items()}
        for layer, following in pairwise(convs):
            for neuron in range(6):
                assert found[layer, neuron] == "neuron"
                row = table[(table.layer == layer) & (table.neuron == neuron)].iloc[0]
                for column, other, scale in (("delta", gradient, 1e-6), ("c", weight, 1e-12)):
                    products = {name: weight[name] * other[name] for name in weight}
                    incoming = sum(products[f"{layer}.{name}"][neuron].sum() for name in inside)
                    attention = products[f"{layer}.att"][0, 0, neuron]
                    outgoing = sum(products[f"{following}.{lin}.weight"][:, neuron].sum() for lin in ("lin_l", "lin_r"))
                    assert row[column] == pytest.approx(float(incoming - attention - outgoing), rel=1e-9, abs=scale)
                    if column == "delta":
                        assert abs(row.delta) < 1e-6


def test_predictions(observed):
    table = observed.run.neurons
    first, later = table[table.step == 0], table[table.step > 0]
    assert first.predicted_c.isna().all()
    assert later.predicted_c.notna().all()
    assert (later.c - later.predicted_c).abs().max() < 1e-6


def test_a_prediction_is_not_the_measurement(observed):
    """c changes from step to step by more than the error of its prediction."""
    by_step = observed.run.neurons.set_index(["step", "law"]).sort_index()
    moved = by_step.c.loc[2].to_numpy() - by_step.c.loc[1].to_numpy()
    missed = by_step.c.loc[2].to_numpy() - by_step.predicted_c.loc[2].to_numpy()
    assert np.abs(missed).max() < 0.1 * np.abs(moved).max()


def test_every_column_is_measured_and_described(observed):
    for table in ("layers", "parameters", "neurons"):
        frame = getattr(observed.run, table)
        columns = {column for group in GROUPS.values() if group.table == table for column in group.columns}
        of_checkpoints = {each.name for each in STORED if each.table == table}
        assert frame[[*of_checkpoints]].isna().all(axis=None)
        assert columns == set(frame.columns) - {"step", "layer", "parameter", "role", "neuron", "law"} - of_checkpoints
        assert not [column for column in columns if frame[column].isna().all()]
        described = {entry["name"] for entry in observed.run.meta["quantities"] if entry["table"] == table}
        assert described == columns


def test_snapshots(observed):
    for name, weights in (("initial", observed.weights[0]), ("final", observed.weights[-1])):
        snapshot = observed.run.snapshot(name)
        assert set(snapshot) == set(weights)
        assert all(np.array_equal(snapshot[key], weights[key].numpy()) for key in weights)
    assert observed.run.snapshot("best") is None


def test_parameters_whose_memory_holds_the_conjugate_or_the_negative(tmp_path):
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            mixing, phase = torch.randn(2, 3, 3, dtype=torch.cfloat, generator=generator).conj()
            self.lin = torch.nn.Linear(3, 3)
            self.mixing, self.scale = torch.nn.Parameter(mixing), torch.nn.Parameter(phase.imag)

        def forward(self, x):
            return (self.lin(x).to(torch.cfloat) @ self.mixing).abs() @ self.scale

    def wide(x):
        return torch.view_as_real(x.detach().resolve_conj()).double() if x.is_complex() else x.detach().double()

    torch.manual_seed(0)
    model, x, expected, begun = Odd(), torch.randn(4, 3), [], {}
    assert model.mixing.is_conj()
    assert model.scale.is_neg()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gatdiag.watch(model, tmp_path / "run", every=1):
        for _ in range(STEPS):
            begun = begun or {name: wide(p).numpy().copy() for name, p in model.named_parameters()}
            optimizer.zero_grad()
            model(x).sum().backward()
            total = math.hypot(*(wide(p.grad).norm().item() for p in model.parameters()))
            expected.append((wide(model.scale).norm().item(), wide(model.scale.grad).norm().item(), total))
            optimizer.step()
    run = gatdiag.load(tmp_path / "run")
    assert run.meta["notes"] == []
    for name, weights in (("initial", begun), ("final", {n: wide(p).numpy() for n, p in model.named_parameters()})):
        saved = {key: wide(torch.from_numpy(values)).numpy() for key, values in run.snapshot(name).items()}
        assert saved.keys() == weights.keys()
        assert all(np.array_equal(saved[key], weights[key]) for key in weights)
    of_scale = run.parameters[run.parameters.parameter == "scale"]
    columns = (of_scale.norm, of_scale.gradient_norm, run.steps.gradient_norm)
    assert np.transpose(columns) == pytest.approx(np.array(expected), rel=1e-6)
    assert of_scale.unchanged_fraction.tolist() == [1.0] + [0.0] * (STEPS - 1)
