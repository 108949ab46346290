import json
import re
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

import gatdiag
from gatdiag.page.screen import screen, shown_column
from gatdiag.page.sections import run_sections
from gatdiag.quantities import HEALTHY
from tests.page.builder import NO_LAYERS, build, contrast

LOSS = {"loss": np.geomspace(2.0, 0.02, 40)}
STUCK = {"loss": 2.0 + 0.001 * np.sin(np.arange(40))}


def shown(run):
    return screen(run, gatdiag.diagnose(run))


@pytest.mark.parametrize(
    ("logged", "tone"),
    [
        ({"loss": np.geomspace(2.0, 0.01, 60)}, "healthy"),
        ({"loss": np.full(60, 2.0) + 0.001 * np.sin(np.arange(60))}, "failing"),
        ({"loss": [2.0, np.nan, np.nan]}, "failing"),
        ({"loss": [2.0, 1.9]}, "unknown"),
    ],
    ids=["falls", "does not fall", "NaN", "two steps"],
)
def test_the_word_is_that_of_the_diagnosis(tmp_path, logged, tone):
    made = shown(build(tmp_path / "run", logged=logged, **NO_LAYERS))
    assert made.tone == tone
    assert made.word == ("cannot tell" if tone == "unknown" else tone)


def test_of_what_was_not_recorded_nothing_is_told(tmp_path):
    made = screen(build(tmp_path / "run", **NO_LAYERS), None)
    assert (made.tone, made.strip) == ("unknown", None)


def test_the_facts_of_the_training_are_there_once(tmp_path):
    optimizers = [{"class": "Adam", "groups": [{"lr": 0.01, "parameters": []}]}]
    logged = LOSS | {"val_accuracy": np.linspace(0.2, 0.8, 40)}
    tiles = {
        tile.label: (tile.value, tile.detail)
        for tile in shown(
            build(tmp_path / "run", logged=logged, optimizers=optimizers, weights={"norm": np.ones((40, 2))})
        ).tiles
    }
    assert tiles["steps"] == ("40", "all recorded")
    assert tiles["loss"] == ("2 \N{RIGHTWARDS ARROW} 0.02", "down 99%")
    assert tiles["best validation accuracy"] == ("80%", "at step 39")
    assert tiles["optimizer"] == ("Adam", "learning rate 0.01")
    assert tiles["layers"] == ("2", "GATv2Conv")


def test_layers_are_told_by_their_distance_from_healthy_ones(tmp_path):
    low, high = HEALTHY["parameters.relative_gradient_norm"]
    values = [[low * 2, low / 5, low / 1e3, high * 100, np.nan, np.inf]] * 40
    strip = shown(build(tmp_path / "run", logged=STUCK, weights={"relative_gradient_norm": values})).strip
    assert [cell.distance for cell in strip.cells] == ["inside", "near", "far", "far", "broken", "broken"]
    assert [cell.layer for cell in strip.cells] == [f"convs.{place}" for place in range(6)]
    assert [cell.value for cell in strip.cells[-2:]] == ["NaN or infinite", "∞"]
    assert strip.summary == "3 of 6 layers outside of it, 2 NaN or infinite"
    assert [distance for distance, _ in strip.legend] == ["inside", "near", "far", "broken"]


@pytest.mark.parametrize("is_nan", [True, False])
def test_a_broken_layer_is_not_one_whose_value_is_divided_by_zero(tmp_path, is_nan):
    layers = {"output_norm": np.full((40, 2), np.nan if is_nan else 0.0), "relative_mu": np.full((40, 2), np.nan)}
    diagnosis = gatdiag.diagnose(build(tmp_path / "run", logged=STUCK, layers=layers))
    about = replace(diagnosis.verdict, code="depth-oversmoothing", column="layers.relative_mu", line=0.01)
    strip = screen(gatdiag.load(tmp_path / "run"), replace(diagnosis, findings=(about,))).strip
    assert {cell.distance for cell in strip.cells} == {"broken" if is_nan else "unmeasured"}
    assert {cell.value for cell in strip.cells} == {"NaN or infinite" if is_nan else "output is zero"}
    assert strip.summary == ("all layers NaN or infinite" if is_nan else "0 of 2 layers NaN or infinite")


