"""Strip, figure and text of a verdict say the same, for each cause whose values by layer can be drawn."""

from dataclasses import replace

import numpy as np
import pytest

import gatdiag
from gatdiag.diagnosis import CAUSES
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Finding
from gatdiag.figures import FIGURES, plot, table
from gatdiag.page.screen import screen
from gatdiag.page.sections import evidence_figure
from tests.diagnosis.test_causes import CASES, STEPS, depth, gains, logged, still
from tests.page.builder import build
from tests.page.evidence import disagreements

PACES = {"norm": 4.0, "gradient_norm": 1.0, "relative_gradient_norm": 0.25, "update_ratio": 1e-7}


def zero_inputs(*shares):
    return {f"convs.{place}": {"first": 0.0, "since": 3, "last": one, "seen": 9} for place, one in enumerate(shares)}


def with_peaks(*shares):
    layers = {"attention_peak": still(shares), "relative_attention_entropy": still([0.5] * len(shares))}
    return {"layers": layers} | logged()


# the quantity that is shown, and a run whose verdict is about it
SHOWN = {
    "layers.dead_fraction": depth("dead_fraction", [0.0, 0.95], non_finite=[0.0, 0.0]),
    "layers.zero_inputs": depth("gradient_dead_fraction", [1.0] * 3)
    | {"signals": {"zero_inputs": zero_inputs(0, 1, 0.3)}},
    "layers.attention_peak": with_peaks(0.1, 0.8, 0.2),
    "layers.output_norm": depth("output_norm", [1, 2, 30, 50, 60, 90, 2], output_gradient_norm=[900, 9, 8, 7, 6, 5, 1]),
    "layers.output_gradient_norm": depth("output_norm", [1] * 7, output_gradient_norm=[9e3, 9e2, 8, 7, 6, 5, 1]),
    "layers.relative_mu": depth("relative_mu", [0.8, 0.5, 0.3, 1e-3, 0.3], output_norm=[1.0] * 5),
    "layers.effective_rank": depth("effective_rank", [9, 8, 1.1, 1.1, 3], relative_mu=[0.9] * 5, output_norm=[1] * 5),
    "parameters.gain": {"weights": {"norm": gains(9, 8, 1, 9)}, "width": 8}
    | logged(np.full(STEPS, 100.0), val_accuracy=np.zeros(STEPS)),
    "parameters.update_ratio": {
        "weights": {name: still([value] * 2) for name, value in PACES.items()},
    }
    | logged(),
}  # fmt: skip


def verdict_about(run, finding):
    return replace(gatdiag.diagnose(run), findings=(finding,))


@pytest.mark.parametrize("code", CASES)
def test_what_is_shown_of_a_cause_is_what_it_says(tmp_path, code):
    given, side = CASES[code]
    run = build(tmp_path / "run", **given(1.01 if side == "above" else 0.99))
    finding = CAUSES[code].run(Facts(run))
    assert isinstance(finding, Finding)
    assert not [*disagreements(run, verdict_about(run, finding))]


@pytest.mark.parametrize("column", SHOWN)
def test_the_figure_is_of_the_quantity_that_the_text_names(tmp_path, column):
    run = build(tmp_path / "run", **SHOWN[column])
    diagnosis = gatdiag.diagnose(run)
    assert diagnosis.verdict.column == column
    assert screen(run, diagnosis).about == column
    assert not [*disagreements(run, diagnosis)]


def test_of_checkpoints_the_last_one_is_shown(tmp_path):
    """All weights are as in the first checkpoint there."""
    weights = {"norm": np.ones((2, 3)), "unchanged_fraction": [[1.0, 1.0, 1.0], [0.0, 0.566, 0.03]]}
    run = build(
        tmp_path / "run", weights=weights, cadence={"every": "checkpoint", "expensive_every": None, "budget": None}
    )
    diagnosis = gatdiag.diagnose(run)
    assert "56.6% of the feature weights of layer convs.1" in diagnosis.verdict.text
    strip = screen(run, diagnosis).strip
    assert [cell.value for cell in strip.cells] == ["0", "0.566", "0.03"]
    assert [cell.distance for cell in strip.cells] == ["inside", "far", "inside"]
    assert (strip.when, strip.summary) == ("at step 1", "1 of 3 layers above the threshold")
    assert not [*disagreements(run, diagnosis)]


