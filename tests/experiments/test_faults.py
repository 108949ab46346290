"""The bank of faults: data, trainings, criteria and counting; no test trains all of it."""

import math
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import gatdiag
from gatdiag.diagnosis import HEALTHY, Diagnosis
from gatdiag.experiments.faults import bank, tasks
from gatdiag.experiments.faults.bank import evaluate_case, is_right, run_cases, should_count
from gatdiag.experiments.faults.cases import CALIBRATION, HELD_OUT, Case, cases
from gatdiag.experiments.faults.network import ACTIVATIONS, INITS, NORMS, OUTPUTS, make_network
from gatdiag.experiments.faults.recipe import Recipe
from gatdiag.experiments.faults.tables import confusion_table, write_bank
from gatdiag.experiments.faults.tasks import INPUTS, LABELS
from gatdiag.experiments.faults.training import DISTURBANCES, LOSSES, OPTIMIZED, Outcome, train

SMALL = Recipe(nodes=200, width=8, steps=6, optimizer="SGD", lr=0.5)
BANK = [*cases()]


def case(cause="lr-too-small", number=0, **plant):
    repaired = replace(SMALL, seed=number)
    return Case(cause, number, replace(repaired, **plant), None if cause == HEALTHY else repaired)


# --- the bank as data -------------------------------------------------------------------------------------------------


def test_the_bank_is_as_large_and_as_varied_as_it_says():
    faulty = [case for case in BANK if case.cause != HEALTHY]
    assert len(faulty) >= 120
    assert len(CALIBRATION[HEALTHY]) >= 40
    assert min(map(len, CALIBRATION.values())) >= 4
    assert len({case.name for case in BANK}) == len(BANK)
    recipes = [case.faulty for case in faulty] + [case.repaired for case in faulty]
    assert {recipe.task for recipe in recipes} == {"nodes", "graphs", "links", "regression"}
    assert {recipe.optimizer for recipe in recipes} == {"SGD", "momentum", "Nesterov", "Adam", "AdamW", "RMSprop"}
    assert {"gcn", "gat", "gatv2", "sage", "gin", "transformer", "mlp"} <= {recipe.layer for recipe in recipes}
    assert (min(recipe.depth for recipe in recipes), max(recipe.depth for recipe in recipes)) == (2, 64)
    assert any(recipe.batch for recipe in recipes)


def test_what_is_held_out_has_seeds_of_its_own_and_shows_every_cause_and_other_graphs():
    assert HELD_OUT.keys() == CALIBRATION.keys()
    assert min(map(len, HELD_OUT.values())) >= 3
    assert len(HELD_OUT[HEALTHY]) >= 20
    for one in BANK:
        assert one.is_held_out == (one.number >= 100)
        assert one.faulty.seed == one.number
        assert one.repaired is None or one.repaired.seed == one.number
    assert {one.faulty.graph for one in BANK if not one.is_held_out} == {"blocks"}
    assert {one.faulty.graph for one in BANK if one.is_held_out} == {"blocks", *tasks.GRAPHS}


def test_a_fault_is_a_change_of_its_twin():
    for one in BANK:
        assert one.repaired is None or one.repaired.changes(one.faulty), one.name


# --- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["nodes", "graphs", "links", "regression"])
def test_a_task_is_the_same_each_time_and_leaves_the_random_state(task):
    recipe = replace(SMALL, task=task, seed=3)
    state = torch.get_rng_state()
    first, again = tasks.make_task(recipe), tasks.make_task(recipe)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.x, tasks.make_task(replace(recipe, seed=4)).x)
    assert first.is_training.any()
    assert not first.is_training.all()


def test_links_that_are_asked_for_are_not_shown():
    task = tasks.make_task(replace(SMALL, task="links"))
    shown = {tuple(edge) for edge in task.edge_index.T.tolist()}
    pairs = [tuple(pair) for pair in task.groups.T.tolist()]
    assert len({*pairs}) == len(pairs) == 2 * int(task.y.sum())
    assert not shown & {*pairs}
    assert all((end, start) in shown for start, end in shown)


