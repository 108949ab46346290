import pytest
from typer.testing import CliRunner

from gatdiag.cli.app import app
from gatdiag.diagnosis import CAUSES, HEALTHY, UNDETERMINED, UNEXPLAINED
from gatdiag.diagnosis.thresholds import limits_of
from gatdiag.diagnosis.wording import number, plain
from gatdiag.quantities import HEALTHY as RANGES


def explain(*arguments):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["explain", *arguments])


def test_all_codes_are_listed_in_their_order():
    done = explain()
    assert done.exit_code == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["code", "cause"]
    assert all(rows)
    assert [row[0] for row in rows if row and row[0] in CAUSES] == [*CAUSES]
    assert "Oversmoothing" in done.stdout


@pytest.mark.parametrize("code", CAUSES)
def test_a_cause_is_explained_from_the_tables(code):
    done = explain(code)
    assert done.exit_code == 0, done.stderr
    cause = CAUSES[code]
    assert done.stdout.startswith(f"{cause.title} [{code}]\n")
    for name in cause.limits:
        assert f"    {plain(limits_of([name])[name].amount)}: {limits_of([name])[name].reason}\n" in done.stdout
    for word in ("severity: ", "place in the order of causes: ", "to paste:", "wrong if: "):
        assert word in done.stdout
    assert cause.falsified_by in done.stdout
    assert cause.remedy is None or all(f"    {line}\n" in done.stdout for line in cause.remedy.code.splitlines())


def test_what_is_looked_for_is_said():
    assert "\nUnits that are zero at every node: inputs of a layer" in explain("dead-units").stdout


def test_the_quantity_by_layer_and_its_range_are_those_of_the_page():
    low, high = RANGES["layers.zero_inputs"]
    range_of_all = f"nine in ten layers of healthy trainings: {plain(number(low))} to {plain(number(high))}"
    assert f"\nshown by layer: inputs that are zero at every node; {range_of_all}\n" in explain("dead-units").stdout
    assert "shown by layer" not in explain("overfitting").stdout


@pytest.mark.parametrize(("code", "near"), [("init-unbalnced", "'init-unbalanced'"), ("dead_units", "'dead-units'")])
def test_a_typo_names_the_nearest_code(code, near):
    done = explain(code)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gatdiag: no cause is called '{code}'")
    assert f"Did you mean {near}" in line


@pytest.mark.parametrize("verdict", [HEALTHY, UNEXPLAINED, UNDETERMINED])
def test_a_verdict_that_is_no_cause_is_explained_in_a_line(verdict):
    done = explain(verdict)
    assert (done.exit_code, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{verdict}: ")


def test_what_is_like_no_code_gets_the_way_to_the_list():
    assert explain("xyz").stderr == "gatdiag: no cause is called 'xyz': gatdiag explain lists all\n"
