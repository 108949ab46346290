from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import gatdiag.experiments.reproduce
from gatdiag.experiments.data import prepared_graph
from gatdiag.experiments.experiment import prepared_model
from gatdiag.experiments.reproduce.engine import REPRODUCTIONS as KNOWN
from gatdiag.experiments.reproduce.reproduction import Reproduction
from gatdiag.experiments.training import train

GATS = {name: one for name, one in KNOWN.items() if "Out of Balance" in one.paper}
PRINTED_RATES = {  # of the paper, by optimizer and depth; heterophilic graphs last
    ("SGD", 2): (0.1, 0.05),
    ("SGD", 5): (0.1, 0.05),
    ("SGD", 10): (0.05, 0.01),
    ("SGD", 20): (0.05, 0.005),
    ("SGD", 40): (0.005, 0.0005),
    ("Adam", 5): (0.005, None),
    ("Adam", 10): (0.0005, None),
    ("Adam", 20): (0.0005, None),
}
SLOWNESS = {"texas.npz": 0.1, "cornell.npz": 0.1, "wisconsin.npz": 0.1}  # of a layer's epoch; of Cora it is 1
SMALL = {"tree": "tree:depth=2", "other": "csbm:nodes=100,features=8"}
QUICK = 60_000  # of Cora's layer-epochs of width 64: at 15 ms each, and on two cores, 7.5 minutes


def test_every_name_that_is_stated_is_in_the_list_and_numbers_are_in_order():
    folder = Path(gatdiag.experiments.reproduce.__file__).parent
    modules = [import_module(f"gatdiag.experiments.reproduce.{path.stem}") for path in folder.glob("*.py")]
    stated = [one.name for module in modules for one in vars(module).values() if isinstance(one, Reproduction)]
    assert sorted(stated) == sorted(KNOWN)
    beyond = {path.stem.replace("_", "-") for path in folder.glob("beyond_*.py")}
    assert beyond == {name for name, one in KNOWN.items() if not one.paper}
    expected = [f"figure-{number}" for number in range(2, 13)] + [f"table-{number}" for number in range(2, 8)]
    assert [name for name in KNOWN if name in expected] == expected
    assert all(name == one.name for name, one in KNOWN.items())


@pytest.mark.parametrize("name", KNOWN)
def test_a_name_says_what_it_is(name):
    one = KNOWN[name]
    assert one.title
    assert one.claim.endswith(".")
    assert one.full or one.evidence
    assert bool(one.full) == bool(one.quick)
    assert one.record or not any(drawing.table is None for drawing in one.drawings)
    for published in one.published:  # it is of trainings that are planned, of one group of seeds
        fitting = {
            replace(cell, seed=0)
            for cell in one.full
            if all(getattr(cell, key) == value for key, value in published.where.items())
        }
        assert len(fitting) == 1, published


@pytest.mark.parametrize("name", KNOWN)
def test_quick_is_ten_minutes_on_two_cores(name):
    work = 0.0
    for cell in KNOWN[name].quick:
        size = cell.layers * max(cell.heads * cell.width / 64, 0.5) * (0.3 if cell.model in ("gcn", "sgc") else 1)
        work += cell.epochs * size * SLOWNESS.get(cell.data, 1.0)
    assert work <= QUICK


@pytest.mark.parametrize("name", GATS)
def test_learning_rates_and_limits_are_those_of_the_paper(name):
    for cell in GATS[name].full:
        printed = PRINTED_RATES.get((cell.optimizer, cell.layers))
        if cell.learning_rate == 0 and printed:
            assert cell.rate == printed[cell.data.endswith(".npz")]
        if name != "table-6":  # LipschitzNorm is of other code
            assert (cell.epochs, cell.stop_below) == (5000, 1e-4)
        if name not in ("table-5", "table-6", "figure-6"):
            assert cell.width == 64
            assert not cell.bias


def test_rates_of_figures_that_differ_from_the_papers_table():
    rates = {name: {(cell.layers, cell.rate) for cell in KNOWN[name].full} for name in KNOWN}
    assert rates["figure-2"] == {(3, 0.1), (10, 0.1)}
    assert rates["figure-3"] == {(5, 0.1)}
    assert rates["figure-4"] == rates["figure-5"] == {(10, 0.1)}
    assert rates["figure-8"] == {(5, 0.1), (10, 0.05), (20, 0.01)}
    assert rates["figure-11"] == {(10, 0.05), (20, 0.01)}
    assert rates["figure-12"] == {(5, 0.005), (10, 0.0001)}


def test_names_share_trainings():
    with_lipschitz = {cell for cell in KNOWN["table-6"].full if cell.model == "deep-gat"}
    shared = with_lipschitz & {*KNOWN["lipschitz-depth"].full}
    assert {(cell.data, cell.layers) for cell in shared} == {(d, n) for d in ("Cora", "PubMed") for n in (5, 10, 20)}
    assert {*KNOWN["figure-11"].full} < {*KNOWN["figure-8"].full}
    assert {*KNOWN["figure-4"].full} < {*KNOWN["figure-5"].full}
    assert {*KNOWN["figure-3"].full} < {*KNOWN["table-3"].full}


def test_every_kind_of_training_can_be_begun():
    small = {"width": 4, "seed": 0, "epochs": 1, "passes": 1}
    kinds = {
        replace(cell, **small, data=SMALL["tree" if cell.trees else "other"], layers=min(cell.layers, 3))
        for one in KNOWN.values()
        for cell in (*one.full, *one.quick)
    }
    graphs = {name: prepared_graph(name) for name in SMALL.values()}
    for kind in kinds:
        graph = graphs[kind.data]
        assert len(train(prepared_model(kind, graph), graph, kind).epochs) == 1
