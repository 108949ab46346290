"""The page of a treatment, for each way in which one can end."""

import numpy as np
import pytest

import gatdiag
from gatdiag.diagnosis import Evidence, Finding
from gatdiag.report.treatment import Attempt, treatment_section, write_treatment
from tests.report.builder import Reader, build
from tests.report.test_page import HOSTILE

FINDING = Finding(
    "lr-too-small", "error", "Learning rate too small", "Steps are short.", (Evidence("step over weights", 1e-7),),
    "Flagged below 1e-5.", figure="training_curves", remedy="optimizer = SGD(model.parameters(), lr=0.1)",
)  # fmt: skip


@pytest.fixture
def trained(tmp_path):
    """(name, last losses of seeds) -> runs, with a test accuracy of a tenth of each loss."""

    def make(name, losses):
        runs = []
        for seed, last in enumerate(losses):
            loss = np.linspace(2.0, last, 20)
            logged = {"loss": loss, "val_accuracy": loss / 10, "test_accuracy": loss / 10}
            runs.append(build(tmp_path / name / f"seed-{seed}", logged=logged))
        return runs

    return make


def words(path):
    reader = Reader(path.read_text())
    assert reader.unclosed == []
    assert reader.tags["script"] == 1
    return reader.words


def test_what_helped_is_shown_before_and_after_with_all_seeds(trained, tmp_path):
    before, after = trained("before", [2.0, 3.0, 4.0]), trained("after", [5.0, 6.0, 9.0])
    attempt = Attempt(FINDING, FINDING.remedy, ("learning rate 1e-6, now 0.1",), after, True)
    said = words(write_treatment(before, [attempt], tmp_path / "page.html"))
    assert "The remedy helped. The diagnosis: learning rate too small." in said
    assert "the test accuracy went from 30 % to 60 % (median of 3 seeds)" in said
    assert "20 % to 40 %" in said
    assert "50 % to 90 %" in said
    assert "learning rate 1e-6, now 0.1" in said
    assert FINDING.remedy in said
    assert "step over weights" in said
    assert "not flagged" in said
    assert "gatdiag report" in said


def test_remedies_that_did_not_help_and_those_that_cannot_be_applied_are_told(trained, tmp_path):
    before, after = trained("before", [2.0]), trained("after", [2.0])
    other = Finding("output-softmax-twice", "error", "Softmax twice", "A softmax too much.", remedy="return x")
    attempts = [
        Attempt(FINDING, "", ("rate",), after, False),
        Attempt(other, "return x", reason="Leave the softmax out."),
    ]
    said = words(write_treatment(before, attempts, tmp_path / "page.html"))
    assert "No remedy helped." in said
    assert "Not applied. Leave the softmax out." in said
    helped = [attempts[0], Attempt(other, "return x", ("none",), trained("second", [9.0]), True)]
    said = words(write_treatment(before, helped, tmp_path / "page.html"))
    assert "The remedy helped. The diagnosis: softmax twice." in said
    assert "Tried, and it did not help: test accuracy 20 % → 20 %" in said
    assert "The cause has to be removed in the code." in words(
        write_treatment(before, attempts[1:], tmp_path / "page.html")
    )


@pytest.mark.parametrize(
    ("runs", "ended_by", "ending", "says"),
    [
        ([9.0], "", "nothing to treat", "nothing was changed"),
        ([2.0], "Interrupted by hand.", "unfinished", "Cut short: Interrupted by hand. What was recorded"),
        ([], "ValueError: <b>", "unfinished", "Nothing was found or changed until then"),
        ([np.nan, 2.0], "", "nothing to treat", "2 to NaN"),
    ],
)
def test_nothing_to_treat_and_what_was_cut_short(trained, tmp_path, runs, ended_by, ending, says):
    before = trained("before", runs)
    assert treatment_section(before, [], ended_by).ending == ending
    assert says in words(write_treatment(before, [], tmp_path / "page.html", ended_by=ended_by))


def test_a_training_without_a_row_or_an_end_does_not_hinder_the_page(trained, tmp_path):
    empty = build(tmp_path / "empty", ending="interrupted")
    before = trained("before", [2.0, 3.0])
    section = treatment_section(before, [Attempt(FINDING, "", ("rate",), [empty])], "Interrupted")
    assert section.ending == "unfinished"
    assert "With its remedy so far" not in section.sentence
    assert treatment_section([empty], []).ending == "unfinished"


def test_hostile_texts_stay_texts(trained, tmp_path):
    for place, text in enumerate(HOSTILE):
        finding = Finding("x", "error", text, text, (Evidence(text, 1.0, text),), text, remedy=text, figure=text)
        attempts = [
            Attempt(finding, text, (text,), trained(f"a{place}", [2.0]), False),
            Attempt(finding, text, reason=text),
        ]
        page = write_treatment(trained(f"b{place}", [2.0]), attempts, tmp_path / "page.html", ended_by=text, title=text)
        assert words(page)
        assert "<script>alert(1)" not in page.read_text()


def test_a_file_of_somebody_else_is_kept(tmp_path):
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(gatdiag.errors.InputError, match="no report of gatdiag"):
        write_treatment([], [], tmp_path / "page.html")
