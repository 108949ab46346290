import math

import pytest

from gatdiag.run import Store
from gatdiag.summary import compared_score, loss_name, score_names, scores, split, training_facts
from tests.figures.odd_runs import bare_run, recorded_run
from tests.run.synthetic import synthetic_meta

LOSS = [3.0, 2.0, 0.5, 1.0, 0.5]
ACCURACY = [0.1, 0.7, 0.3, 0.7, 0.2]


@pytest.fixture
def run(tmp_path):
    def rows(step):
        return {"steps": {"train_loss": LOSS[step], "val_loss": 9.0, "val_acc": ACCURACY[step], "Accuracy/test": 0.5}}

    return recorded_run(tmp_path / "run", synthetic_meta(1, 1), rows, 5)


def test_the_facts_of_a_run(run):
    facts = training_facts(run)
    assert (facts.steps, facts.last_step, facts.loss) == (5, 4, "train_loss")
    assert (facts.first_loss, facts.last_loss, facts.best_loss, facts.best_loss_step) == (3.0, 0.5, 0.5, 2)
    assert (facts.metric, facts.best_metric, facts.best_step) == ("val_acc", 0.7, 1)


def test_the_metric_that_watch_was_told_counts(run):
    store = Store.resume(run.folder)
    store.update_meta(best={"name": "train_loss", "mode": "min", "value": 0.5, "step": 2})
    store.seal("finished")
    facts = training_facts(type(run)(run.folder))
    assert (facts.metric, facts.best_metric, facts.best_step) == ("train_loss", 0.5, 2)


def test_a_loss_that_breaks(broken):
    facts = training_facts(broken)
    assert math.isnan(facts.last_loss)
    assert (facts.best_loss_step, facts.best_loss) == (14, pytest.approx(1.86))


def test_nothing_logged(tmp_path):
    facts = training_facts(bare_run(tmp_path / "bare", logged=()))
    assert (facts.loss, facts.metric, facts.best_step, facts.best_loss_step) == (None, None, None, None)
    assert math.isnan(facts.first_loss)


def test_names_of_logged_scalars(run):
    assert loss_name(run) == "train_loss"
    assert score_names(run) == {"val": "val_acc", "test": "Accuracy/test"}
    assert [split(name) for name in ("training_loss", "valid_acc", "contest", "acc")] == ["train", "val", None, None]


def test_scores_are_told_apart_by_what_they_measure(tmp_path):
    run = bare_run(tmp_path / "run", logged=("loss", "test_ap", "test_auc", "val_auc", "train_acc", "f1"))
    assert scores(run) == {"accuracy": ["train_acc"], "AUC": ["val_auc", "test_auc"], "AP": ["test_ap"], "F1": ["f1"]}
    assert compared_score(run) == "AUC"
    assert score_names(run) == {"val": "val_auc", "test": "test_auc"}


def test_what_chose_the_best_step_is_what_a_run_is_judged_by(tmp_path):
    run = bare_run(tmp_path / "run", logged=("val_accuracy", "val_auc"))
    assert compared_score(run) == "accuracy"
    store = Store.resume(run.folder)
    store.update_meta(best={"name": "val_auc", "mode": "max", "value": 0.9, "step": 1})
    store.seal("finished")
    assert compared_score(type(run)(run.folder)) == "AUC"