@pytest.mark.parametrize("task", ["nodes", "graphs", "links", "regression"])
def test_a_batch_is_what_the_whole_says_of_these_examples(task):
    """Of graphs and links outputs are those of all examples at once; of nodes, the features and labels at least."""
    made = tasks.make_task(replace(SMALL, task=task))
    batch = made.sample(10, torch.Generator().manual_seed(0))
    whole = made.split(is_training=True)
    assert len(batch.rows) == len(batch.y) == 10
    if task in ("nodes", "regression"):
        for row, label in zip(batch.args[0][batch.rows], batch.y, strict=True):
            assert any(torch.equal(made.x[n], row) and torch.equal(made.y[n], label) for n in whole.rows)
        return
    torch.manual_seed(0)
    model = make_network(replace(SMALL, task=task), made.x.shape[1], made.out_channels)
    all_rows = model(*whole.args)
    matches = torch.stack([(all_rows - row).abs().sum(1).argmin() for row in model(*batch.args)[batch.rows]])
    torch.testing.assert_close(all_rows[matches], model(*batch.args)[batch.rows])
    assert torch.equal(made.y[matches], batch.y)


@pytest.mark.parametrize("graph", [*tasks.GRAPHS])
def test_graphs_are_the_same_each_time_linked_both_ways_and_of_all_classes(graph):
    recipe = replace(SMALL, graph=graph, nodes=100, seed=3)
    task = tasks.make_task(recipe)
    links = {tuple(link) for link in task.edge_index.T.tolist()}
    assert torch.equal(tasks.make_task(recipe).edge_index, task.edge_index)
    assert len(links) == task.edge_index.shape[1]
    assert all((end, start) in links and start != end for start, end in links)
    assert task.edge_index.max() < 100 == len(task.x)
    assert task.y.unique().tolist() == [0, 1, 2, 3]
    alike = (task.y[task.edge_index[0]] == task.y[task.edge_index[1]]).float().mean()
    assert alike < 0.1 if graph == "other classes" else alike > 0.35


# --- trainings --------------------------------------------------------------------------------------------------------


def test_a_plain_training_is_gradient_descent(tmp_path):
    """The loop against one written out: the same losses, to the bit."""
    train(SMALL, tmp_path / "run")
    task = tasks.make_task(SMALL)
    torch.manual_seed(SMALL.seed)
    tasks.make_task(SMALL)
    model = make_network(SMALL, 32, 4)
    losses = []
    for _ in range(SMALL.steps):
        loss = F.cross_entropy(model(task.x, task.edge_index)[task.is_training], task.y[task.is_training])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.5 * gradient
        losses.append(loss.item())
    assert gatdiag.load(tmp_path / "run").steps["loss"].tolist() == losses


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"task": "graphs", "batch": 5, "layer": "gin"},
        {"task": "links", "layer": "mlp", "dropout": 0.5, "optimizer": "AdamW", "lr": 0.01},
        {"resumed": True, "schedule": "warm-up", "clip": 0.1},
    ],
)
def test_equal_recipes_give_equal_runs(tmp_path, change):
    recipe = replace(SMALL, **change)
    state = torch.get_rng_state()
    first = train(recipe, tmp_path / "first")
    torch.manual_seed(5)
    assert repr(train(recipe, tmp_path / "second")) == repr(first)
    torch.set_rng_state(state)
    runs = [gatdiag.load(tmp_path / name) for name in ("first", "second")]
    for table in ("steps", "layers", "parameters", "neurons"):
        one, other = (getattr(run, table).drop(columns="time", errors="ignore") for run in runs)
        assert one.equals(other), table
    assert len(runs[0].steps) == recipe.steps


def test_the_yardstick_is_the_share_of_the_loss_that_was_removed(tmp_path):
    """Against the loss by hand, whatever the training minimized."""
    recipe = replace(SMALL, output="softmax", steps=40)
    outcome = train(recipe, tmp_path / "run")
    task = tasks.make_task(recipe)
    model = make_network(replace(recipe, output="logits"), 32, 4)
    weights = gatdiag.load(tmp_path / "run").snapshot("final")
    model.load_state_dict({name: torch.as_tensor(value) for name, value in weights.items()})
    log = model(task.x, task.edge_index).detach().log_softmax(1)
    nodes = task.is_training.nonzero().flatten().tolist()
    loss = -sum(float(log[node, task.y[node]]) for node in nodes) / len(nodes)
    assert outcome.train == pytest.approx(1 - loss / math.log(4), abs=1e-5)


def test_drift_is_how_far_c_went(tmp_path):
    outcome = train(SMALL, tmp_path / "run")
    run = gatdiag.load(tmp_path / "run")
    before, after = (run.neurons[run.neurons["step"] == step]["c"].to_numpy() for step in (0, SMALL.steps - 1))
    assert outcome.drift == pytest.approx(abs(after - before).sum(), rel=1e-9)


