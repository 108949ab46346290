import math

import numpy as np
import pandas as pd
import pytest

from gatdiag.report.tables import (
    Cell,
    gradient_table,
    law_tables,
    layer_table,
    pairs,
    parameter_table,
    settings_tables,
    value,
    whole,
    words,
)
from tests.report.builder import build


@pytest.mark.parametrize("number", [0.0, -3.25e-9, 12345.678, 1, np.float64(2.5)])
def test_a_cell_sorts_by_the_number_it_shows(number):
    cell = value(number)
    assert float(cell.value) == pytest.approx(float(number), rel=1e-5)
    assert float(cell.text) == pytest.approx(float(number), rel=1e-2)


def test_what_was_not_measured_is_empty_and_what_is_no_number_is_said():
    assert value(None) == value(pd.NA) == Cell("")
    assert value(math.nan) == Cell("NaN", "nan")
    assert value(-math.inf).value == "-Infinity"


def test_words_are_one_line_and_whole_numbers_whole():
    assert words("a\nb") == Cell("a b")
    assert words("") == Cell("")
    assert whole(1234567) == Cell("1234567", "1234567")


def test_pairs_are_rows_of_two():
    table = pairs("Versions", "v", ("", ""), {"python": "3.11", "torch": None})
    assert [[cell.text for cell in row] for row in table.rows] == [["python", "3.11"], ["torch", "None"]]
    assert not table.sortable


def column(table, label):
    place = [head.label for head in table.columns].index(label)
    return [row[place].text for row in table.rows]


def test_layers_stand_in_order_with_their_last_values(tmp_path):
    columns = {"mu": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]}
    gradients = {"relative_gradient_norm": [[0.1, 0.1, 0.1], [0.5, 0.25, 0.125]]}
    table = layer_table(build(tmp_path / "run", layers=columns, weights=gradients), "layers")
    assert column(table, "layer") == ["convs.0", "convs.1", "convs.2"]
    assert column(table, "mu") == ["4", "5", "6"]
    assert column(table, "rel. gradient norm") == ["0.5", "0.25", "0.125"]
    assert column(table, "kind") == ["GATv2Conv"] * 3


def test_a_quantity_of_a_coarser_cadence_says_its_step(tmp_path):
    columns = {"mu": np.ones((4, 2)), "mad": [[1.0, 2.0], [np.nan] * 2, [3.0, np.nan], [np.nan] * 2]}
    table = layer_table(build(tmp_path / "run", layers=columns), "layers")
    assert column(table, "mad (step 2)") == ["3", "NaN"]


def test_what_was_not_recorded_has_no_column(tmp_path):
    table = layer_table(build(tmp_path / "run", layers={"mu": [[1.0, 2.0]]}), "layers")
    assert [head.label for head in table.columns] == ["layer", "#", "kind", "executed", "mu"]


def test_every_parameter_has_its_row(tmp_path):
    table = parameter_table(build(tmp_path / "run", weights={"norm": [[1.5, 2.5]]}, width=3), "parameters")
    assert column(table, "parameter")[:3] == ["convs.0.lin_l.weight", "convs.0.att", "convs.0.bias"]
    assert column(table, "entries") == ["9", "3", "3"] * 2
    assert column(table, "norm") == ["1.5", "\N{EN DASH}", "\N{EN DASH}", "2.5", "\N{EN DASH}", "\N{EN DASH}"]


def test_laws_are_counted_by_layer_with_their_largest_values(tmp_path):
    c = np.array([[9.0, 9.0, 9.0, 9.0], [-4.0, 1.0, 0.5, -0.25]])
    run = build(tmp_path / "run", neurons={"c": c, "delta": c / 8}, layers={"mu": np.ones((2, 3))})
    (table,) = law_tables(run, "laws")
    assert column(table, "layer") == ["convs.0", "convs.1"]
    assert column(table, "laws") == ["2", "2"]
    assert column(table, "largest |c|") == ["4", "0.5"]
    assert column(table, "mean |c|") == ["2.5", "0.375"]
    assert column(table, "largest |delta|") == ["0.5", "0.0625"]


def test_what_has_no_law_is_listed_with_its_reason(tmp_path):
    laws = {"found": [], "excluded": [{"what": "convs.1", "reason": "sigmoid is not homogeneous"}], "error": None}
    (table,) = law_tables(build(tmp_path / "run", laws=laws), "laws")
    assert [[cell.text for cell in row] for row in table.rows] == [["convs.1", "sigmoid is not homogeneous"]]


def test_a_run_without_laws_has_no_such_table(tmp_path):
    assert law_tables(build(tmp_path / "run", laws={"found": [], "excluded": [], "error": None}), "laws") == ()


def test_gradients_have_a_table_of_their_own_and_zero_over_zero_is_a_dash(tmp_path):
    columns = {"output_gradient_norm": [[0.0, 2.0]], "relative_gradient_mu": [[np.nan, 0.5]], "mu": [[1.0, 2.0]]}
    run = build(tmp_path / "run", layers=columns)
    table = gradient_table(run, "gradients")
    assert table.columns[0].label == "layer"
    shown = [[cell.text for cell in row[1:]] for row in table.rows]
    assert shown == [["0", "\N{EN DASH}"], ["2", "0.5"]]
    assert len(layer_table(run, "layers").columns) == 5


def test_a_run_without_gradients_has_no_such_table(tmp_path):
    assert gradient_table(build(tmp_path / "run", layers={"mu": [[1.0, 2.0]]}), "gradients").rows == ()


GROUPS = [{"lr": 0.1, "parameters": ["a"]}, {"lr": 0.01, "momentum": 0.9, "parameters": ["b", "c"]}]


def tables(folder, **meta):
    run = build(folder, logged={"loss": [1.0]}, **meta)
    return {
        table.title: [[str(cell.text) for cell in row] for row in table.rows] for table in settings_tables(run, "s")
    }


def test_settings_versions_cadence_and_notes_are_there(tmp_path):
    found = tables(tmp_path / "run", notes=["attention entropy of convs.3: hidden"], name="ten layers")
    assert ["name", "ten layers"] in found["The run"]
    assert ["torch", "2.13.0"] in found["Versions"]
    assert ["sampled steps", "every step"] in found["Cadence"]
    assert ["ranks", "one of 50 sampled steps"] in found["Cadence"]
    assert found["Notes"] == [["1", "attention entropy of convs.3: hidden"]]


def test_an_optimizer_has_a_column_for_each_group(tmp_path):
    found = tables(tmp_path / "run", optimizers=[{"class": "Adam", "groups": GROUPS}])
    rows = found["Optimizer: Adam"]
    assert rows == [["lr", "0.1", "0.01"], ["momentum", "", "0.9"], ["parameter tensors", "1", "2"]]


def test_every_quantity_of_the_run_is_explained(tmp_path):
    run = build(tmp_path / "run", logged={"loss": [1.0]})
    catalogue = next(table for table in settings_tables(run, "s") if table.title == "Catalogue of quantities")
    assert [row[1].text for row in catalogue.rows] == [f"{q['table']}.{q['name']}" for q in run.meta["quantities"]]
    drawn = [str(row[3].text) for row, q in zip(catalogue.rows, run.meta["quantities"], strict=True) if q["equation"]]
    assert drawn
    assert all(text.startswith("<math") for text in drawn)


def test_what_is_not_known_is_left_out(tmp_path):
    found = tables(tmp_path / "run", notes=[], versions={}, optimizers=[], cadence={}, quantities=[])
    assert [*found] == ["The run"]
