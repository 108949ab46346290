"""`python -m tests.bank` on a few small cases."""

import csv

import pytest

from gatdiag.diagnosis import HEALTHY
from gatdiag.quantities import HEALTHY as HEALTHY_RANGES
from gatdiag.quantities import compared_label
from tests.bank import __main__ as program
from tests.bank.cases import Case
from tests.bank.recipe import Recipe


def few():
    for number in (0, 100):
        usual = Recipe(width=8, steps=30, lr=0.05, seed=number)
        broken = Recipe(width=8, steps=30, lr=0.05, seed=number, inputs=("NaN in rows", 1))
        yield Case("input-nonfinite", number, broken, usual)
        yield Case("lr-too-small", number, Recipe(width=8, steps=30, lr=0.04, seed=number), usual)  # does no harm
        yield Case(HEALTHY, number, usual, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which three causes were scored in all parts, with its trainings."""
    folder = tmp_path_factory.mktemp("bank")
    causes = ["input-nonfinite", "lr-too-small", HEALTHY]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "BANK", {case.name: case for case in few()})
        patch.setattr(program, "PAIRS", ())
        patch.setattr(program, "REPORTS", {})
        program.main(["--causes", *causes, "--jobs", "1", "--folder", str(folder)])
        trained = {path: path.stat().st_mtime_ns for path in folder.rglob("faulty.json")}
        program.main(["calibration", "--causes", *causes, "--jobs", "1", "--folder", str(folder)])
    assert len(trained) == 6
    assert trained == {path: path.stat().st_mtime_ns for path in trained}
    return folder


def rows_of(path):
    with path.open() as file:
        return [*csv.DictReader(file)]


@pytest.mark.parametrize(("half", "number"), [("calibration", "00"), ("held-out", "100")])
def test_each_case_of_a_half_has_a_row_and_the_page_its_origin(folder, half, number):
    causes = ("input-nonfinite", "lr-too-small", HEALTHY)
    rows = rows_of(folder / "diagnosis" / f"{half}.csv")
    assert [row["case"] for row in rows] == [f"{cause}-{number}" for cause in causes]
    assert [row["counts"] for row in rows] == ["True", "False", "True"]
    assert [row["planted_as"] for row in rows] == ['{"inputs": ["NaN in rows", 1]}', '{"lr": 0.04}', "null"]
    page = (folder / "diagnosis" / f"{half}.md").read_text()
    command = f"python -m tests.bank {half} --causes {' '.join(causes)}"
    assert f"Written by `{command}` at commit {program.read_commit()}." in page
    assert "| input-nonfinite | 1 | 1 | 0 |" in page
    assert f"Not counted, since the repaired twin does not train clearly better: lr-too-small-{number}" in page


def test_what_preflight_predicts_is_counted_for_both_halves(folder):
    rows = rows_of(folder / "diagnosis" / "preflight.csv")
    assert [(row["network"], row["planted"], row["verdict"]) for row in rows] == [
        (f"{name}-{number}{twin}", cause, cause)
        for number in ("00", "100")
        for name, twin, cause in (
            ("input-nonfinite", "", "input-nonfinite"),
            ("input-nonfinite", ", repaired", HEALTHY),
            (HEALTHY, "", HEALTHY),
        )
    ]
    page = (folder / "diagnosis" / "preflight.md").read_text()
    assert page.count("Of 3 untrained networks, 1 will fail; 1 of these are flagged (100%)") == 2


def test_faults_are_treated_and_compared_with_their_twins(folder):
    (row,) = rows_of(folder / "treatment" / "calibration.csv")  # harmless faults and controls are not treated
    assert (row["case"], row["verdict"], row["good"]) == ("input-nonfinite-00", "input-nonfinite", "yes")
    assert row["remedy"] == "NaN in x replaced by 0, infinity by a value beyond all finite ones"
    faulty, treated, pasted, twin = (float(row[name]) for name in ("faulty", "treated", "pasted", "twin"))
    assert faulty < twin - 0.3
    assert abs(treated - twin) <= 0.05
    assert pasted == treated
    page = (folder / "treatment" / "calibration.md").read_text()
    assert "Cured: 1 of 1 (100%) by `treat` and 1 of 1 (100%) by the code that it prints, pasted; 0 more" in page


def test_quantities_are_measured_in_healthy_trainings_alone(folder):
    rows = {row["quantity"]: row for row in rows_of(folder / "diagnosis" / "ranges.csv")}
    assert [*rows] == [compared_label(column) for column in HEALTHY_RANGES]
    layers = {int(row["layers"]) for row in rows.values()}
    # of controls and of twins that are better, in both halves; one layer of each has inputs behind an activation
    assert layers <= {0, 4, 4 * 2, 4 * 3}, layers
    step = rows["update-to-weight ratio"]
    assert 0 < float(step["5%"]) < float(step["95%"]) < 1


def test_pairs_are_chosen_by_either_cause():
    chosen = program.select_items("pairs", ["dead-units"])
    assert [*program.PAIRS[chosen[0]][0]] == ["lr-too-small", "dead-units"]
    assert all("dead-units" in program.PAIRS[number][0] for number in chosen)
    assert program.select_items("pairs", [HEALTHY]) == []


def test_reports_are_chosen_by_what_is_right_and_all_without_a_choice():
    assert program.select_items("public", ["no-step"]) == ["loop-without-optimizer"]
    assert program.select_items("public", program.CAUSES) == [*program.REPORTS]


def test_an_unknown_part_or_cause_is_refused(capsys):
    for arguments in (["half"], ["--causes", "lr"]):
        with pytest.raises(SystemExit):
            program.main(arguments)
        assert "invalid choice" in capsys.readouterr().err
