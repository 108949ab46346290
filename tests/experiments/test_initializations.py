import pytest

import gatdiag
from gatdiag.errors import InputError
from gatdiag.experiments.initializations import SCHEMES, compare_initializations, settings_for
from gatdiag.experiments.synthetic import block_model
from gatdiag.experiments.training import TrainingSettings


@pytest.mark.parametrize(("name", "rate"), [("sbm", 0.01), ("CiteSeer", 0.1), ("Texas", 0.01)])
def test_learning_rates_are_those_of_the_paper(name, rate):
    settings = settings_for(name)
    assert (settings.optimizer, settings.learning_rate, settings.weight_decay) == ("SGD", rate, 0.0)


def test_both_trainings_differ_in_their_weights_alone(tmp_path):
    heard = []
    folders = compare_initializations(
        block_model(nodes=160, words=16),
        tmp_path,
        TrainingSettings(epochs=2, seed=3),
        layers=3,
        width=8,
        progress=lambda scheme, number, epoch: heard.append((scheme, number)),
    )
    assert folders == (tmp_path / "xavier", tmp_path / "balanced-orthogonal")
    assert heard == [(scheme, number) for scheme in SCHEMES for number in range(2)]
    first, second = (gatdiag.load(folder) for folder in folders)
    assert first.meta["optimizers"] == second.meta["optimizers"]
    assert first.meta["structure"] == second.meta["structure"]
    assert first.snapshot("initial")["convs.0.att"].any()
    assert not second.snapshot("initial")["convs.0.att"].any()
    assert first.meta["best"]["name"] == "val_accuracy"


def test_a_run_that_is_there_is_replaced_only_when_told(tmp_path):
    graph, settings = block_model(nodes=160, words=16), TrainingSettings(epochs=1)
    compare_initializations(graph, tmp_path, settings, layers=2, width=4)
    with pytest.raises(InputError):
        compare_initializations(graph, tmp_path, settings, layers=2, width=4)
    compare_initializations(graph, tmp_path, TrainingSettings(epochs=2), layers=2, width=4, overwrite=True)
    assert len(gatdiag.load(tmp_path / "xavier").steps) == 2
