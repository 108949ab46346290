from gatdiag.report.settings import settings_tables
from tests.report.builder import build

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
    assert found["What recording could not do"] == [["1", "attention entropy of convs.3: hidden"]]


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
