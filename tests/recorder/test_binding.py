"""Parameters and layers that are replaced while they are watched."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch_geometric.nn import GATv2Conv

import gatdiag
from gatdiag.recorder import RecordingWarning
from gatdiag.recorder.model import _Binding as Binding
from gatdiag.recorder.model import holds_none_of
from tests.recorder.loops import Gat, graph, loss_of

NAME = "convs.1.lin_l.weight"


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def assigned(model):
    """As `load_state_dict` of a checkpoint does where it need not copy."""
    state = {name: (tensor * 1.5).clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def exchanged(model):
    model.convs[1] = GATv2Conv(6, 6)
    assigned(model.convs[1])


def watched(folder, model, replace, at=2, steps=5, renew=sgd):
    """Norms of a weight before each step, as recorded and as they were."""
    data, optimizer, norms = graph(), sgd(model), []
    with gatdiag.watch(model, folder):
        for step in range(steps):
            if step == at:
                replace(model)
                optimizer = renew(model)
            loss_of(model, data).backward()
            norms.append(model.get_parameter(NAME).detach().double().norm().item())
            optimizer.step()
            optimizer.zero_grad()
    return gatdiag.load(folder), norms


def series(run, column, name=NAME):
    return run.parameters[run.parameters.parameter == name].set_index("step")[column]


@pytest.mark.parametrize("replace", [assigned, exchanged])
def test_replaced_parameters_are_followed(tmp_path, replace):
    model = Gat()
    initial = model.get_parameter(NAME).detach().clone().numpy()
    run, norms = watched(tmp_path / "run", model, replace)
    assert abs(norms[2] - norms[1]) > 0.1 * norms[1], "a weight that hardly differs would show nothing"
    assert series(run, "norm").tolist() == pytest.approx(norms, rel=1e-5)
    assert (series(run, "update_ratio") > 0).all()
    now = model.get_parameter(NAME).detach().numpy()
    assert np.array_equal(run.snapshot("final")[NAME], now)
    assert np.array_equal(run.snapshot("initial")[NAME], initial)
    assert "parameters were replaced by others of the same shapes before step 2" in run.meta["notes"]
    assert run.layers[run.layers.layer == "convs.1"].step.max() == 4


@pytest.mark.parametrize("replace", [assigned, exchanged])
def test_the_laws_are_those_of_the_new_weights(tmp_path, replace):
    model, data = Gat(), graph()
    run, _ = watched(tmp_path / "run", model, replace, at=2, steps=4)
    neurons = run.neurons.set_index(["step", "law"])
    assert (neurons.delta.abs() < 1e-5).all()
    assert neurons.predicted_c.loc[2].isna().all(), "what the step before foresaw is of other weights"
    assert (neurons.c - neurons.predicted_c).loc[3].abs().max() < 1e-5
    twin = copy.deepcopy(model)
    twin.load_state_dict({name: torch.from_numpy(value) for name, value in run.snapshot("final").items()})
    drift = gatdiag.find_laws(twin, data.x, data.edge_index).c().numpy() - neurons.c.loc[3].to_numpy()
    assert np.abs(drift).max() < 0.05 * np.abs(neurons.c.loc[3]).max(), "one step further c is nearly the same"


def test_another_shape_ends_the_recording_of_the_model(tmp_path):
    def wider(model):
        model.convs[1] = GATv2Conv(6, 6, heads=2, concat=False)

    with pytest.warns(RecordingWarning, match=r"from step 2 on, since convs\.1\..* had shape .*; watch it anew"):
        run, _ = watched(tmp_path / "run", Gat(), wider)
    assert run.parameters.step.max() == 1
    assert run.neurons.step.max() == 1


def test_an_optimizer_of_what_the_model_no_longer_has(tmp_path):
    model = Gat()
    old = sgd(model)
    with pytest.warns(RecordingWarning, match="optimizer of step 2 moves parameters that the model no longer has"):
        run, _ = watched(tmp_path / "run", model, assigned, renew=lambda model: old)
    assert run.parameters.step.max() <= 2


def test_a_parameter_that_is_only_renamed_goes_on(tmp_path):
    model = Gat()
    weight = model.get_parameter(NAME)
    run, norms = None, []
    data, optimizer = graph(), sgd(model)
    with gatdiag.watch(model, tmp_path / "run"):
        for step in range(4):
            if step == 2:
                prune.random_unstructured(model.convs[1].lin_l, "weight", 0.5)
            loss_of(model, data).backward()
            norms.append(weight.detach().double().norm().item())
            optimizer.step()
            optimizer.zero_grad()
    run = gatdiag.load(tmp_path / "run")
    assert series(run, "norm").tolist() == pytest.approx(norms, rel=1e-5)
    assert not [note for note in run.meta["notes"] if "replaced" in note]


def test_parameters_that_are_lent_for_one_call_are_not_taken_for_the_models(tmp_path):
    model, data = Gat(), graph()
    optimizer, norms = sgd(model), []
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(3):
            lent = {name: 1.1 * parameter for name, parameter in model.named_parameters()}
            output = torch.func.functional_call(model, lent, (data.x, data.edge_index))
            nn.functional.cross_entropy(output, data.y).backward()
            norms.append(model.get_parameter(NAME).detach().double().norm().item())
            optimizer.step()
            optimizer.zero_grad()
    run = gatdiag.load(tmp_path / "run")
    assert series(run, "norm").tolist() == pytest.approx(norms, rel=1e-5)
    assert (series(run, "gradient_norm") > 0).all()
    assert run.neurons.step.nunique() == 3
    assert not run.meta["notes"]


def test_what_holds():
    model = Gat()
    binding = Binding(model)
    model(graph().x, graph().edge_index)
    assert binding.holds()
    model.convs[0].bias = nn.Parameter(model.convs[0].bias.detach())
    assert not binding.holds()
    assert holds_none_of([sgd(Gat())], model.parameters())
    assert not holds_none_of([sgd(Gat()), sgd(model)], model.parameters())
