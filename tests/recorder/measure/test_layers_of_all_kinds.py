"""Layers and models that are not a plain stack of convolutions."""

import math
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GAT, GATConv, GCNConv, GINConv, GraphSAGE, HGTConv, global_mean_pool

import gatdiag
from gatdiag.errors import InputError
from gatdiag.recorder import RecordingWarning
from tests.recorder.loops import Gat, graph, sgd, train, train_step


def recorded(folder, model, *inputs, steps=2, loss=lambda out: out.square().mean(), **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gatdiag.watch(model, folder, **options):
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model(*inputs)).backward()
            optimizer.step()
    return gatdiag.load(folder)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_changes_no_number(tmp_path, reentrant):
    class Checkpointed(Gat):
        def forward(self, x, edge_index):
            x = F.relu(self.convs[0](x, edge_index))
            x = F.relu(checkpoint(self.convs[1], x, edge_index, use_reentrant=reentrant))
            return self.convs[2](x, edge_index)

    plain = train(tmp_path / "plain", steps=3).run
    saved = train(tmp_path / "saved", steps=3, make_model=Checkpointed).run
    assert len(saved.layers) == 9
    for column in ("output_norm", "mu", "output_gradient_norm", "gradient_mu", "attention_entropy"):
        assert saved.layers[column].tolist() == pytest.approx(plain.layers[column].tolist(), nan_ok=True)


def test_a_checkpointed_model_trains_as_without_gatdiag(tmp_path):
    x, edge_index = graph().x, graph().edge_index
    losses = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = Gat()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gatdiag.watch(model, tmp_path / "run") if watched else nullcontext():
            for _ in range(3):
                optimizer.zero_grad()
                loss = checkpoint(model, x, edge_index, use_reentrant=False).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    assert losses[:3] == losses[3:]
    assert gatdiag.load(tmp_path / "run").laws


def test_a_layer_that_runs_several_times_is_seen_at_its_last_run(tmp_path):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(5, 5)

        def forward(self, x):
            for _ in range(3):
                x = torch.tanh(self.lin(x))
            return x

    torch.manual_seed(0)
    model, x = Recurrent(), torch.randn(7, 5)
    hidden = torch.tanh(model.lin(torch.tanh(model.lin(x))))
    last = model.lin(hidden)
    last.retain_grad()
    torch.tanh(last).square().mean().backward()
    model.zero_grad()
    run = recorded(tmp_path / "run", model, x, steps=1)
    assert len(run.layers) == 1
    assert run.layers.output_norm[0] == pytest.approx(last.detach().double().norm().item(), rel=1e-5)
    assert run.layers.output_gradient_norm[0] == pytest.approx(last.grad.double().norm().item(), rel=1e-5)


def test_tuples_dicts_and_keywords(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GATConv(5, 4)
            self.lstm = nn.LSTM(4, 3)

        def forward(self, *, features, edges):
            x, _ = self.conv(features, edges, return_attention_weights=True)
            out, (hidden, _) = self.lstm(x)
            return {"count": torch.tensor(3), "out": out, "hidden": [hidden]}

    model, data = Model(), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(2):
            model(features=data.x, edges=data.edge_index)["out"].sum().backward()
            optimizer.step()
    run = gatdiag.load(tmp_path / "run")
    assert run.layers.layer.tolist() == ["conv", "lstm"] * 2
    assert run.layers.output_gradient_norm.notna().all()
    assert run.layers.attention_entropy[0] > 0
    assert run.layers.dirichlet_energy[:2].notna().all()


def test_models_of_pyg_that_were_not_written_for_this(tmp_path):
    data = graph()
    for number, model in enumerate(
        [
            GAT(5, 8, 3, 2, heads=2, v2=True, norm="batch"),
            GraphSAGE(5, 8, 2, 3),
            GINConv(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))),
        ]
    ):
        run = recorded(tmp_path / str(number), model, data.x, data.edge_index)
        assert len(run.layers) == 2 * len(run.layer_names)
        assert run.layers.output_gradient_norm.notna().all()
        assert len(run.neurons) > 0


