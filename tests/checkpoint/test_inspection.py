"""A series of checkpoints as a run, against the same numbers computed from the models that were saved."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GCN

import gatdiag
from gatdiag.checkpoint import ModelCase, inspect, layer_table, open_all
from gatdiag.diagnosis import diagnose
from gatdiag.errors import InputError, ModelError
from gatdiag.experiments.data import load_graph
from gatdiag.experiments.models import gat

STEPS = (0, 3, 10)


def built(data, seed=0):
    torch.manual_seed(seed)
    return gat(data.num_features, 5, hidden_channels=8, layers=3)


@pytest.fixture(scope="module")
def data():
    return load_graph("sbm")


@pytest.fixture(scope="module")
def saved(data, tmp_path_factory):
    """Folder of checkpoints of a training, and the models as they were."""
    folder = tmp_path_factory.mktemp("checkpoints")
    model = built(data)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    models = {}
    for step in range(max(STEPS) + 1):
        if step in STEPS:
            models[step] = copy.deepcopy(model)
            states = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
            torch.save({"epoch": step, **states}, folder / f"epoch{step}.pt")
        optimizer.zero_grad()
        F.cross_entropy(model(data.x, data.edge_index), data.y).backward()
        optimizer.step()
    return folder, models


def loss_on(data):
    return lambda output: F.cross_entropy(output[data.train_mask], data.y[data.train_mask])


def make_case(data, given="model"):
    """What is given beside the checkpoints: the model, or that and its loss on data, or nothing."""
    if given == "state dict":
        return None
    return ModelCase(built(data, seed=9), (data.x, data.edge_index), loss=loss_on(data) if "data" in given else None)


@pytest.fixture(scope="module", params=["state dict", "model", "model and data"])
def inspected(request, saved, data, tmp_path_factory):
    case = make_case(data, request.param)
    return inspect(open_all(saved[0]), tmp_path_factory.mktemp("run") / "run", case=case), request.param


def test_a_step_for_each_checkpoint(inspected):
    inspection, _ = inspected
    assert inspection.run.steps.step.tolist() == list(STEPS)
    assert inspection.run.steps.epoch.tolist() == list(STEPS)
    assert [one.path.name for one in inspection.checkpoints] == [f"epoch{step}.pt" for step in STEPS]
    assert inspection.run.meta["status"] == "finished"
    assert inspection.run.name.startswith("checkpoints")
    assert set(inspection.notes) <= set(inspection.run.meta["notes"])


def test_weights(inspected, saved):
    table = inspected[0].run.parameters.set_index(["step", "parameter"])
    first = dict(saved[1][0].named_parameters())
    for step, model in saved[1].items():
        for name, weight in model.named_parameters():
            row = table.loc[step, name]
            assert row.norm == pytest.approx(weight.double().norm().item(), rel=1e-5)
            assert row.unchanged_fraction == pytest.approx((weight == first[name]).double().mean().item())
            change = (weight - first[name]).abs().double()
            assert row.absolute_change_q50 == pytest.approx(change.median().item(), rel=0.3, abs=1e-6)
            assert row.absolute_change_q100 == pytest.approx(change.max().item(), rel=1e-5, abs=1e-12)
            assert row.non_finite == 0
            if weight.dim() == 2:  # of attention vectors there is none, as in a recorded run
                sigma = torch.linalg.matrix_norm(weight.double(), 2).item()
                assert row.spectral_norm == pytest.approx(sigma, rel=1e-5)
            else:
                assert math.isnan(row.spectral_norm)


def test_c_is_that_of_the_models_laws(inspected, saved, data):
    neurons = inspected[0].run.neurons
    for step, model in saved[1].items():
        laws = gatdiag.find_laws(model, data.x, data.edge_index)
        expected = {(law.layer, law.neuron): c for law, c in zip(laws, laws.c().tolist(), strict=True)}
        rows = neurons[neurons.step == step]
        found = {(row.layer, row.neuron): row.c for row in rows.itertuples()}
        assert found == pytest.approx(expected, abs=1e-5)


def test_gradients_are_those_of_a_training_step(inspected, saved, data):
    inspection, how = inspected
    table = inspection.run.parameters.set_index(["step", "parameter"])
    if how != "model and data":
        assert "gradient_norm" not in table or table.gradient_norm.isna().all()
        assert not len(inspection.run.layers)
        return
    outputs = inspection.run.layers.set_index(["step", "layer"])
    for step, model in saved[1].items():
        model.train()
        torch.manual_seed(0)
        seen = []
        handles = [layer.register_forward_hook(lambda _m, _i, out: seen.append(out)) for layer in model.convs]
        model.zero_grad()
        loss = loss_on(data)(model(data.x, data.edge_index))
        loss.backward()
        for handle in handles:
            handle.remove()
        assert inspection.run.steps.set_index("step").loss[step] == pytest.approx(loss.item(), rel=1e-5)
        for name, weight in model.named_parameters():
            assert table.loc[step, name].gradient_norm == pytest.approx(weight.grad.norm().item(), rel=1e-4)
        for layer, out in zip(("convs.0", "convs.1", "convs.2"), seen, strict=True):
            mu = (out - out.mean(0)).norm().item()
            assert outputs.loc[step, layer].mu == pytest.approx(mu, rel=1e-4)
    assert inspection.run.neurons.delta.abs().max() < 1e-5
    assert table.update_ratio.isna().all()


def test_a_single_checkpoint_has_no_change(saved, tmp_path):
    run = inspect(open_all(saved[0] / "epoch10.pt"), tmp_path / "run").run
    assert "unchanged_fraction" not in run.parameters or run.parameters.unchanged_fraction.isna().all()
    assert run.steps.step.tolist() == [10]
    assert run.name == "epoch10"


def test_checkpoints_without_a_step_are_counted(data, tmp_path):
    model = built(data)
    for name in ("first", "second", "third"):
        torch.save(model.state_dict(), tmp_path / f"{name}.pt")
    inspection = inspect(open_all([tmp_path / f"{name}.pt" for name in ("first", "second", "third")]), tmp_path / "run")
    assert inspection.run.steps.step.tolist() == [0, 1, 2]
    found = [note for note in inspection.notes if "no step later" in note]
    assert len(found) == 1
    assert "second.pt" in found[0]
    assert "third.pt" in found[0]
    assert inspection.checkpoints[-1].position is None


def test_names_that_do_not_fit_the_model_are_told(saved, data, tmp_path):
    state = dict(saved[1][0].state_dict())
    del state["convs.1.att"]
    state["extra.weight"] = torch.ones(2, 2)
    state["convs.2.att"] = torch.ones(1, 1, 17)
    torch.save(state, tmp_path / "other.pt")
    found = inspect(open_all(tmp_path / "other.pt"), tmp_path / "run", case=make_case(data))
    notes = " ".join(found.mismatches)
    assert not set(found.mismatches) & set(found.notes)
    assert set(found.mismatches) <= set(found.run.meta["notes"])
    for words in ("missing in the checkpoint", "unexpected in the checkpoint", "another shape"):
        assert words in notes
    for name in ("'convs.1.att'", "'extra.weight'", "'convs.2.att'"):
        assert name in notes


@pytest.fixture(scope="module")
def broken(saved, tmp_path_factory):
    """The first checkpoint with two entries of a weight that are not finite."""
    folder = tmp_path_factory.mktemp("broken")
    state = torch.load(saved[0] / "epoch0.pt")
    weight = state["model_state_dict"]["convs.0.lin_l.weight"].clone()  # shared with lin_r
    weight[0, 1], weight[2, 3] = torch.nan, torch.inf
    state["model_state_dict"] |= {"convs.0.lin_l.weight": weight, "convs.0.lin_r.weight": weight}
    torch.save(state, folder / "epoch0.pt")
    return folder / "epoch0.pt"


@pytest.mark.parametrize("given", ["state dict", "model", "model and data"])
def test_what_is_not_finite_is_counted_and_costs_no_laws(broken, saved, data, tmp_path, given):
    found = inspect(open_all([broken, saved[0] / "epoch3.pt"]), tmp_path / "run", case=make_case(data, given))
    verdict = diagnose(found.run).verdict
    assert (verdict.code, verdict.evidence[0].value) == ("non-finite", 2)
    assert "2 entries of the parameter convs.0.lin_l.weight" in verdict.text
    c = found.run.neurons.pivot(index="step", columns="law", values="c")
    assert c.index.tolist() == [0, 3]
    assert len(c.columns) == 16
    assert (~np.isfinite(c.loc[0])).sum() == 2
    assert np.isfinite(c.loc[3]).all()


def test_a_prefix_on_one_side_is_no_obstacle(saved, data, tmp_path):
    torch.save({f"net.{name}": value for name, value in saved[1][3].state_dict().items()}, tmp_path / "net.pt")
    inspection = inspect(open_all(tmp_path / "net.pt"), tmp_path / "run", case=make_case(data))
    assert set(inspection.run.parameters.parameter) == {name for name, _ in saved[1][3].named_parameters()}


def test_a_checkpoint_of_other_widths_is_refused_with_what_differs(saved, data, tmp_path):
    wide = ModelCase(gat(data.num_features, 4, hidden_channels=9, layers=3), (data.x, data.edge_index))
    with pytest.raises(InputError) as raised:
        inspect(open_all(saved[0]), tmp_path / "run", case=wide)
    text = str(raised.value)
    assert "it has 0 of the model's 9 tensors with the same shape" in text
    assert "of another shape" in text
    assert "the model's [1, 1, 9]" in text
    assert "Give the model that was saved" in text
    assert not (tmp_path / "run").exists()


def test_a_loss_that_fails_ends_the_run(saved, data, tmp_path):
    def broken(output):
        raise ValueError("no such thing")

    case = ModelCase(built(data), (data.x, data.edge_index), loss=broken)
    with pytest.raises(ModelError, match="no such thing"):
        inspect(open_all(saved[0]), tmp_path / "run", case=case)
    assert gatdiag.load(tmp_path / "run").meta["status"] == "failed"


def test_a_layer_that_grew_has_no_change(tmp_path):
    torch.manual_seed(0)
    for step, width in ((1, 4), (2, 6)):
        torch.save(GCN(3, width, 2, out_channels=2).state_dict(), tmp_path / f"step{step}.pt")
    inspection = inspect(open_all(tmp_path), tmp_path / "run")
    last = inspection.run.parameters[inspection.run.parameters.step == 2].set_index("parameter")
    assert np.isnan(last.loc["convs.0.lin.weight"].unchanged_fraction)
    assert not np.isnan(last.loc["convs.1.bias"].unchanged_fraction)
    assert any("of shape [6, 3] instead of [4, 3]" in note for note in inspection.notes)
    assert set(inspection.run.neurons.step) == {1}


def test_a_series_of_two_models_is_refused(tmp_path):
    torch.save(GCN(3, 4, 2, out_channels=2).state_dict(), tmp_path / "step1.pt")
    torch.save({"other.weight": torch.eye(3)}, tmp_path / "step2.pt")
    with pytest.raises(InputError, match="different models"):
        inspect(open_all(tmp_path), tmp_path / "run")


def test_a_row_says_nothing_of_earlier_checkpoints(tmp_path):
    state = GCN(3, 4, 3, out_channels=2).state_dict()
    torch.save(state, tmp_path / "step1.pt")
    torch.save({name: value for name, value in state.items() if "convs.2" not in name}, tmp_path / "step2.pt")
    *_, last = layer_table(inspect(open_all(tmp_path), tmp_path / "run")).itertuples()
    assert last.layer == "convs.2"
    assert math.isnan(last.norm)
    assert math.isnan(last.changed)
    assert math.isnan(last.c)


def test_why_a_layer_has_no_c_is_told(tmp_path):
    model = GCN(3, 4, 2, out_channels=2, norm="batch")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    notes = inspect(open_all(tmp_path / "model.pt"), tmp_path / "run").notes
    assert any(note.startswith("no c: ") and "give --model, then c is exact" in note for note in notes)
    plain, graph = GCN(3, 4, 2, out_channels=2, act="elu"), torch.tensor([[0, 1], [1, 0]])
    torch.save(plain.state_dict(), tmp_path / "elu.pt")
    case = ModelCase(plain, (torch.ones(2, 3), graph))
    notes = inspect(open_all(tmp_path / "elu.pt"), tmp_path / "elu", case=case).notes
    assert any("no laws" in note and "elu" in note for note in notes)


def codes(inspection):
    return {finding.code: finding for finding in diagnose(inspection.run)}


class TestFindings:
    def of(self, state, folder, **further):
        torch.save({"state_dict": state, **further}, folder / "x.pt")
        return codes(inspect(open_all(folder / "x.pt"), folder / "run", overwrite=True))

    def test_nan_and_dead_neurons(self, saved, tmp_path):
        state = copy.deepcopy(saved[1][10].state_dict())
        assert self.of(state, tmp_path) == {}
        state["convs.1.att"][0, 0, 2] = math.nan
        state["convs.1.lin_l.weight"][:3] = 0
        found = self.of(state, tmp_path)
        broken, dead = found["non-finite"], found["dead-weights"]
        assert (broken.severity, broken.layers, broken.parameters) == ("error", ("convs.1",), ("convs.1.att",))
        assert "1 entry of the parameter convs.1.att is NaN or infinite" in broken.text
        assert (dead.severity, dead.layers) == ("warning", ("convs.1",))
        assert "3 neurons" in dead.text

    def test_parameters_that_no_gradient_reached(self, tmp_path):
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2))
        optimizer = torch.optim.Adam(model.parameters())
        model[1](model[0](torch.ones(1, 3))).sum().backward()
        for parameter in model[2].parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        found = self.of(model.state_dict(), tmp_path, optimizer=optimizer.state_dict())["parameters-without-gradient"]
        assert found.parameters == ("2.weight", "2.bias")

    def test_layers_that_never_trained(self, tmp_path):
        torch.manual_seed(0)
        state = GCN(3, 8, 3, out_channels=2).state_dict()
        for step in (0, 100):
            state["convs.0.lin.weight"] = state["convs.0.lin.weight"] + step
            torch.save(state, tmp_path / f"step{step}.pt")
        found = codes(inspect(open_all(tmp_path), tmp_path / "run"))["unchanged-checkpoints"]
        assert found.layers == ("convs.1", "convs.2")

    @pytest.mark.parametrize(
        "model",
        [
            nn.ModuleDict({"emb": nn.Embedding(9, 4, padding_idx=0)}),
            nn.ModuleDict({"a": nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))}),
        ],
    )
    def test_rows_that_are_no_neurons_are_not_dead(self, tmp_path, model):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter[0] = 0
        assert self.of(model.state_dict(), tmp_path) == {}
        assert gatdiag.load(tmp_path / "run").parameters[["dead_rows", "dead_columns"]].isna().all(axis=None)


def test_checkpoints_are_a_line_of_text(tmp_path):
    torch.save(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 2)).state_dict(), tmp_path / "a.pt")
    opened = open_all(tmp_path / "a.pt")
    assert repr(opened) == f"[Checkpoint({str(tmp_path / 'a.pt')!r}, torch, 4 tensors)]"
    assert repr(inspect(opened, tmp_path / "run")) == "Inspection(1 checkpoint, 2 layers, 0 mismatches)"
