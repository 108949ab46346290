import json
from dataclasses import asdict, replace

import pytest
import torch

import gatdiag
from gatdiag.errors import InputError, ModelError
from gatdiag.experiments.data import load_graph
from gatdiag.experiments.experiment import FILE, make_document, prepared_model, run_experiment
from gatdiag.experiments.models import gat
from gatdiag.experiments.settings import Experiment
from gatdiag.experiments.training import train
from gatdiag.remedies import initialize_
from gatdiag.remedies.lipschitz_layers import LipschitzMixin

QUICK = Experiment(data="csbm:nodes=200,features=16", layers=3, width=8, learning_rate=0.1, epochs=12)


def test_it_is_the_loop_on_the_network_from_the_scheme():
    result = run_experiment(replace(QUICK, initialization="balanced_orthogonal", seed=3))
    graph = load_graph(QUICK.data)
    model = gat(16, 2, hidden_channels=8, layers=3)
    initialize_(model, "balanced_orthogonal", generator=torch.Generator().manual_seed(3))
    epochs = train(model, graph, Experiment(learning_rate=0.1, epochs=12, seed=3)).epochs
    best = [epoch.val_accuracy for epoch in epochs].index(max(epoch.val_accuracy for epoch in epochs))
    assert result.epochs_to_best == best + 1
    assert result.test_accuracy == epochs[best].test_accuracy
    assert result.val_accuracy == epochs[best].val_accuracy
    assert (result.last_test_accuracy, result.last_train_accuracy, result.loss) == (
        epochs[-1].test_accuracy,
        epochs[-1].train_accuracy,
        epochs[-1].loss,
    )
    assert (result.epochs, result.converged) == (12, False)


def test_watched_and_unwatched_are_the_same_and_the_file_says_so(tmp_path):
    experiment = replace(QUICK, dropout=0.5)
    torch.manual_seed(9)
    state = torch.get_rng_state()
    bare = run_experiment(experiment)
    watched = run_experiment(experiment, folder=tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), state)
    assert watched == bare
    assert bare != run_experiment(replace(experiment, seed=1))
    written = json.loads((tmp_path / "run" / FILE).read_text())
    assert written["result"] == asdict(bare)
    assert Experiment(**written["settings"]) == experiment
    run = gatdiag.load(tmp_path / "run")
    assert run.steps["loss"].iloc[-1] == bare.loss
    assert run.steps["val_accuracy"].max() == bare.val_accuracy
    assert (tmp_path / "run" / "best.safetensors").exists()


def test_a_training_that_ends_early_says_that_it_has_no_result(tmp_path):
    def stop(number, epoch):
        if number == 3:
            raise KeyboardInterrupt

    run_experiment(QUICK, folder=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(QUICK, folder=tmp_path / "run", overwrite=True, progress=stop)
    assert json.loads((tmp_path / "run" / FILE).read_text())["result"] is None
    assert gatdiag.load(tmp_path / "run").steps["step"].tolist() == [0, 1, 2, 3]


def test_a_run_that_is_there_stays_unless_told(tmp_path):
    run_experiment(QUICK, folder=tmp_path / "run")
    before = (tmp_path / "run" / FILE).read_bytes()
    run_experiment(replace(QUICK, seed=1), folder=tmp_path / "run")
    assert (tmp_path / "run" / FILE).read_bytes() == before
    assert json.loads((tmp_path / "run-2" / FILE).read_text())["settings"]["seed"] == 1
    run_experiment(replace(QUICK, seed=1), folder=tmp_path / "run", overwrite=True)
    assert json.loads((tmp_path / "run" / FILE).read_text())["settings"]["seed"] == 1


@pytest.mark.parametrize("scheme", ["default", "xavier", "xavier_zero_attention", "balanced_xavier"])
def test_first_weights_are_those_of_the_scheme_and_the_seed(scheme):
    graph = load_graph(QUICK.data)
    first, again, other = (
        prepared_model(replace(QUICK, initialization=scheme, seed=seed), graph).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    assert (first["convs.0.att"] == 0).all() == (scheme in ("xavier_zero_attention", "balanced_xavier"))


@pytest.mark.parametrize("model", ["omega-gat", "deep-gt", "sage"])
def test_networks_that_are_no_stack_are_balanced_by_their_laws(model):
    graph = load_graph(QUICK.data)
    network = prepared_model(replace(QUICK, model=model, initialization="balanced_xavier"), graph)
    laws = gatdiag.find_laws(network, graph.x, graph.edge_index)
    assert len(laws) > 0
    assert float(torch.as_tensor(laws.normalized_c()).abs().max()) < 1e-5


def test_remedies_are_on():
    graph = load_graph(QUICK.data)
    normalized = prepared_model(replace(QUICK, weight_norm=4.0), graph)
    for conv in normalized.convs:
        assert float(conv.lin_l.weight.detach().norm()) == pytest.approx(4, rel=1e-5)
    divided = prepared_model(replace(QUICK, lipschitz="paper"), graph)
    assert all(isinstance(conv, LipschitzMixin) for conv in divided.convs)
    with pytest.raises(ModelError, match="attention vector is zero"):
        prepared_model(replace(QUICK, lipschitz="paper", initialization="balanced_orthogonal"), graph)


@pytest.mark.parametrize(
    ("data", "optimizer", "rates"),  # for 2, 5, 10, 20 and 40 layers, from section 4 of the paper
    [
        ("Cora", "SGD", [0.1, 0.1, 0.05, 0.05, 0.005]),
        ("CiteSeer:isolated=unmasked", "SGD", [0.1, 0.1, 0.05, 0.05, 0.005]),
        ("texas.npz", "SGD", [0.05, 0.05, 0.01, 0.005, 0.0005]),
        ("cora", "Adam", [0.005, 0.005, 0.0005, 0.0005, 0.0005]),
        ("PubMed", "Adam", [0.01, 0.01, 0.001, 0.001, 0.001]),
        ("sbm", "SGD", [0.01] * 5),
    ],
)
def test_learning_rates_are_those_of_the_paper(data, optimizer, rates):
    settings = [Experiment(data=data, optimizer=optimizer, layers=layers) for layers in (2, 5, 10, 20, 40)]
    assert [one.rate for one in settings] == pytest.approx(rates)
    assert replace(settings[0], learning_rate=0.3).rate == 0.3
    assert make_document(settings[2], None)["settings"]["learning_rate"] == pytest.approx(rates[2])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"transform": "rows"}, "transform"),
        ({"initialization": "zeros"}, "schemes"),
        ({"device": "cuda"}, "finds no GPU"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, message, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=message):
        run_experiment(replace(QUICK, **wrong), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_graph_without_nodes_to_test_on_is_refused():
    with pytest.raises(InputError, match="sbm:nodes=80 has no nodes for val and test"):
        run_experiment(Experiment(data="sbm:nodes=80", layers=2, epochs=2))


def test_a_loss_that_is_no_number_is_null_in_the_file(tmp_path):
    result = run_experiment(replace(QUICK, learning_rate=1e30, epochs=4), folder=tmp_path / "run")
    assert result.loss != result.loss or result.loss == float("inf")
    assert json.loads((tmp_path / "run" / FILE).read_text())["result"]["loss"] is None