def test_the_strip_shows_what_the_verdict_is_about_when_it_was_seen(tmp_path):
    logged = {"loss": np.full(60, 2.0) + 0.001 * np.sin(np.arange(60))}
    ratios = np.concatenate([np.geomspace(1e-12, 1e-1, 4)[None], np.ones((59, 4))])
    layers = {"output_gradient_norm": ratios}
    run = build(tmp_path / "run", logged=logged, layers=layers, weights={"relative_gradient_norm": ratios})
    diagnosis = gatdiag.diagnose(run)
    assert diagnosis.verdict.code == "depth-vanishing-gradient"
    strip = screen(run, diagnosis).strip
    assert strip.label == "norm of the gradient, over that of convs.3"
    assert strip.when == "at step 0"
    assert [cell.distance for cell in strip.cells] == ["far", "far", "far", "inside"]
    assert strip.summary == "3 of 4 layers below the threshold"
    assert strip.cells[0].value == "1\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN}\N{NO-BREAK SPACE}10⁻¹¹"


@pytest.mark.parametrize(("column", "line"), [("layers.effective_rank", 3.0), ("layers.effective_rank", None)])
def test_a_quantity_that_is_as_in_healthy_trainings_is_no_evidence(tmp_path, column, line):
    run = build(
        tmp_path / "run",
        logged=STUCK,
        layers={"effective_rank": np.tile([9.0, 2.0], (40, 1))},
        weights={"relative_gradient_norm": np.full((40, 2), 1e-2)},
    )
    found = gatdiag.diagnose(run).verdict
    finding = replace(found, code="depth-oversmoothing", column=column, line=line, beyond="below")
    strip = screen(run, replace(gatdiag.diagnose(run), findings=(finding,))).strip
    assert shown_column(run, finding) == ("layers.effective_rank" if line else "")
    if line:
        assert strip.healthy == "1.6 and more; flagged below 3"
        assert strip.summary == "1 of 2 layers below the threshold"
    else:
        assert strip.label == "relative gradient norm"
        assert strip.summary == "all layers in it: what is wrong is not here"


def test_a_training_with_a_remark_is_not_called_healthy(tmp_path):
    logged = LOSS | {"val_loss": np.concatenate([np.geomspace(2.0, 0.5, 10), np.linspace(0.5, 4.0, 30)])}
    made = shown(build(tmp_path / "run", logged=logged, **NO_LAYERS))
    assert (made.tone, made.word) == ("healthy", "trains")


@pytest.mark.parametrize(
    ("last", "summary"),
    [
        (0.002, "all layers in it, or below it, as gradients are where it has trained"),
        (1.99, "2 of 2 layers outside of it"),
    ],
)
def test_gradients_may_be_small_in_a_training_that_trained(tmp_path, last, summary):
    logged = {"loss": np.geomspace(2.0, last, 60)}
    run = build(tmp_path / "run", logged=logged, weights={"relative_gradient_norm": np.full((60, 2), 1e-9)})
    assert shown(run).strip.summary == summary


def test_a_strip_of_many_layers_stays_narrow(tmp_path):
    run = build(tmp_path / "run", logged=LOSS, weights={"relative_gradient_norm": np.full((40, 450), 1e-2)})
    assert len(shown(run).strip.cells) == 80


def test_each_cell_of_a_strip_has_its_line_in_the_chart(tmp_path):
    norms = np.full((40, 203), 1e-2)
    norms[:, [17, 101]] = 1e-9
    other = np.full((40, 203), 0.5)
    run = build(tmp_path / "run", logged=LOSS, weights={"relative_gradient_norm": norms}, layers={"relative_mu": other})
    (section,) = run_sections([run])
    cells = section.screen.strip.cells
    assert {"convs.17", "convs.101"} < {cell.name for cell in cells}
    for quantity in json.loads(section.chart):
        assert quantity["layers"] == [cell.name for cell in cells]


def test_a_broken_cell_can_be_read_in_light_and_dark():
    style = resources.files("gatdiag.page").joinpath("templates/style.css").read_text()
    colors = {name: pair for name, *pair in re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", style)}
    for ground, ink in zip(colors["broken"], colors["paper"], strict=True):
        assert contrast(ground, ink) >= 4.5