def test_frozen_and_unused_parameters(tmp_path):
    class Model(Gat):
        def __init__(self):
            super().__init__()
            self.unused = nn.Linear(2, 2)
            self.convs[0].requires_grad_(False)

    torch.manual_seed(0)
    model, data = Model(), graph()
    run = recorded(tmp_path / "run", model, data.x, data.edge_index, steps=3)
    table = run.parameters[run.parameters.step == 2].set_index("layer")
    for layer in ("convs.0", "unused"):
        assert table.loc[layer].gradient_norm.isna().all()
        assert table.loc[layer].relative_gradient_norm.isna().all()
        assert (table.loc[layer].unchanged_fraction == 1).all()
        assert table.loc[layer].norm.notna().all()
    assert run.steps.gradient_norm.gt(0).all()
    layers = run.layers[run.layers.step == 2].set_index("layer")
    assert layers.index.tolist() == ["convs.0", "convs.1", "convs.2"]
    assert math.isnan(layers.output_gradient_norm["convs.0"])
    assert layers.output_norm["convs.0"] > 0


def test_a_lazy_model(tmp_path):
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GCNConv(-1, 4)
            self.head = nn.LazyLinear(3)

        def forward(self, x, edge_index):
            return self.head(F.relu(self.conv(x, edge_index)))

    model, data = Lazy(), graph()
    with gatdiag.watch(model, tmp_path / "run"):
        model(data.x, data.edge_index)
        optimizer = sgd(model)
        for _ in range(3):
            train_step(model, data, optimizer)
    run = gatdiag.load(tmp_path / "run")
    assert run.layer_names == ("conv", "head")
    assert (run.layers.groupby("step").size() == 2).all()
    assert len(run.neurons) == 3 * 4


def test_a_lazy_layer_that_is_never_called_is_not_recorded(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = GATConv(5, 4, edge_dim=0), nn.Linear(4, 3)

        def forward(self, x, edge_index):
            return self.head(F.relu(self.conv(x, edge_index)))

    data = graph()
    run = recorded(tmp_path / "run", Model(), data.x, data.edge_index)
    assert run.layer_names == ("conv", "head")
    assert len(run.neurons) > 0
    assert "conv.lin_edge.weight" not in set(run.parameters.parameter)


def test_what_is_not_recorded_is_not_said_to_be(tmp_path):
    model = nn.Linear(5, 3)
    model.unused = nn.LazyLinear(3)
    optimizer = sgd(model)
    with warnings.catch_warnings(record=True) as caught, gatdiag.watch(model, tmp_path / "run"):
        warnings.simplefilter("always")
        F.linear(graph().x, model.weight).sum().backward()  # the model's inputs stay unknown
        optimizer.step()
    assert ["unused' (LazyLinear) is lazy" in str(warning.message) for warning in caught] == [True]


def test_graphs_in_batches_are_pooled(tmp_path):
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = GCNConv(5, 4), nn.Linear(4, 2)

        def forward(self, x, edge_index, batch):
            return self.head(global_mean_pool(F.relu(self.conv(x, edge_index)), batch))

    data = graph()
    run = recorded(tmp_path / "run", Classifier(), data.x, data.edge_index, torch.arange(20) // 5)
    energies = run.layers[run.layers.step == 0].set_index("layer").dirichlet_energy
    assert energies["conv"] > 0
    assert math.isnan(energies["head"]), "its rows are graphs, to which the edges do not belong"


def test_parameters_of_which_nothing_is_measured_are_null(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 2)
            self.code = nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)

        def forward(self, x):
            return self.lin(x * self.code)

    run = recorded(tmp_path / "run", Model(), torch.randn(5, 3), metrics="fast")
    code = run.parameters[run.parameters.parameter == "code"]
    assert code.norm.isna().all()
    assert run.arrow("parameters").column("norm").null_count == 2
    assert run.meta["first_non_finite"] is None


def test_edges_of_one_pass_are_not_taken_for_those_of_the_next(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.conv = nn.Linear(5, 4), GCNConv(4, 2)

        def forward(self, x, edge_index):
            return self.conv(F.relu(self.encode(x)), edge_index)

    data = graph()
    run = recorded(tmp_path / "run", Model(), data.x, data.edge_index, metrics="full", steps=3)
    energies = run.layers.set_index("layer").dirichlet_energy
    assert energies["encode"].isna().all(), "its edges are not known when it runs"
    assert energies["conv"].gt(0).all()


def test_only_layers_that_are_wanted(tmp_path):
    run = train(tmp_path / "run", include="convs.*", exclude=["*.1"]).run
    assert run.layer_names == ("convs.0", "convs.2")
    assert set(run.layers.layer) == set(run.parameters.layer) == {"convs.0", "convs.2"}
    assert set(run.neurons.layer) == {"convs.0"}
    with pytest.raises(InputError, match=r"No layer is left.*convs\.0"):
        train(tmp_path / "none", include="lin*")
    assert not (tmp_path / "none").exists()


def test_a_model_without_laws_is_noted_without_a_warning(tmp_path):
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ELU(), nn.Linear(3, 2)), torch.randn(5, 4)
    run = recorded(tmp_path / "run", model, x)
    assert "no conservation law" in run.meta["laws"]["error"]
    assert len(run.layers) == 4
    assert any("conservation law" in note for note in run.meta["notes"])


def test_training_in_evaluation_mode_finds_its_laws_too(tmp_path):
    model, data = Gat().eval(), graph()
    run = recorded(tmp_path / "run", model, data.x, data.edge_index)
    assert len(run.neurons) == 2 * 12
    assert run.neurons.delta.abs().max() < 1e-5


def test_evaluation_is_not_recorded(tmp_path):
    """Forward passes without gradients, before and after the step, change no recorded value."""
    plain = train(tmp_path / "plain", steps=3).run

    def evaluate(step, model):
        other = graph(seed=9)
        with torch.no_grad():
            model(other.x, other.edge_index)
        model(other.x, other.edge_index)  # with gradients enabled, but never part of a backward pass
        model.eval()
        model(other.x, other.edge_index)
        model.train()

    run = train(tmp_path / "run", steps=3, before_step=evaluate).run
    columns = ["output_norm", "mu", "output_gradient_norm"]
    assert run.layers[columns].equals(plain.layers[columns])


def test_half_and_double_precision(tmp_path):
    for dtype in (torch.float64, torch.bfloat16):
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).to(dtype), torch.randn(9, 4).to(dtype)
        run = recorded(tmp_path / str(dtype), model, x, steps=3)
        assert run.meta["dtype"] == str(dtype).removeprefix("torch.")
        assert run.parameters.update_ratio.max() > 0
        assert run.snapshot("final")["0.weight"].shape == (3, 4)
        table = run.parameters[run.parameters.step == 2]
        assert table.unchanged_fraction.between(0, 1).all()
        assert table.changed_fraction_005.between(0, 1).all()