def test_every_key_that_a_recipe_may_have_is_used_by_the_bank():
    recipes = [one.faulty for one in BANK]
    assert {recipe.loss for recipe in recipes} == {*LOSSES}
    assert {recipe.optimizes for recipe in recipes} == {*OPTIMIZED}
    assert {recipe.disturb for recipe in recipes} == {*DISTURBANCES}
    assert {recipe.activation for recipe in recipes} == {*ACTIVATIONS}
    assert {recipe.output for recipe in recipes} == {*OUTPUTS}
    assert {recipe.norm for recipe in recipes} == {*NORMS}
    assert {recipe.inputs[0] for recipe in recipes} == {*INPUTS}
    assert {recipe.labels for recipe in recipes} == {*LABELS}
    assert {name for one in BANK for name, _ in (*one.faulty.init, *(one.repaired or one.faulty).init)} == {*INITS}


@pytest.mark.parametrize("part", [*OPTIMIZED])
def test_what_the_optimizer_is_given(part):
    torch.manual_seed(0)
    model = make_network(replace(SMALL, depth=3), 32, 4)
    all_of_it = {id(parameter) for parameter in model.parameters()}
    given = {id(parameter) for parameter in OPTIMIZED[part](model)}
    now = {id(parameter) for parameter in model.parameters()}
    trained = {
        "all": all_of_it,
        "last": {id(parameter) for parameter in model.encoder.convs[-1].parameters()},
        "biases": {id(conv.bias) for conv in model.encoder.convs},
        "of a copy": set(),
        "before rebuilding": {id(parameter) for parameter in model.encoder.convs[-1].parameters()},
        "layers in a list": {id(parameter) for parameter in model.encoder.convs[-1].parameters()},
    }
    assert given & {*now, *(id(p) for conv in model.encoder.convs for p in conv.parameters())} == trained[part]
    task = tasks.make_task(SMALL)
    assert model(task.x, task.edge_index).requires_grad


# --- criteria and counting --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "faulty", "twin", "expected"),
    [
        ("dead-units", Outcome(0.2, 0.9, 0), Outcome(0.9, 0.0, 0), True),
        ("dead-units", Outcome(0.2, 0.0, 0), Outcome(0.44, 0.9, 0), False),  # the twin fails, too
        ("dead-units", Outcome(0.8, 0.0, 0), Outcome(0.99, 0.9, 0), False),  # the fault does little harm
        ("overfitting", Outcome(1.0, 0.0, 0), Outcome(0.6, 0.3, 0), True),
        ("overfitting", Outcome(0.0, 0.2, 0), Outcome(1.0, 0.3, 0), False),
        ("law-broken", Outcome(0.9, 0.5, 1.0), Outcome(0.9, 0.5, 0.01), True),
        ("law-broken", Outcome(0.9, 0.5, 0.05), Outcome(0.9, 0.5, 0.01), False),
        ("law-broken", Outcome(0.9, 0.5, math.nan), Outcome(0.9, 0.5, math.nan), False),
        (HEALTHY, Outcome(0.5, 0.0, 0), None, True),
        (HEALTHY, Outcome(0.49, 0.9, 0), None, False),
    ],
)
def test_a_fault_counts_where_its_twin_is_clearly_better(cause, faulty, twin, expected):
    assert should_count(cause, faulty, twin) == expected


@pytest.mark.parametrize(
    ("cause", "verdict", "severity", "all_findings", "expected"),
    [
        ("dead-units", "dead-units", "error", "dead-units", True),
        ("dead-units", "lr-too-large", "error", "lr-too-large dead-units", False),
        ("dead-units", "healthy", "", "", False),
        ("law-broken", "overfitting", "note", "overfitting law-broken", True),
        ("law-broken", "dead-units", "warning", "dead-units law-broken", False),
        (HEALTHY, "healthy", "", "", True),
        (HEALTHY, "overfitting", "note", "overfitting", True),
        (HEALTHY, "lr-too-large", "warning", "lr-too-large", False),
    ],
)
def test_a_verdict_is_right_where_the_planted_cause_is_named(cause, verdict, severity, all_findings, expected):
    assert is_right(cause, verdict, severity, all_findings) == expected