def test_the_layer_of_the_finding_is_in_a_strip_of_many(tmp_path):
    shares = [0.0] * 301
    shares[87] = 1.0
    run = build(
        tmp_path / "run", **depth("gradient_dead_fraction", [0.0] * 301), signals={"zero_inputs": zero_inputs(*shares)}
    )
    strip = screen(run, gatdiag.diagnose(run)).strip
    assert len(strip.cells) == 80
    assert [cell.layer for cell in strip.cells if cell.distance == "far"] == ["convs.87"]
    assert strip.summary == "1 of 301 layers above the threshold (80 are shown, of neighbors the one furthest out)"


@pytest.mark.parametrize(("growth", "is_flagged"), [(13.0, False), (31.0, True)])
def test_a_network_that_learns_fast_after_a_high_first_loss_does_not_explode(tmp_path, growth, is_flagged):
    losses = [7.2, 3.6, 1.9, 1.0, 0.67, *np.linspace(0.66, 0.45, 17)]
    outputs = {"output_norm": still([1, 2, 4, 8, 9, growth, 1], 22)}
    signals = {"output": {"labels": [32, 32]}}
    verdict = gatdiag.diagnose(
        build(tmp_path / "run", layers=outputs, logged={"loss": losses}, signals=signals)
    ).verdict
    assert (verdict.code == "depth-exploding-gradient") == is_flagged


def test_the_loss_at_the_end_is_one_number(tmp_path):
    run = build(tmp_path / "run", logged={"loss": np.linspace(0.7447, 0.49312, 40)})
    diagnosis = gatdiag.diagnose(run)
    (tile,) = [tile for tile in screen(run, diagnosis).tiles if tile.label == "loss"]
    assert tile.value.split()[-1] == "0.4931"
    assert diagnosis.reason.startswith("the loss went from 0.7447 to 0.4931")


def test_clipping_is_shown_by_the_norm_of_the_gradient_before_and_after(tmp_path):
    norms = {"gradient_norm": np.full(STEPS, 1e-4), "gradient_norm_before_clipping": np.full(STEPS, 1.0)}
    run = build(tmp_path / "run", **logged(**norms))
    diagnosis = gatdiag.diagnose(run)
    assert diagnosis.verdict.code == "clipping-too-tight"
    name, options = evidence_figure(diagnosis, screen(run, diagnosis).about)
    drawn = table(next(one for one in FIGURES if one.name == name), [run], **options)
    assert {"gradient_norm", "gradient_norm_before_clipping"} <= {*drawn["name"]}


LIMITS = {"steps.overshoot": 2.0, "steps.learning_rate": 1e-4, "steps.stale_gradient": 0.5, "steps.gradient_norm": 0.1}
OVER_STEPS = {
    "steps.overshoot": {
        "logged": {"loss": np.geomspace(2.0, 2e3, STEPS), "overshoot": np.full(STEPS, 3.0)},
        "weights": {name: still([value] * 2) for name, value in (PACES | {"update_ratio": 0.1}).items()},
    },
    "steps.learning_rate": logged(learning_rate=np.geomspace(1e-2, 1e-9, STEPS)),
    "steps.stale_gradient": logged(stale_gradient=np.ones(STEPS)),
    "steps.gradient_norm": logged(
        gradient_norm=np.full(STEPS, 1e-4), gradient_norm_before_clipping=np.full(STEPS, 1.0)
    ),
}


@pytest.mark.parametrize("column", OVER_STEPS)
def test_a_finding_about_steps_is_shown_with_its_threshold(tmp_path, column):
    run = build(tmp_path / "run", **OVER_STEPS[column])
    diagnosis = gatdiag.diagnose(run)
    assert (diagnosis.verdict.column, diagnosis.verdict.line) == (column, pytest.approx(LIMITS[column]))
    assert not [*disagreements(run, diagnosis)]
    name, options = evidence_figure(diagnosis, screen(run, diagnosis).about)
    *_, axes = plot(name, run, **options).axes
    (line,) = [line for line in axes.get_lines() if line.get_label().startswith("flagged ")]
    assert [*line.get_ydata()] == [diagnosis.verdict.line] * 2
    assert axes.get_ylim()[0] < diagnosis.verdict.line < axes.get_ylim()[1]
    assert line.get_label() in [text.get_text() for text in axes.get_legend().get_texts()]
    looks = [(curve.get_color(), curve.get_linestyle()) for curve in axes.get_lines()]
    assert len({color for color, _ in looks}) == len(looks), "the threshold looks like no curve"