def test_of_a_layer_that_returns_a_dict_the_part_that_is_recorded_is_named_once(tmp_path):
    written = torch.tensor([[0, 1, 2], [0, 1, 1]])
    kinds, edges = (
        ["author", "paper"],
        {("author", "writes", "paper"): written, ("paper", "by", "author"): written.flip(0)},
    )
    conv = HGTConv(4, 6, (kinds, list(edges)), heads=2)
    model = nn.Sequential(conv)
    x = {"author": torch.randn(3, 4), "paper": torch.randn(2, 4)}
    optimizer, norms = torch.optim.SGD(model.parameters(), lr=0.01), []
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(2):
            out = conv(x, edges)
            norms.append(out["author"].detach().double().norm().item())
            sum(values.square().sum() for values in out.values()).backward()
            optimizer.step()
            optimizer.zero_grad()
    run = gatdiag.load(tmp_path / "run")
    assert run.layers[run.layers.layer == "0"].output_norm.tolist() == pytest.approx(norms, rel=1e-5)
    notes = [note for note in run.meta["notes"] if "is recorded as" in note]
    assert notes == ["0 returns 'author', 'paper'; only 'author' is recorded as its output"]


def test_passes_inside_function_transforms_are_not_looked_at(tmp_path, recwarn):
    model, x = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(6, 5)
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(2):
            torch.func.vmap(model)(x)
            F.cross_entropy(model(x), torch.arange(6) % 3).backward()
            optimizer.step()
            optimizer.zero_grad()
    run = gatdiag.load(tmp_path / "run")
    assert (len(run.layers), len(run.neurons)) == (4, 8)
    assert not [each for each in recwarn if issubclass(each.category, RecordingWarning)]


def test_a_head_that_the_loop_calls_after_the_model_is_of_the_same_pass(tmp_path):
    """As in self-supervised learning, where `forward` is the encoder alone."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.second(self.first(x).relu())

    model, x, y = Encoder(), torch.randn(20, 5), torch.arange(20) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(3):
            loss = F.cross_entropy(model.head(model(x).relu()), y)
            loss = loss + F.cross_entropy(model.head(model(-x).relu()), y)  # a second pass
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    layers = gatdiag.load(tmp_path / "run").layers
    assert layers.groupby("step")["layer"].agg(list).tolist() == [["first", "second", "head"]] * 3
    assert layers.output_gradient_norm.notna().all()
