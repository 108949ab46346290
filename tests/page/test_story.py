import math

import pytest

from gatdiag.diagnosis.thresholds import limit
from gatdiag.page.story import count_parameters, describe_optimizer, recorder_notes, run_warnings, story
from tests.figures.odd_runs import recorded_run
from tests.page.builder import build
from tests.run.synthetic import synthetic_meta

GROUP = {"lr": 0.1, "weight_decay": 0.0, "parameters": []}


def story_text(folder, **given):
    return " ".join(story(build(folder, **given)))


def test_what_was_trained_is_told(tmp_path):
    text = story_text(tmp_path / "run", logged={"loss": [2.0] * 7}, width=4)
    assert (
        "GATv2 of 2 GATv2Conv layers with 48 parameters, trained by SGD with learning rate 0.1 for 7 optimizer steps"
        in text
    )
    assert text.count("in 3 s") == 1  # seven steps of half a second, the first at 0


@pytest.mark.parametrize(
    ("every", "budget", "words"),
    [
        ("auto", 0.05, ", to stay within 5% of the training's time; every=1 records all."),
        ("10", 0.03, ", to stay within 3% of the training's time."),
        ("10", None, ", as requested by every=10."),
    ],
)
def test_how_few_steps_were_recorded_is_told_with_the_reason(tmp_path, every, budget, words):
    def rows(step):
        return {"steps": {"loss": 1.0}} | ({"layers": {"layer": [0], "mu": [1.0]}} if step % 10 == 0 else {})

    meta = synthetic_meta(2, 2) | {"cadence": {"every": every, "budget": budget}}
    (text, _) = story(recorded_run(tmp_path / "run", meta, rows, 25))
    assert text.endswith(f"for 25 optimizer steps. Layers were recorded at 3 of 25 steps{words}")
    (whole, _) = story(recorded_run(tmp_path / "whole", meta, rows, 1))
    assert whole.endswith("for 1 optimizer step.")


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([2.0, 1.5, 1.0], "The loss fell from 2 to 1, by 50%."),
        ([2.0, 1.0, 3.0], "The loss rose from 2 to 3, by 50%"),
        (
            [2.0, 2.0 * (1 - 0.9 * limit("fall"))],
            "The loss hardly moved: 2 at the start, 1.91 at the end. It fell by 4.5%.",
        ),
        ([2.0, 2.0], "The loss did not change"),
        ([2.0, 1.0, math.nan], "it became NaN or infinite; its best value was 1, at step 1."),
        ([math.nan, math.nan], "The loss was never finite."),
        ([math.inf, 1.0], "The loss is 1."),
        ([2.0], "The loss is 2."),
        ([-1.0, -2.0], "The loss fell from -1 to -2, by 100%"),
    ],
)
def test_what_became_of_the_loss_is_told(tmp_path, losses, words):
    assert words.replace(" -", " \N{MINUS SIGN}") in story_text(tmp_path / "run", logged={"loss": losses})


def test_a_run_without_a_loss_says_how_to_log_one(tmp_path):
    assert "recorder.log(loss=...)" in story_text(tmp_path / "run", layers={"mu": [[1.0, 1.0]]})


def test_the_best_accuracy_and_its_step_are_told(tmp_path):
    run = build(tmp_path / "run", logged={"val_accuracy": [0.1, 0.7, 0.7, 0.3], "test_accuracy": [0.1, 0.6, 0.9, 0.9]})
    assert (
        "The best validation accuracy is 70%, at step 1 (steps count from 0), where test accuracy is 60%."
        in story(run)[1]
    )


def test_what_chose_the_best_step_is_used(tmp_path):
    best = {"name": "val_loss", "mode": "min", "value": 0.5, "step": 1}
    run = build(tmp_path / "run", logged={"val_loss": [1.0, 0.5, 2.0]}, best=best)
    assert "The best validation loss is 0.5, at step 1 (steps count from 0)." in story(run)[1]


def test_checkpoints_are_not_counted_as_steps(tmp_path):
    text = story_text(tmp_path / "run", logged={"loss": [2.0, 1.0, 0.5]}, cadence={"every": "checkpoint"})
    assert "read from 3 saved checkpoints, the last at step 2." in text
    assert "optimizer steps" not in text


def test_shared_parameters_count_once_and_frozen_ones_are_told_apart():
    meta = synthetic_meta(2, 3)
    first, second = (layer["parameters"] for layer in meta["structure"]["layers"])
    second.append(first[0])
    first[1]["trainable"] = False
    assert count_parameters(meta) == (2 * (9 + 3 + 3), 2 * (9 + 3 + 3) - 3)


def test_every_group_of_an_optimizer_has_its_rate():
    groups = [GROUP, {**GROUP, "lr": 0.01}, {**GROUP, "lr": None}]
    assert describe_optimizer({"class": "Adam", "groups": groups}) == "Adam with learning rate 0.01 and 0.1"
    assert describe_optimizer({"class": "Own", "groups": []}) == "Own"


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (None, "did not finish"),
        ("failed", "RuntimeError: two lines"),
        ("interrupted", "KeyboardInterrupt"),
        ("finished", ""),
    ],
)
def test_a_run_without_a_regular_end_says_so(tmp_path, ending, words):
    error = "RuntimeError: two\nlines" if ending == "failed" else None
    texts = run_warnings(build(tmp_path / "run", logged={"loss": [1.0]}, ending=ending, error=error))
    assert len(texts) == (ending != "finished")
    assert words in "".join(texts)


def test_notes_of_the_recorder_are_shown(tmp_path):
    assert recorder_notes(build(tmp_path / "few", notes=["no entropy.", "two\nlines"])) == "no entropy; two lines."
    many = recorder_notes(build(tmp_path / "many", notes=list("abcde")))
    assert many == "a; b; c. And 2 more, under Settings."
    assert recorder_notes(build(tmp_path / "none", notes=[])) == ""
