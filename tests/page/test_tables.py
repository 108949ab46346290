import math

import numpy as np
import pytest

from gatdiag.diagnosis.wording import MINUS, TIMES
from gatdiag.page.tables import (
    cell_text,
    gradient_table,
    law_tables,
    layer_table,
    parameter_table,
    settings_tables,
    table_of_quantities,
)
from tests.page.builder import NO_LAYERS, build

GROUPS = [{"lr": 0.1, "parameters": ["a"]}, {"lr": 0.01, "momentum": 0.9, "parameters": ["b", "c"]}]
DASH = "\N{EN DASH}"


def column(table, label):
    place = list(table.columns).index(label)
    return [cell_text(row[place]) for row in table.rows]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0"), (-3.25e-9, f"{MINUS}3.25 {TIMES} 10⁻⁹"), (12345.678, "12,346"), (1, "1"), (1234567, "1,234,567"),
     (np.float64(2.5), "2.5"), (-2.5, f"{MINUS}2.5")],
)  # fmt: skip
def test_a_cell_shows_a_number_as_text_does(number, text):
    assert cell_text(number).replace("\N{NO-BREAK SPACE}", " ") == text


def test_what_is_no_number_is_said():
    cells = (None, math.nan, -math.inf, "a\nb", "")
    assert [cell_text(cell) for cell in cells] == [DASH, "NaN", "\N{MINUS SIGN}∞", "a b", ""]


def test_layers_stand_in_order_with_their_last_values(tmp_path):
    columns = {"mu": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]}
    gradients = {"relative_gradient_norm": [[0.1, 0.1, 0.1], [0.5, 0.25, 0.125]]}
    table = layer_table(build(tmp_path / "run", layers=columns, weights=gradients), "layers")
    assert list(table.columns) == ["layer", "#", "kind", "executed", "rel. gradient norm", "mu"]
    assert column(table, "layer") == ["convs.0", "convs.1", "convs.2"]
    assert column(table, "mu") == ["4", "5", "6"]
    assert column(table, "rel. gradient norm") == ["0.5", "0.25", "0.125"]
    assert [table.is_numeric(place) for place in range(6)] == [False, True, False, False, True, True]


def test_a_quantity_of_a_coarser_cadence_says_its_step(tmp_path):
    columns = {"mu": np.ones((4, 2)), "mad": [[1.0, 2.0], [np.nan] * 2, [3.0, np.nan], [np.nan] * 2]}
    table = layer_table(build(tmp_path / "run", layers=columns), "layers")
    assert column(table, "mean cosine distance (step 2)") == ["3", "NaN"]


def test_every_parameter_has_its_row(tmp_path):
    table = parameter_table(build(tmp_path / "run", weights={"norm": [[1.5, 2.5]]}, width=3), "parameters")
    assert column(table, "parameter")[:3] == ["convs.0.lin_l.weight", "convs.0.att", "convs.0.bias"]
    assert column(table, "entries") == ["9", "3", "3"] * 2
    assert column(table, "norm") == ["1.5", DASH, DASH, "2.5", DASH, DASH]


def test_laws_are_counted_by_layer_with_their_largest_values(tmp_path):
    c = np.array([[9.0, 9.0, 9.0, 9.0], [-4.0, 1.0, 0.5, -0.25]])
    excluded = [{"what": "convs.1", "reason": "sigmoid is not homogeneous"}]
    run = build(tmp_path / "run", neurons={"c": c, "delta": c / 8}, layers={"mu": np.ones((2, 3))})
    run.meta["laws"]["excluded"] = excluded
    table, missing = law_tables(run, "laws")
    assert column(table, "layer") == ["convs.0", "convs.1"]
    assert column(table, "laws") == ["2", "2"]
    assert column(table, "largest |c|") == ["4", "0.5"]
    assert column(table, "mean |c|") == ["2.5", "0.375"]
    assert column(table, "largest |delta|") == ["0.5", "0.0625"]
    assert missing.rows == [["convs.1", "sigmoid is not homogeneous"]]


def test_gradients_have_a_table_of_their_own_and_zero_over_zero_is_a_dash(tmp_path):
    columns = {"output_gradient_norm": [[0.0, 2.0]], "relative_gradient_mu": [[np.nan, 0.5]], "mu": [[1.0, 2.0]]}
    run = build(tmp_path / "run", layers=columns | {"gradient_rayleigh_quotient": [[np.nan, 0.25]]})
    table = gradient_table(run, "gradients")
    assert [[cell_text(cell) for cell in row] for row in table.rows] == [
        ["convs.0", "0", DASH, DASH],
        ["convs.1", "2", "0.5", "0.25"],
    ]
    assert len(layer_table(run, "layers").columns) == 5


def test_what_was_not_recorded_has_no_table(tmp_path):
    run = build(tmp_path / "run", layers={"mu": [[1.0, 2.0]]}, laws=NO_LAYERS["laws"])
    assert gradient_table(run, "gradients").rows == list(law_tables(run, "laws")) == []


def tables(run):
    return {table.title: table for table in settings_tables(run, "s")}


def test_settings_versions_cadence_and_notes_are_there(tmp_path):
    optimizers = [{"class": "Adam", "groups": GROUPS}]
    given = {"notes": ["attention entropy of convs.3: hidden"], "name": "ten layers", "optimizers": optimizers}
    found = tables(build(tmp_path / "run", **given))
    assert ["name", "ten layers"] in found["The run"].rows
    assert ["torch", "2.13.0"] in found["Versions"].rows
    assert ["recorded steps", "every step"] in found["Recording schedule"].rows
    assert ["ranks", "1 in 50 recorded steps"] in found["Recording schedule"].rows
    assert found["Notes"].rows == [["1", "attention entropy of convs.3: hidden"]]
    rows = found["Optimizer: Adam"].rows
    assert rows == [["lr", "0.1", "0.01"], ["momentum", "", "0.9"], ["parameter tensors", "1", "2"]]
    assert not any(
        table.columns for title, table in found.items() if title in ("The run", "Recording schedule", "Versions")
    )


def test_every_quantity_of_the_runs_is_explained_once(tmp_path):
    run = build(tmp_path / "run")
    quantities = table_of_quantities([run, run], "quantities")
    assert [row[1] for row in quantities.rows] == [f"{q['table']}.{q['name']}" for q in run.meta["quantities"]]
    assert [row[3] for row in quantities.rows] == [q["equation"] for q in run.meta["quantities"]]


def test_what_is_not_known_is_left_out(tmp_path):
    run = build(tmp_path / "run", notes=[], versions={}, optimizers=[], cadence={}, quantities=[])
    assert [*tables(run)] == ["The run"]
