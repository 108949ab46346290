"""The page of a treatment, for each way in which one can end, and as `treat` writes it."""

import io
import re
from dataclasses import replace
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import gatdiag
from gatdiag.diagnosis import Action, Diagnosis, Evidence, Finding
from gatdiag.errors import InputError
from gatdiag.treatment import Metric, Treatment, Trial
from gatdiag.treatment.page import write_page
from tests.page.builder import Reader, build
from tests.page.test_document import HOSTILE
from tests.treatment.loops import loop, make


class OddError(Exception):
    pass


@pytest.mark.parametrize(
    ("training", "error"),
    [(0, OddError("lost <b>")), (1, KeyboardInterrupt()), (2, OddError("lost <b>"))],
)
def test_what_ends_a_treatment_comes_through_and_what_was_recorded_is_shown(tmp_path, error, training):
    trained, hooks = [], (dict(_global_optimizer_pre_hooks), dict(_global_optimizer_post_hooks))

    def train(model, recorder):
        trained.append(model)
        loop(1e-6, 10 if len(trained) > training else 40)(model, recorder)
        if len(trained) > training:
            raise error

    with (
        pytest.warns(UserWarning, match="^gatdiag: the treatment was cut short; what was recorded is shown in"),
        pytest.raises(type(error)) as raised,
    ):
        gatdiag.treat(make, train, seeds=[1, 2], folder=tmp_path / "t")
    assert raised.value is error
    assert (dict(_global_optimizer_pre_hooks), dict(_global_optimizer_post_hooks)) == hooks
    page = (tmp_path / "t" / "treatment.html").read_text()
    assert "The treatment was cut short." in page
    assert ("interrupted by the user" if isinstance(error, KeyboardInterrupt) else "OddError: lost &lt;b&gt;") in page
    assert ("Learning rate is too small" in page or "learning rate is too small" in page) == (training > 0)
    last = tmp_path / "t" / ("before/seed-1", "before/seed-2", "after-1/seed-1")[training]
    assert len(gatdiag.load(last).steps) == 10


def test_nothing_is_written_where_nothing_was_recorded(tmp_path):
    error = OddError()

    def broken():
        raise error

    with pytest.raises(OddError) as raised:
        gatdiag.treat(broken, loop(), folder=tmp_path / "t")
    assert raised.value is error
    assert not (tmp_path / "t").exists()


def test_runs_that_are_there_are_not_trained_again(tmp_path):
    made = []

    def train(model, recorder):
        made.append(recorder.folder)
        loop(1e-6)(model, recorder)

    torch.manual_seed(0)
    model = make()
    with gatdiag.watch(model, tmp_path / "mine") as recorder:
        loop(1e-6)(model, recorder)
    done = gatdiag.treat(make, train, seeds=[0], before=[tmp_path / "mine"], folder=tmp_path / "t")
    assert done.before.runs[0].folder == tmp_path / "mine"
    assert done.verdict.code == "lr-too-small"
    assert all("after" in str(folder) for folder in made)
    assert made
    with pytest.raises(InputError, match="before: expected a run for each of 3 seeds, got 1"):
        gatdiag.treat(make, train, before=[tmp_path / "mine"], folder=tmp_path / "u")