def result(cause, verdict, severity="error", twin=("healthy", ""), *, right=False, counts=True, rules=HEALTHY):
    twin, of_twin = ("", "", "") if cause == HEALTHY else (*twin, "dead-units"), verdict
    return {
        "case": f"{cause}-00",
        "planted": cause,
        "held_out": False,
        "counts": counts,
        "right": right,
        "verdict": verdict,
        "severity": severity,
        "all_findings": of_twin,
        "published_rules": rules,
        "twin_verdict": twin[0],
        "twin_severity": twin[1],
        "twin_all_findings": "",
        "twin_published_rules": twin[2],
    }


RESULTS = pd.DataFrame(
    [
        result("dead-units", "dead-units", right=True, rules="dead-units"),
        result("dead-units", "lr-too-large", rules="lr-too-large"),
        result("dead-units", "healthy", "", twin=("lr-too-large", "warning")),
        result("dead-units", "dead-units", right=True, counts=False),
        result("law-broken", "overfitting", "note", right=True),
        result("law-broken", "dead-units", "warning"),
        result(HEALTHY, "healthy", "", right=True),
        result(HEALTHY, "overfitting", "note", right=True),
        result(HEALTHY, "lr-too-large", "warning", rules="dead-units"),
        result(HEALTHY, "lr-too-large", "error"),
    ]
)


def test_verdicts_are_counted_by_cause():
    rows = confusion_table(RESULTS).to_numpy().tolist()
    assert rows == [
        ["dead-units", 3, 1, 1, "lr-too-large, healthy"],
        ["law-broken", 2, 1, 0, "dead-units"],
        [HEALTHY, 4, 2, 3, "lr-too-large 2"],
    ]


def test_tables_hold_each_case_and_what_it_comes_to(tmp_path):
    (page,) = write_bank(RESULTS, tmp_path)
    assert len((tmp_path / "calibration.csv").read_text().splitlines()) == 1 + len(RESULTS)
    assert (tmp_path / "calibration.md").read_text() == page
    assert "Right verdict: 2 of 5 (40%); published rules: 1 (20%)" in page
    assert "Of 4 healthy controls: 1 with an error, 1 with a warning; published rules: 1" in page
    assert "Of 5 repaired twins: 0 with an error, 1 with a warning; published rules: 5" in page
    assert "Not counted, since the repaired twin does not train clearly better: dead-units-00" in page
    assert "| dead-units | 3 | 1 | 1 | lr-too-large, healthy |" in page
    wrong = page.partition("## Missed faults")[2].splitlines()[4:]
    assert [line.split(" | ")[0] for line in wrong] == [
        *("| dead-units-00", "| dead-units-00", "| dead-units-00, repaired"),
        *("| law-broken-00", "| healthy-00", "| healthy-00"),
    ]
    assert "| dead-units-00, repaired | lr-too-large | warning |" in page


# --- the whole way ----------------------------------------------------------------------------------------------------


def test_results_are_the_same_whatever_the_number_of_processes(tmp_path):
    chosen = [case(lr=1e-6), case("input-nonfinite", 2, inputs=("NaN in rows", 1)), case(HEALTHY, 4)]
    done = []
    alone = run_cases(partial(evaluate_case, folder=tmp_path / "alone"), chosen, jobs=1, on_done=lambda: done.append(1))
    together = run_cases(partial(evaluate_case, folder=tmp_path / "together"), chosen, jobs=2)
    assert together.equals(alone)
    assert alone["case"].to_list() == [one.name for one in chosen]
    assert len(done) == len(chosen)
    assert alone["progress"][0] < alone["twin_progress"][0]
    assert alone["progress"][1] == 0
    assert alone["published_rules"].to_list()[1:] == ["nonfinite-operation", "healthy"]


def test_what_was_trained_is_not_trained_again_but_diagnosed(tmp_path, monkeypatch):
    trained = []

    def counted(recipe, folder):
        trained.append(folder.name)
        return train(recipe, folder)

    monkeypatch.setattr(bank, "train", counted)
    first = run_cases(partial(evaluate_case, folder=tmp_path), [case(lr=1e-6)], jobs=1)
    monkeypatch.setattr(bank, "diagnose", lambda run: Diagnosis())
    again = run_cases(partial(evaluate_case, folder=tmp_path), [case(lr=1e-6)], jobs=1)
    assert trained == ["faulty", "repaired"]
    assert again["progress"].equals(first["progress"])
    assert again["verdict"][0] == HEALTHY
    run_cases(partial(evaluate_case, folder=tmp_path), [case(lr=1e-5)], jobs=1)  # another recipe of that name
    assert trained == ["faulty", "repaired", "faulty"]
