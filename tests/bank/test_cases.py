"""The bank as data."""

from tests.bank import tasks
from tests.bank.calibration import CALIBRATION
from tests.bank.cases import BANK
from tests.bank.held_out import HELD_OUT
from tests.bank.network import ACTIVATIONS, INITS, LAYERS, NORMS, OUTPUTS
from tests.bank.tasks import EDGES, INPUTS, LABELS
from tests.bank.training import DATA, DISTURBANCES, LOSSES, OPTIMIZED


def test_what_is_held_out_has_seeds_of_its_own_and_shows_every_cause_and_other_graphs():
    assert HELD_OUT.keys() == CALIBRATION.keys()
    for one in BANK.values():
        assert one.is_held_out == (one.number >= 100)
        assert one.faulty.seed == one.number
        assert one.repaired is None or one.repaired.seed == one.number
    assert {one.faulty.graph for one in BANK.values() if not one.is_held_out} == {"blocks"}
    assert {one.faulty.graph for one in BANK.values() if one.is_held_out} == {"blocks", *tasks.GRAPHS}


def test_a_fault_is_a_change_of_its_twin():
    for one in BANK.values():
        assert one.repaired is None or one.repaired.changes(one.faulty), one.name


def test_every_key_that_a_recipe_may_have_is_used_by_the_bank():
    recipes = [recipe for one in BANK.values() for recipe in (one.faulty, one.repaired) if recipe]
    for name, keys in {
        "layer": LAYERS,
        "norm": NORMS,
        "activation": ACTIVATIONS,
        "output": OUTPUTS,
        "labels": LABELS,
        "edges": EDGES,
        "data": DATA,
        "loss": LOSSES,
        "optimizes": OPTIMIZED,
        "disturb": DISTURBANCES,
    }.items():
        assert {getattr(recipe, name) for recipe in recipes} == {*keys}
    assert {recipe.inputs[0] for recipe in recipes} == {*INPUTS}
    assert {name for recipe in recipes for name, _ in recipe.init} == {*INITS}