FINDING = Finding(
    "lr-too-small", "error", "Learning rate too small", "Steps are short.", (Evidence("step over weights", 1e-7),),
    "Flagged below 1e-5.", figure="training_curves", remedy="optimizer = SGD(model.parameters(), lr=0.1)",
    actions=(Action("learning_rate"),),
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


def page_of(folder, before, trials=(), *, ended_by=None, by_hand=()):
    """The text of the page of a treatment, whose markup is looked at."""
    seeds = tuple(range(max(1, len(before))))
    found = [Diagnosis((*by_hand, FINDING), state="failing")] if before else []
    first = Trial("before", runs=tuple(before), diagnoses=tuple(found))
    path = write_page(Treatment(folder, seeds, None, first, tuple(trials)), ended_by)
    reader = Reader(path.read_text())
    assert reader.unclosed == []
    assert reader.tags["script"] == 1
    return reader.words


def trial(runs, helped, finding=None, changes=("rate",)):
    finding = finding or FINDING
    said = (Diagnosis((), state="trained"),)
    gains = tuple(1.0 for _ in runs)
    return Trial("after-1", finding, (), finding.remedy, changes, tuple(runs), said, (), gains, helped)


def test_a_page_has_the_words_of_the_bands_and_the_evidence_before_and_after_with_its_range(tmp_path):
    loss = np.linspace(2.0, 1.9, 40)
    finding = replace(FINDING, column="parameters.update_ratio", steps=(0, 39), line=1e-5, beyond="below")
    before, after = (
        build(tmp_path / name / "seed-0", name=f"{name}, seed 0", weights={"update_ratio": np.full((40, 3), ratio)},
              logged={"loss": loss, "val_accuracy": np.linspace(0.1, 0.9, 40)})
        for name, ratio in (("before", 1e-8), ("after-1", 1e-3))
    )  # fmt: skip
    sick, well = Diagnosis((finding,), state="failing"), Diagnosis((), state="trained")
    first = Trial("before", runs=(before,), diagnoses=(sick,), values=(0.3,))
    last = Trial("after-1", finding, (), finding.remedy, ("learning rate",), (after,), (well,), (0.9,), (0.6,), True)
    page = write_page(Treatment(tmp_path, (0,), Metric("val_accuracy", True), first, (last,))).read_text()
    top, _, folded = page.partition('<details class="fold"')
    words = Reader(top).words
    assert "failing → healthy The remedy helped." in words
    assert "Before: Learning rate too small. After: No problem found." in words
    assert "What was changed: learning rate ." in words
    assert finding.remedy in words
    assert "validation accuracy 0.3 → 0.9" in words
    assert re.findall('<span class="cell (.*?)" data-layer', top) == ["far"] * 3 + ["inside"] * 3
    (data,) = re.findall('href="data:text/csv;charset=utf-8,(.*?)"', top)
    table = pd.read_csv(io.StringIO(unquote(data)))
    assert table.groupby("curve", sort=False)["value"].median().to_dict() == {"before": 1e-8, "after": 1e-3}
    assert set(table["line"]) == {1e-5}
    assert "threshold" in unquote(top)  # drawn in the figure
    assert "Learning curves, with their spread over runs" in Reader(folded).words
    assert "after, seed 0" in Reader(folded).words


FIX = Finding("output-softmax-twice", "error", "Softmax twice", "A softmax too much.", remedy="return x")


def test_what_helped_is_shown_before_and_after_with_all_seeds(trained, tmp_path):
    before, after = trained("before", [2.0, 3.0, 4.0]), trained("after", [5.0, 6.0, 9.0])
    said = page_of(tmp_path, before, [trial(after, True, changes=("learning rate 1e-6, now 0.1",))])
    assert "The remedy helped." in said
    assert "before: Learning rate too small" in said
    assert "after-1: learning rate 1e-6, now 0.1: it helped; verdict: No problem found" in said
    assert "validation accuracy" in said
    assert all(f"{value / 10:.4g}" in said for value in (2.0, 3.0, 4.0, 5.0, 6.0, 9.0))
    assert said.count(FINDING.remedy) == 2  # what helped, and what the diagnosis named
    assert "step over weights" in said
    assert FINDING.threshold in said
    assert "gatdiag report" in said


def test_remedies_that_did_not_help_and_those_that_cannot_be_applied_are_told(trained, tmp_path):
    before, after = trained("before", [2.0]), trained("after", [2.0])
    said = page_of(tmp_path, before, [trial(after, False)], by_hand=[FIX])
    assert "No remedy helped." in said
    assert "after-1: rate: it did not help" in said
    assert said.count(FINDING.remedy) == 1  # as what the diagnosis named
    assert "Softmax twice; Learning rate too small" not in said  # what can be applied is not to be changed by hand
    assert "Softmax twice: gatdiag cannot change this by itself" in said
    helped = [trial(after, False), trial(trained("second", [9.0]), True, FIX, ("output",))]
    said = page_of(tmp_path, before, helped)
    assert "The remedy helped." in said
    assert "Steps are short." in said
    assert "after-1: rate: it did not help" in said
    assert "after-1: output: it helped" in said
    assert "The cause has to be fixed in your code." in page_of(tmp_path, before, by_hand=[FIX])
    top = (tmp_path / "treatment.html").read_text().partition('<details class="fold"')[0]
    assert FIX.remedy in Reader(top).words  # what to change is not folded


@pytest.mark.parametrize(("state", "word", "tone"), [("unknown", "cannot tell", "healthy"), ("failing",) * 3])
def test_a_remedy_that_helped_is_good_unless_the_training_still_fails(trained, tmp_path, state, word, tone):
    last = replace(trial(trained("after", [9.0]), True), diagnoses=(Diagnosis((), state=state),))
    assert f"failing → {word} The remedy helped." in page_of(tmp_path, trained("before", [2.0]), [last])
    assert f'<div class="band {tone}">' in (tmp_path / "treatment.html").read_text()


def test_a_symptom_that_nothing_explains_is_not_called_a_cause(tmp_path):
    loss = Finding("loss-not-falling", "warning", "The loss does not fall", "It fell by 1%.", remedy="# train on less")
    before = Trial("before", diagnoses=(Diagnosis((loss,), state="failing"),))
    done = Treatment(tmp_path, (0,), None, before)
    assert done.headline == "No cause was found"
    assert done.notes == ("The loss does not fall: train on less",)
    assert "To change in your code" not in write_page(done).read_text()


@pytest.mark.parametrize(
    ("runs", "ended_by", "headline", "says"),
    [
        ([9.0], None, "There is nothing to treat.", "before: Learning rate too small"),
        (
            [2.0],
            KeyboardInterrupt(),
            "The treatment was cut short.",
            "Cut short: interrupted by the user. What was recorded",
        ),
        ([], ValueError("<b>"), "The treatment was cut short.", "before: not trained"),
        ([np.nan, 2.0], None, "There is nothing to treat.", "NaN"),
    ],
)
def test_nothing_to_treat_and_what_was_cut_short(trained, tmp_path, runs, ended_by, headline, says):
    said = page_of(tmp_path, trained("before", runs), ended_by=ended_by)
    assert headline in said
    assert says in said


def test_a_first_training_that_was_cut_short_is_said_to_have_begun(trained, tmp_path):
    cut = Treatment(tmp_path, (0,), None, Trial("before", runs=tuple(trained("before", [2.0]))))
    assert cut.history == ("before: cut short",)


def test_a_training_without_a_row_or_an_end_does_not_hinder_the_page(trained, tmp_path):
    empty = build(tmp_path / "empty", ending="interrupted")
    said = page_of(tmp_path, trained("before", [2.0, 3.0]), [trial([empty], False)], ended_by=KeyboardInterrupt())
    assert "The treatment was cut short." in said
    assert "The treatment was cut short." in page_of(tmp_path, [empty])


def test_hostile_texts_stay_texts(trained, tmp_path):
    before, after, empty = trained("before", [2.0]), trained("after", [2.0]), [build(tmp_path / "empty")]
    for text in HOSTILE:
        finding = Finding(
            "nonfinite-operation", "error", text, text, (Evidence(text, 1.0, text),), text, remedy=text, figure=text
        )
        trials = [trial(after, False, finding, (text,))]
        assert page_of(tmp_path, before, trials, ended_by=ValueError(text), by_hand=[finding])
        before = after = empty  # figures show nothing of a finding: once is enough
        assert "<script>alert(1)" not in (tmp_path / "treatment.html").read_text()
