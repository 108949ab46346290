"""Each cause on tables made for it: flagged beyond its threshold and not before it."""

import math

import numpy as np
import pytest

import gatdiag
from gatdiag.diagnosis import CAUSES, diagnose, thresholds
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Finding
from gatdiag.diagnosis.laws import relative_to_weights
from gatdiag.diagnosis.thresholds import limit, threshold_text
from gatdiag.quantities import QUANTITIES
from tests.figures.odd_runs import recorded_run
from tests.page.builder import build, rewrite_meta
from tests.run.synthetic import synthetic_meta

STEPS = 60
FLAT = np.full(STEPS, 2.0)
FALLING = np.linspace(2.0, 0.01, STEPS)
FIRST = {"step": 17, "layer": "convs.1", "where": "output gradient", "parameter": None, "kind": "NaN"}


def still(values, steps=STEPS):
    return np.tile(np.asarray(values, float), (steps, 1))


ALL = [f"convs.{layer}.{key}" for layer in range(20) for key in ("lin_l.weight", "att", "bias")]


def gains(*factors, width=8):
    """Norms of square weights that are these multiples of Glorot's."""
    return still(np.asarray(factors) * math.sqrt(width))


def logged(loss=FLAT, **others):
    return {"logged": {"loss": loss, **others}}


def square(*factors):
    return {"weights": {"norm": gains(*factors)}, "width": 8}


def moving(ratios, norm=4.0):
    return {"weights": {"norm": still([norm] * len(ratios)), "update_ratio": still(ratios)}}


def depth(column, values, **others):
    return {"layers": {column: still(values), **{name: still(each) for name, each in others.items()}}} | logged()


def sgd(**settings):
    return [{"class": "SGD", "groups": [{"lr": 0.1, "parameters": ALL, **settings}]}]


def connected(share):
    return {"signals": {"edges": {"convs.1": {"edges": 90, "loops": 3, "connected": share}}}}


def one_target(**given):
    """Signals of a loss that pulls all outputs to one target."""
    target = {"step": 0, "loss": 0.5, "low": 1.0, "high": 1.0, "spread": 1e-7, **given}
    return {"output": {"min": 0.0, "common_target": target}}


# Code, the arguments of `build` where what is measured is the given factor times the threshold, the flagged side.
CASES = {
    "init-too-large": (
        lambda f: square(*[limit("gain-large") * f] * 3) | logged(50 * FLAT, val_accuracy=0 * FLAT),
        "above",
    ),
    "init-too-small": (lambda f: square(*[limit("gain-small") * f] * 3) | logged(), "below"),
    "init-unbalanced": (lambda f: square(limit("gain-jump") * f, 1, limit("gain-jump") * f, 1) | logged(), "above"),
    "depth-exploding-gradient": (
        lambda f: depth("output_norm", [1, 2, 3, 4, 5, limit("explode") * f, 1]),
        "above",
    ),
    "depth-vanishing-gradient": (
        lambda f: depth("output_gradient_norm", [limit("vanish") * f, 0.1, 0.5, 1]),
        "below",
    ),
    "depth-oversmoothing": (
        lambda f: depth("relative_mu", [0.8, 0.5, 0.3, limit("alike") * f, 0.3], output_norm=[1.0] * 5),
        "below",
    ),
    "dead-units": (
        lambda f: depth("dead_fraction", [0.0, min(1.0, limit("dead") * f)], non_finite=[0.0, 0.0]),
        "above",
    ),
    "attention-saturated": (lambda f: depth("relative_attention_entropy", [0.9, limit("entropy") * f]), "below"),
    "lr-too-large": (
        lambda f: moving([0.0, limit("step-large") * math.sqrt(2) * f]) | logged([2.0, 20.0, *FLAT[2:]]),
        "above",
    ),
    "lr-too-small": (lambda f: moving([limit("batch-path") / STEPS * f] * 2) | logged(), "below"),
    "clipping-too-tight": (
        lambda f: logged(gradient_norm=FLAT / 2 * limit("clip") * f, gradient_norm_before_clipping=FLAT / 2),
        "below",
    ),
    "weight-decay-too-strong": (
        lambda f: (
            {
                "weights": {
                    "norm": np.array([4.0] + [1.0] * (STEPS - 1))[:, None],
                    "gradient_norm": still([0.1 / limit("decay") / f]),
                },
                "optimizers": sgd(weight_decay=0.1),
            }
            | logged()
        ),
        "above",
    ),
    "overfitting": (
        lambda f: logged(FALLING, train_accuracy=FLAT * 0.45, val_accuracy=FLAT * 0.45 - limit("gap") * f),
        "above",
    ),
    "law-broken": (
        lambda f: {
            "weights": {"norm": still([4.0, 4.0], 2)},
            "neurons": {"c": np.zeros((2, 2)), "predicted_c": [[0.0, 0.0], [0.0, limit("law") * 8.0 * f]]},
        },
        "above",
    ),
    "loss-broadcast": (
        lambda f: logged() | {"signals": one_target(loss=2.0 * (1 - limit("broadcast") * f))},
        "above",
    ),
    "input-without-edges": (
        lambda f: logged() | connected(limit("edges") * f),
        "below",
    ),
    "loss-not-falling": (lambda f: logged(np.linspace(2, 2 * (1 - limit("fall") * f), STEPS)), "below"),
}


@pytest.mark.parametrize("factor", [0.99, 1.01])
@pytest.mark.parametrize("code", CASES)
def test_a_cause_is_flagged_beyond_its_threshold(tmp_path, code, factor):
    given, side = CASES[code]
    run = build(tmp_path / "run", **given(factor))
    finding = CAUSES[code].run(Facts(run))
    assert isinstance(finding, Finding) == ((factor > 1) == (side == "above"))
    if isinstance(finding, Finding):
        assert finding.code == code
        assert finding.text.endswith(".")
        assert finding.threshold
        assert finding.remedy
        assert finding.falsified_by
        assert finding.evidence
        assert finding.figure in {figure.name for figure in gatdiag.figures.FIGURES}
        assert {*finding.layers} <= {f"convs.{number}" for number in range(9)}
        named = {name for name in thresholds._LIMITS if threshold_text(name) in finding.threshold}
        assert named <= {*CAUSES[code].limits}
        assert named or not CAUSES[code].limits


OF_WEIGHTS = {"parameter": np.arange(0, 6, 3), "gradient_norm": 0.1}
COMPARED = {  # code -> table, what is measured at each step, the column of which the first and the last are compared
    "weight-decay-too-strong": ("parameters", OF_WEIGHTS, "norm"),
    "unchanged-weights": ("parameters", OF_WEIGHTS, "unchanged_fraction"),
    "loss-not-falling": ("steps", {"learning_rate": 0.1}, "loss"),
}


@pytest.mark.parametrize("code", COMPARED)
def test_what_was_measured_at_one_step_only_is_not_compared_with_itself(tmp_path, code):
    """As where a group is due at every fiftieth record."""
    table, each, column = COMPARED[code]
    meta = synthetic_meta(2, 2) | {"optimizers": sgd(weight_decay=0.1)}
    for name, steps in (("one", (0,)), ("two", (0, 50))):
        rows = {step: {table: each | ({column: 1.0} if step in steps else {})} for step in range(STEPS)}
        skipped = diagnose(recorded_run(tmp_path / name, meta, rows.__getitem__, STEPS)).skipped.get(code, "")
        assert skipped.endswith("only once") == (name == "one")


@pytest.mark.parametrize(("every", "judged"), [(15, False), (10, True)])
def test_overfitting_is_not_denied_by_a_few_validation_losses(tmp_path, every, judged):
    def rows(step):
        return {"steps": {"loss": FALLING[step], **({} if step % every else {"val_loss": 1.0 + step})}}

    diagnosis = diagnose(recorded_run(tmp_path / "run", synthetic_meta(2, 2), rows, STEPS))
    assert (diagnosis.verdict.code == "overfitting") == judged
    assert ("overfitting" not in diagnosis.skipped) == judged


def test_overfitting_is_said_before_the_loss_is_low(tmp_path):
    """With dropout, and labels that say nothing: what is learned by heart is learned slowly."""
    logged = {"loss": np.linspace(1.4, 0.7, STEPS), "train_accuracy": FLAT * 0.45, "val_accuracy": FLAT * 0.15}
    signals = {"output": {"labels": [9, 9, 9, 9]}}
    diagnosis = diagnose(build(tmp_path / "run", logged=logged, signals=signals))
    assert (diagnosis.state, diagnosis.verdict.code, diagnosis.verdict.severity) == ("partly", "overfitting", "note")


@pytest.mark.parametrize("code", ["init-too-small", "depth-vanishing-gradient", "depth-oversmoothing", "dead-units"])
def test_in_a_network_that_trains_it_is_a_note_or_nothing(tmp_path, code):
    given, side = CASES[code]
    tables = given(1.01 if side == "above" else 0.99)
    run = build(tmp_path / "run", **{**tables, "logged": {"loss": FALLING}})
    assert {finding.severity for finding in diagnose(run)} <= {"note"}


def test_parameters_that_no_optimizer_holds_are_named(tmp_path):
    held = [{"class": "SGD", "groups": [{"lr": 0.1, "parameters": ALL[:3]}]}]
    verdict = diagnose(build(tmp_path / "run", **logged(), optimizers=held)).verdict
    assert (verdict.code, verdict.severity) == ("parameters-not-in-optimizer", "error")
    assert verdict.parameters == tuple(ALL[3:6])
    assert "torch.optim.SGD(model.parameters(), lr=0.1)" in verdict.remedy


def test_frozen_parameters_are_no_problem_in_a_network_that_trains(tmp_path):
    for name, losses, found in (("stuck", FLAT, True), ("fine", FALLING, False)):
        weights = {"norm": still([1.0, 1.0]), "gradient_norm": still([0.1, 0.1])}
        run = build(tmp_path / name, weights=weights, logged={"loss": losses})
        rewrite_meta(run.folder, lambda meta: meta["structure"]["layers"][0]["parameters"][0].update(trainable=False))
        codes = [finding.code for finding in diagnose(run.folder)]
        assert ("parameters-without-gradient" in codes) == found


@pytest.mark.parametrize(
    ("given", "is_broadcast"),
    [
        ({}, True),
        ({"loss": 2.0}, False),  # all labels are the same
        ({"loss": None}, False),
        ({"step": STEPS}, False),  # its loss was not logged
        ({"step": STEPS, "high": 1.5}, True),  # the mean of the next batch is another
        ({"step": STEPS, "high": 1.5, "spread": 0.1}, False),
    ],
)
def test_one_target_for_all_nodes_is_due_to_broadcasting_if_it_leaves_a_loss_or_moves(tmp_path, given, is_broadcast):
    run = build(tmp_path / "run", **logged(), signals=one_target(**given))
    assert (diagnose(run).verdict.code == "loss-broadcast") == is_broadcast


def test_optimizers_that_take_turns_may_have_one_target_for_all_nodes(tmp_path):
    """As in least-squares adversarial training, whose logged loss has other parts."""
    optimizers = [{"class": name, "groups": [{"lr": 0.1, "parameters": ALL}]} for name in ("SGD", "Adam")]
    diagnosis = diagnose(build(tmp_path / "run", **logged(), signals=one_target(), optimizers=optimizers))
    assert "several optimizers" in diagnosis.skipped["loss-broadcast"]


def test_the_best_that_a_broadcast_loss_allows_is_the_variance_of_the_targets(tmp_path):
    """So that the way from a distant start to the mean of the targets is no training."""
    run = build(tmp_path / "run", **logged([100.0, *FLAT[1:]]), signals=one_target(loss=98.0))
    assert Facts(run).chance_loss == pytest.approx(2.0)
    assert (diagnose(run).state, diagnose(run).verdict.severity) == ("failing", "error")


@pytest.mark.parametrize(
    ("losses", "connected", "severity"),
    [(FLAT, 0.0, "error"), (FALLING, 0.0, "warning"), (FLAT, 0.05, "warning"), (FALLING, 0.05, "note")],
)
def test_missing_edges_weigh_by_how_well_the_network_trains(tmp_path, losses, connected, severity):
    edges = {"edges": 9, "loops": 9 if connected == 0 else 0, "connected": connected}
    run = build(tmp_path / "run", logged={"loss": losses}, signals={"edges": {"convs.0": edges}})
    (one,) = [one for one in diagnose(run) if one.code == "input-without-edges"]
    assert (one.severity, one.layers) == (severity, ("convs.0",))
    assert ("only self-loops" in one.text) == (connected == 0)


def test_gradients_that_are_all_zero_are_no_signal(tmp_path):
    weights = {"norm": still([1.0, 1.0]), "gradient_norm": still([0.0, 0.0])}
    verdict = diagnose(build(tmp_path / "run", weights=weights, **logged())).verdict
    assert verdict.code == "no-training-signal"


def test_gradients_that_are_cleared_before_the_step_are_neither_missing_nor_clipped(tmp_path):
    weights = {"norm": still([1.0, 1.0]), "gradient_norm": still([0.0, 0.0])}
    logged = {"loss": FLAT, "gradient_norm": 0 * FLAT, "gradient_norm_before_clipping": FLAT}
    diagnosis = diagnose(build(tmp_path / "run", weights=weights, logged=logged))
    assert diagnosis.verdict.code == "no-training-signal"
    assert "cleared in between" in diagnosis.verdict.text
    assert "optimizer.zero_grad()" in diagnosis.verdict.remedy
    assert "clipping-too-tight" not in {finding.code for finding in diagnosis}


def test_a_nan_after_a_huge_step_is_the_learning_rate(tmp_path):
    sizes = {"norm": 1.0, "gradient_norm": 1.0, "update_ratio": 5000.0}
    weights = {name: still([value] * 2, 5) for name, value in sizes.items()}
    loss = [2.0, 1e9, math.nan, math.nan, math.nan]
    diagnosis = diagnose(build(tmp_path / "run", weights=weights, logged={"loss": loss}, first_non_finite=FIRST))
    assert diagnosis.verdict.code == "lr-too-large"
    assert [symptom.code for symptom in diagnosis.verdict.symptoms] == ["overflow"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"first_non_finite": FIRST, "logged": {"loss": [2.0, 1.9]}},
            "At step 17 the output gradient of convs.1 became NaN although no earlier value was large: an "
            "operation after it, or in the loss, is undefined",
        ),
        (
            {"layers": {"non_finite": [[0.0, 0.0], [0.0, 3.0], [4.0, 4.0]]}},
            "At step 1 the output of convs.1 became NaN or infinite although no earlier value was large: an operation "
            "in or before it is undefined for its input (log or sqrt of zero, 0 / 0, exp of more than 88), in the "
            "forward pass.",
        ),
        (
            {"weights": {"gradient_non_finite": [[1.0, 0.0]]}},
            "the gradient of convs.0.lin_l.weight became NaN or infinite although no earlier value was large: an "
            "operation that it depends on is undefined",
        ),
        ({"logged": {"loss": [1.4, 0.2, math.nan, math.nan]}}, "At step 2 the loss became NaN"),
        ({"logged": {"loss": [1.4, math.inf, math.nan]}}, "At step 1 the loss became infinite"),
    ],
)
def test_the_first_value_that_is_not_finite_is_named(tmp_path, given, words):
    verdict = diagnose(build(tmp_path / "run", **given)).verdict
    assert (verdict.code, verdict.severity) == ("nonfinite-operation", "error")
    assert words in verdict.text
    looks_forward = "the output of convs.1" in verdict.text
    assert ("convs.1').register_forward_pre_hook" in verdict.remedy) == looks_forward
    assert ("set_detect_anomaly" in verdict.remedy + verdict.falsified_by) != looks_forward


@pytest.mark.parametrize("rates", [np.geomspace(0.1, 1e-9, STEPS), [0.001, 0.01, *(0.1 * 0.3 ** np.arange(STEPS - 2))]])
def test_a_learning_rate_that_fades_is_told_with_that_which_it_had(tmp_path, rates):
    weights = {name: still([1.0, 1.0]) for name in ("norm", "gradient_norm", "update_ratio")}
    run = build(tmp_path / "run", weights=weights, logged={"loss": FLAT, "learning_rate": rates})
    verdict = diagnose(run).verdict
    assert verdict.title == "The learning rate decays too early"
    assert "group['lr'] = 0.1 " in verdict.remedy


@pytest.mark.parametrize("first", [20.0, 2.0])
def test_a_loss_that_only_starts_high_has_not_jumped(tmp_path, first):
    """As of labels nearly all of one class, where a constant prediction is far better than random weights."""
    weights = {"norm": still([4.0, 4.0]), "update_ratio": still([0.0, 2 * limit("step-large")])}
    run = build(tmp_path / "run", weights=weights, logged={"loss": [first, 20.0, *FLAT[2:]]})
    assert isinstance(CAUSES["lr-too-large"].run(Facts(run)), Finding) == (first == 2.0)


@pytest.mark.parametrize("step", [2.0, 0.8])
def test_a_jump_after_which_the_loss_only_partly_falls_is_told_if_a_step_replaced_the_weights(tmp_path, step):
    """As of Adam at a rate of 1: the loss ends lower, but what the network computed is lost."""
    loss, ratios = np.linspace(1.2, 0.6, STEPS), still([0.1, 0.1])
    loss[1], ratios[0] = 20.0, step
    weights = {"norm": still([4.0, 4.0]), "update_ratio": ratios}
    facts = Facts(build(tmp_path / "run", weights=weights, logged={"loss": loss}))
    assert facts.state == "partly"
    assert isinstance(CAUSES["lr-too-large"].run(facts), Finding) == (step == 2.0)


def test_steps_that_differ_by_layer_are_not_the_learning_rate_s_fault(tmp_path):
    ratios = still([1e-7, 1e-7, 1e-7, 1e-5])
    weights = {"norm": still([4.0] * 4), "update_ratio": ratios}
    codes = {finding.code for finding in diagnose(build(tmp_path / "run", weights=weights, **logged()))}
    assert "lr-too-small" not in codes


@pytest.mark.parametrize(
    ("losses", "is_stuck"),
    [
        ([2.0] * 19, False),
        ([2.0] * 20, True),
        ([2.0] * 19 + [1.0], False),
        ([2.0] * 20 + [math.nan], False),
        ([-1.0] + [-2.0] * 20, False),
        ([-1.0] * 20, True),
        ([0.0] * 20, True),
    ],
)
def test_a_loss_that_does_not_fall_is_said_to_after_twenty_steps(tmp_path, losses, is_stuck):
    codes = {finding.code for finding in diagnose(build(tmp_path / "run", logged={"loss": losses}))}
    assert ("loss-not-falling" in codes) == is_stuck


def test_without_overshoot_it_is_said_what_the_rate_was_judged_by(tmp_path):
    """As of mini-batches, and of runs in which every tenth step is recorded."""
    weights = {"norm": still([4.0] * 4), "update_ratio": still([1e-2] * 4)}
    sparse = diagnose(build(tmp_path / "sparse", weights=weights, **logged()))
    for code, says in (("lr-too-large", "only jumps"), ("lr-too-small", "only tiny steps")):
        assert sparse.skipped[code].startswith("overshoot was not recorded, which needs recorded steps in a row")
        assert says in sparse.skipped[code]
    assert "recorded steps in a row" in sparse.skipped["gradients-not-cleared"]
    known = {"overshoot": np.full(STEPS, 0.5), "stale_gradient": np.zeros(STEPS)}
    dense = diagnose(build(tmp_path / "dense", weights=weights, logged={"loss": FLAT, **known}))
    assert not {"lr-too-large", "lr-too-small", "gradients-not-cleared"} & {*dense.skipped}


# --- facts -----------------------------------------------------------------------------------------------------------


def test_the_share_of_the_weights_that_a_step_moves_is_that_of_all_together(tmp_path):
    random = np.random.default_rng(0)
    norm, ratio = random.uniform(1, 2, (5, 3)), random.uniform(0, 0.1, (5, 3))
    facts = Facts(build(tmp_path / "run", weights={"norm": norm, "update_ratio": ratio}))
    for step in range(5):
        moved = sum((ratio[step, k] * norm[step, k]) ** 2 for k in range(3)) ** 0.5
        size = sum(norm[step, k] ** 2 for k in range(3)) ** 0.5
        assert facts.step_ratios[step] == pytest.approx(moved / size)


def test_the_imbalance_is_c_over_the_mean_squared_norm_of_a_neuron(tmp_path):
    random = np.random.default_rng(0)
    c, norm = random.normal(size=(3, 3 * 5)), random.uniform(1, 2, size=(3, 4))
    run = build(tmp_path / "run", weights={"norm": norm}, neurons={"c": c, "delta": 0 * c}, width=5)
    for step in range(3):
        wanted = {
            f"convs.{layer}": max(abs(value) for value in c[step, 5 * layer : 5 * layer + 5])
            / (norm[step, layer] ** 2 / 5)
            for layer in range(3)
        }
        rows = run.neurons[run.neurons["step"] == step]
        assert relative_to_weights(run, rows, rows["c"]) == pytest.approx(wanted)


def test_chance_is_the_entropy_of_the_labels_seen_else_that_of_the_classes(tmp_path):
    facts = Facts(
        build(tmp_path / "classes", logged={"loss": [3.0], "val_accuracy": [0.5]}, layers={"mu": [[1.0]]}, width=4)
    )
    assert facts.chance_loss == pytest.approx(math.log(4))
    facts = Facts(build(tmp_path / "labels", logged={"loss": [3.0]}, signals={"output": {"labels": [3, 1]}}))
    assert facts.baseline_loss == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))


@pytest.mark.parametrize(
    ("measured", "first", "last", "state"),
    [
        (0.01, 0.01, 0.01, "trained"),
        (0.2, 0.2, 0.2, "partly"),  # it may well need longer steps
        (0.01, 0.01, 0.3, "partly"),
        (0.01, 0.01, 1.4, "failing"),
        (1.4, 0.35, 0.35, "failing"),  # a loss over the number of batches that are accumulated
        (0.01, 0.0025, 1.4, "failing"),
    ],
)
def test_a_network_that_was_trained_before_need_not_improve(tmp_path, measured, first, last, state):
    output = {"labels": [5, 5, 5, 5], "first_cross_entropy": measured}
    run = build(tmp_path / "run", logged={"loss": np.linspace(first, last, STEPS)}, signals={"output": output})
    assert Facts(run).state == state


@pytest.mark.parametrize(
    ("first", "last", "state"), [(0.6, 0.9, "partly"), (0.5, 0.7, "failing"), (0.85, 0.9, "failing")]
)
def test_an_auc_that_rose_far_shows_that_a_network_trains(tmp_path, first, last, state):
    logged = {
        "loss": np.linspace(0.5, 0.46, STEPS),
        "val_accuracy": np.full(STEPS, 0.82),
        "val_auc": np.linspace(first, last, STEPS),
    }
    run = build(tmp_path / "run", logged=logged, signals={"output": {"labels": [80, 20]}})
    assert Facts(run).state == state


def test_that_a_single_layer_does_not_show_oversmoothing_is_said(tmp_path):
    run = build(tmp_path / "run", layers={"relative_mu": still([0.1]), "effective_rank": still([1.5])}, **logged())
    assert "no hidden layer" in CAUSES["depth-oversmoothing"].run(Facts(run))


def test_layers_behind_a_pooling_are_not_compared_with_those_of_nodes(tmp_path):
    run = build(tmp_path / "run", layers={"output_norm": [[8.0, 4.0, 1e-3]]})
    rewrite_meta(run.folder, lambda meta: meta["structure"]["layers"][2].update(kind="Linear"))
    assert [*Facts(gatdiag.load(run.folder)).profile("output_norm")] == ["convs.0", "convs.1"]


# --- stored weights --------------------------------------------------------------------------------------------------


def of_checkpoint(folder, **columns):
    """A run made of a checkpoint with two layers, with columns of their feature weights."""
    columns = {"norm": [1.0, 1.0], **columns}
    return build(folder, weights={name: [of] for name, of in columns.items()}, cadence={"every": "checkpoint"})


def test_dead_weights_are_counted_by_layer(tmp_path):
    def texts(name, **columns):
        return [(one.severity, one.text) for one in diagnose(of_checkpoint(tmp_path / name, **columns))]

    assert texts("some", dead_rows=[3.0, 0.0], dead_columns=[0.0, 2.0]) == [
        ("warning", "Layer convs.0 has 3 neurons whose incoming weights are all zero."),
        ("note", "Layer convs.1 has 2 inputs whose weights are all zero."),
    ]
    ((_, text),) = texts("all", norm=[0.0, 1.0], dead_rows=[4.0, 0.0])
    assert text == "Layer convs.0 has a weight matrix that is zero."
    assert texts("unknown", dead_rows=[math.nan] * 2) == []


def test_a_weight_without_entries_is_not_dead(tmp_path):
    run = of_checkpoint(tmp_path / "run", norm=[0.0, 1.0])
    rewrite_meta(run.folder, lambda meta: meta["structure"]["layers"][0]["parameters"][0].update(shape=[0, 4]))
    assert [one.code for one in diagnose(gatdiag.load(run.folder))] == []


def test_settings_that_are_no_numbers_are_passed_over(tmp_path):
    group = {"lr": 0.1, "betas": [0.9, 0.999], "eps": [1e-30, 1e-16], "weight_decay": None, "parameters": ALL}
    facts = Facts(build(tmp_path / "run", logged={"loss": [1.0]}, optimizers=[{"class": "CAME", "groups": [group]}]))
    assert (facts.setting("eps"), facts.setting("weight_decay"), facts.setting("lr")) == (0, 0, 0.1)


def test_parameters_whose_second_moment_is_zero_never_got_a_gradient(tmp_path):
    (found,) = diagnose(of_checkpoint(tmp_path / "some", second_moment=[0.0, 1.0]))
    assert (found.code, found.layers) == ("parameters-without-gradient", ("convs.0",))
    assert found.parameters == ("convs.0.lin_l.weight",)
    assert "1 of 2 parameters" in found.text
    assert list(diagnose(of_checkpoint(tmp_path / "unknown"))) == []


# --- what is there before the first step decides ----------------------------------------------------------------------

C = limit("gain-jump")


@pytest.mark.parametrize(
    ("c", "peaks", "expected"),
    [
        ([1.01 * C, -1.01 * C] * 2, 0.0, "init-unbalanced"),
        ([1.01 * C, -0.99 * C] * 2, 0.0, "unexplained"),  # the lower of the two medians counts
        ([10 * C] * 4, 0.0, "unexplained"),  # of one sign: layers differ, not neurons
        ([1.01 * C, -1.01 * C] * 2, 0.9, "attention-saturated"),  # c is as large because of the attention
    ],
)
def test_neurons_of_a_layer_that_are_large_one_way_and_the_other_are_out_of_balance(tmp_path, c, peaks, expected):
    run = build(
        tmp_path / "run",
        layers={"attention_peak": still([peaks] * 3)},
        weights={"norm": gains(1, 1, 1, width=4)},
        neurons={"c": still([0.1, -0.1] * 2 + c), "delta": still([0] * 8)},
        **logged(),
        width=4,
    )
    verdict = diagnose(run).verdict
    assert verdict.code == expected
    assert expected != "init-unbalanced" or (verdict.layers, verdict.evidence[0].value) == (
        ("convs.1",),
        pytest.approx(1.01 * C),
    )


def test_outputs_follow_the_product_of_the_norms_so_that_large_and_small_layers_are_not_too_large(tmp_path):
    weights = {"norm": gains(40, 1 / 40, 40, 1 / 40)}
    loss = {"loss": 50 * FLAT, "val_accuracy": 0 * FLAT}
    codes = [finding.code for finding in diagnose(build(tmp_path / "run", weights=weights, logged=loss, width=8))]
    assert codes == ["init-unbalanced"]


@pytest.mark.parametrize(("loss", "severity"), [(FLAT, "error"), (FALLING, "note")])
def test_weights_of_rank_one_are_named_before_what_comes_of_them(tmp_path, loss, severity):
    """Neurons that begin alike die together, and their norm says nothing of the initialization."""
    norm = gains(1, 0.01, 1)
    run = build(
        tmp_path / "run",
        layers={"effective_rank": still([3, 1, 1]), "dead_fraction": still([0, 1, 0]), "non_finite": still([0, 0, 0])},
        weights={"norm": norm, "spectral_norm": norm * [0.5, 1, 0.5]},
        logged={"loss": loss},
        width=8,
    )
    verdict = diagnose(run).verdict
    assert (verdict.code, verdict.severity, verdict.layers) == ("rank-collapse", severity, ("convs.1",))


def shrinking(folder, layers=10, **given):
    """Attention layers of usual weights whose outputs shrink by 10 in each."""
    norms = {"output_norm": still(10.0 ** -np.arange(layers))}
    return build(folder / "run", layers=norms, weights={"norm": still([1.0] * layers)}, **logged(), **given)


@pytest.mark.parametrize(("optimizer", "expected"), [({"momentum": 0}, True), ({"betas": [0.9, 0.999]}, False)])
def test_adam_keeps_no_attention_network_out_of_balance(tmp_path, optimizer, expected):
    run = shrinking(tmp_path, optimizers=[{"class": "Any", "groups": [{"lr": 0.1, "parameters": ALL, **optimizer}]}])
    assert any(finding.code == "init-unbalanced" for finding in diagnose(run)) == expected


@pytest.mark.parametrize(("c", "expected"), [(0.5, True), (1e-7, False)])
def test_a_network_in_balance_is_not_called_out_of_balance_however_little_it_moves(tmp_path, c, expected):
    run = shrinking(tmp_path, neurons={"c": still([c, -c] * 9), "delta": still([0] * 18)})
    found = [finding for finding in diagnose(run) if finding.code == "init-unbalanced"]
    assert bool(found) == expected
    assert not found or [each.value for each in found[0].evidence] == [pytest.approx(1e-9), pytest.approx(2 * c)]


def test_decay_stands_below_gradients_that_vanished_before_it_did_anything(tmp_path):
    decayed = CASES["weight-decay-too-strong"][0](2)
    decayed["weights"] = {name: np.tile(column, 5) for name, column in decayed["weights"].items()}
    run = build(tmp_path / "run", layers={"output_gradient_norm": still([1e-4, 1e-3, 0.01, 0.1, 1])}, **decayed)
    verdict = diagnose(run).verdict
    assert verdict.code == "depth-vanishing-gradient"
    assert "weight-decay-too-strong" in {symptom.code for symptom in verdict.symptoms}


def decayed_and_clipped(left, kind="Adam"):
    """Decay outweighs what clipping leaves of a gradient of 1."""
    given = CASES["weight-decay-too-strong"][0](1)
    given["weights"]["gradient_norm"] = still([left])
    given["logged"] |= {"gradient_norm": np.full(STEPS, left), "gradient_norm_before_clipping": np.ones(STEPS)}
    group = {"lr": 0.1, "weight_decay": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "parameters": ALL}
    return given | {"optimizers": [{"class": kind, "groups": [group]}]}


@pytest.mark.parametrize(
    ("left", "kind", "code"),
    [
        (1e-3, "Adam", "clipping-too-tight"),
        (1e-3, "AdamW", "weight-decay-too-strong"),
        (0.15, "Adam", "weight-decay-too-strong"),
    ],
)
def test_decay_that_outweighs_a_clipped_gradient_is_not_too_strong(tmp_path, left, kind, code):
    given = decayed_and_clipped(left, kind)
    if kind == "AdamW":
        given["weights"]["update_ratio"] = still([0.1 * 0.1])
    run = build(tmp_path / "run", **given)
    assert [finding.code for finding in diagnose(run) if finding.severity == "error"] == [code]


def test_a_large_eps_of_adam_is_named_and_mended_in_the_line_to_paste(tmp_path):
    for eps in (1e-8, 0.5):
        group = {"lr": 0.01, "betas": [0.9, 0.999], "eps": eps, "parameters": ALL}
        run = build(
            tmp_path / str(eps),
            weights={"norm": still([4.0, 4.0]), "update_ratio": still([1e-5] * 2), "gradient_norm": still([0.1] * 2)},
            logged={"loss": FLAT, "gradient_norm": FLAT * 0.1},
            optimizers=[{"class": "Adam", "groups": [group]}],
        )
        verdict = diagnose(run).verdict
        assert verdict.code == "lr-too-small"
        assert ("eps of 0.5" in verdict.text) == ("eps=1e-08)" in verdict.remedy) == (eps > 0.1)
        assert verdict.actions


def test_a_loss_that_stays_far_above_that_of_a_constant_prediction_is_told(tmp_path):
    """Targets whose mean is far from zero beside their variance, as in regression."""
    output = {"implied_mse": 1e6, "implied_variance": 1.0, "implied_step": 0}
    logged = {"loss": np.linspace(1e6, 7e5, STEPS)}
    verdict = diagnose(build(tmp_path / "run", logged=logged, signals={"output": output})).verdict
    assert (verdict.code, verdict.evidence[0].value) == ("unexplained", pytest.approx(7e5))
    assert verdict.remedy.startswith("y = (y - y.mean()) / y.std()")


def test_gradients_of_parameters_in_no_optimizer_are_not_said_to_be_followed(tmp_path):
    logged = {"loss": FLAT, "stale_gradient": FLAT}
    for held, code in ((ALL, "gradients-not-cleared"), (ALL[:3], "parameters-not-in-optimizer")):
        optimizers = [{"class": "SGD", "groups": [{"lr": 0.1, "parameters": held}]}]
        verdict = diagnose(build(tmp_path / str(len(held)), logged=logged, optimizers=optimizers)).verdict
        assert verdict.code == code
        assert "gradients-not-cleared" not in {symptom.code for symptom in verdict.symptoms}


def test_outputs_that_begin_at_zero_are_no_traceback(tmp_path):
    """The relative mu of zeros is undefined, and those of the layers behind them are not."""
    mu, norms = [math.nan, 0.8, 0.5, 0.3, 1e-5, 1e-5], [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    run = build(tmp_path / "run", **depth("relative_mu", mu, output_norm=norms))
    assert "depth-oversmoothing" in {finding.code for finding in diagnose(run)}


def test_growth_that_is_flagged_by_the_first_loss_shows_it(tmp_path):
    loss = np.where(np.arange(STEPS) < 1, 2 * limit("jump"), 1.0) * math.log(3)
    of = depth("output_norm", [1, 2, 4, 8, 16, 20, 1]) | {"logged": {"loss": loss}}
    run = build(tmp_path / "run", **of, signals={"output": {"labels": [20, 20, 20]}})
    finding = CAUSES["depth-exploding-gradient"].run(Facts(run))
    shown = {one.what: one.value for one in finding.evidence}
    assert shown["first loss over that of a constant prediction"] > limit("jump")
    assert f"{limit('jump'):g} (times the loss" in finding.threshold
    assert "residual branches" not in finding.text


def test_checkpoints_whose_loss_has_fallen_have_trained(tmp_path):
    tables = depth("output_norm", [1, 2, 3, 4, 5, 2 * limit("explode"), 1])
    falling = {name: table for name, table in tables.items() if name != "logged"} | {"logged": {"loss": FALLING}}
    for name, given, state in (("still", tables, "unknown"), ("fell", falling, "trained")):
        diagnosis = diagnose(build(tmp_path / name, cadence={"every": "checkpoint"}, **given))
        assert diagnosis.state == state
        assert (diagnosis.verdict.code == "depth-exploding-gradient") == (state == "unknown")


@pytest.mark.parametrize(("layers", "pasted"), [(10, None), (20, "Adam(model.parameters(), lr=0.002)")])
def test_deep_attention_stacks_are_to_be_trained_by_adam(tmp_path, layers, pasted):
    run = shrinking(tmp_path, layers, optimizers=sgd())
    remedy = diagnose(run).verdict.remedy
    assert (f"optimizer = torch.optim.{pasted}" in remedy) if pasted else ("optimizer" not in remedy)


@pytest.mark.parametrize(("attends", "known"), [(True, True), (False, True), (True, False)])
def test_adam_is_proposed_for_attention_layers_where_another_optimizer_is_known(tmp_path, attends, known):
    groups = [{"class": "SGD", "groups": [{"lr": 0.1, "parameters": ALL}]}] if known else []
    weights = {"norm": gains(*[30, 1 / 30] * 10)}
    run = build(tmp_path / "run", weights=weights, **logged(), width=8, optimizers=groups)

    def without_attention(meta):
        for layer in meta["structure"]["layers"]:
            layer["parameters"] = [one for one in layer["parameters"] if one["role"] != "attention vector"]

    if not attends:
        rewrite_meta(run.folder, without_attention)
    remedy = CAUSES["init-unbalanced"].run(Facts(gatdiag.load(run.folder))).remedy
    assert "initialize_(model" in remedy
    assert ("torch.optim.Adam(" in remedy) == (attends and known)


@pytest.mark.parametrize(
    ("losses", "signals", "severity"),
    [
        (FLAT, {"evaluation_from": 0, "batch_norms": {"norm": 0}}, "error"),
        (FLAT, {"evaluation_from": 10, "batch_norms": {"norm": 1}}, "error"),
        (FALLING, {"evaluation_from": 0, "batch_norms": {"norm": 0}}, "note"),
        (FLAT, {"evaluation_from": 0, "batch_norms": {"norm": 5000}}, "note"),
        (FLAT, {"evaluation_from": 0, "dropout": {"drop.p": 0.5}}, "note"),
        (FLAT, {"evaluation_from": 50, "batch_norms": {"norm": 1}}, None),
        (FLAT, {"evaluation_from": None, "batch_norms": {"norm": 0}}, None),
        (FLAT, {"evaluation_from": 0, "batch_norms": {}, "dropout": {}}, None),
    ],
)
def test_evaluation_mode_is_a_cause_where_batch_normalization_does_not_normalize(tmp_path, losses, signals, severity):
    tables = depth("dead_fraction", [0.0, 1.0], non_finite=[0.0, 0.0]) | {"logged": {"loss": losses}}
    diagnosis = diagnose(build(tmp_path / "run", **tables, signals=signals))
    found = {finding.code: finding for finding in diagnosis}
    assert (found["evaluation-mode"].severity if "evaluation-mode" in found else None) == severity
    assert ("dead-units" in found) == (losses is FLAT and severity != "error")


@pytest.mark.parametrize(
    ("first", "last", "code"),
    [
        ([1, 1, 0], [1, 1, 0], "parameters-without-gradient"),
        ([1, 1, 0.5], [1, 1, 0.95], "parameters-without-gradient"),
        ([0.5, 0.5, 0], [1, 1, 0], "dead-units"),  # they died
        ([0.95, 0.95, 0], [0.95, 0.95, 0], "dead-units"),
        ([0, 1, 0], [0, 1, 0], "parameters-without-gradient"),  # a branch that something multiplies by zero
        ([0, 0.5, 0], [0, 1, 0], "dead-units"),
    ],
)
def test_an_operation_without_gradient_kills_no_units(tmp_path, first, last, code):
    """Such as `torch.round`: nothing before it gets a gradient, although no layer's inputs are zero."""
    shares = still(last)
    shares[:-1] = first
    weights = {"norm": still([1.0] * 3), "gradient_norm": still(np.array(first) < 1)}
    run = build(
        tmp_path / "run",
        layers={"gradient_dead_fraction": shares},
        weights=weights,
        **logged(),
        signals={"zero_inputs": {"convs.1": {"first": 0.2, "since": None, "last": 0.2}}},
    )
    verdict = diagnose(run).verdict
    assert verdict.code == code
    assert "dead-units" not in [symptom.code for symptom in verdict.symptoms] or code == "dead-units"


@pytest.mark.parametrize(("rate", "code"), [(0.99, "dropout-too-large"), (0.5, "dead-units")])
def test_zeros_that_dropout_makes_are_not_dead_units(tmp_path, rate, code):
    zeros = {"convs.1": {"first": 0.2, "since": 30, "last": 1.0}}
    signals = {"zero_inputs": zeros, "evaluation_from": None, "dropout": {"convs.0.dropout": rate, "drop.p": 0.1}}
    verdict = diagnose(build(tmp_path / "run", **logged(), signals=signals)).verdict
    assert verdict.code == code
    if code == "dropout-too-large":
        assert verdict.remedy == "model.get_submodule('convs.0').dropout = 0.5"
        assert "dead-units" in [symptom.code for symptom in verdict.symptoms]


def test_a_rate_that_dropout_is_called_with_is_seen(tmp_path):
    signals = {"evaluation_from": None, "dropout": {}, "dropped": {"the model": 0.95}}
    verdict = diagnose(build(tmp_path / "run", **logged(), signals=signals)).verdict
    assert (verdict.code, verdict.actions) == ("dropout-too-large", ())
    assert "dropout(x, 0.5" in verdict.remedy


def test_a_large_dropout_rate_is_no_problem_where_the_network_trains_or_drops_nothing(tmp_path):
    for name, losses, since in (("trains", FALLING, None), ("off", FLAT, 0)):
        signals = {"evaluation_from": since, "dropout": {"drop.p": 0.95}}
        found = diagnose(build(tmp_path / name, logged={"loss": losses}, signals=signals))
        assert "dropout-too-large" not in [finding.code for finding in found]


@pytest.mark.parametrize(
    ("since", "large", "overshoot", "peak", "steps", "code"),
    [
        (30, 5, 0.5, 2.0, STEPS, "lr-too-large"),
        (30, 5, 0.5, 100.0, 40, "lr-too-large"),
        (30, 40, 0.5, 2.0, STEPS, "dead-units"),
        (30, None, 0.5, 2.0, STEPS, "dead-units"),
        (30, None, 3.0, 2.0, STEPS, "lr-too-large"),
        (1, 0, 0.5, 2.0, STEPS, "lr-too-large"),
        (1, None, 3.0, 2.0, STEPS, "lr-too-large"),
    ],
)
def test_units_that_die_after_a_large_step_are_the_learning_rate_s_fault(
    tmp_path, since, large, overshoot, peak, steps, code
):
    at, ratios = np.arange(steps), still([0.1, 0.1], steps)
    if large is not None:
        ratios[large] = 0.8
    ones = still([1.0, 1.0], steps)
    weights = {"norm": gains(1, 1, width=2)[:steps], "gradient_norm": ones, "update_ratio": ratios}
    after = np.where(at == min(since, 7), overshoot, 0.5)
    signals = {"zero_inputs": {"convs.1": {"first": 0.2, "since": since, "last": 1.0}}}
    given = logged(np.where(at == 6, peak, 2.0), overshoot=after) | {"signals": signals}
    verdict = diagnose(build(tmp_path / "run", weights=weights, **given, optimizers=sgd())).verdict
    assert (verdict.code, verdict.severity) == (code, "error")
    assert ("dead-units" in [symptom.code for symptom in verdict.symptoms]) == (code == "lr-too-large")


# --- what is no cause ------------------------------------------------------------------------------------------------


def codes(run):
    return {one.code for found in diagnose(run) for one in (found, *found.symptoms)}


def test_gradients_of_nan_are_not_missing(tmp_path):
    weights = {"norm": still([1.0, 1.0]), "gradient_norm": still([0.1, math.nan])}
    for name, counts, missing in (("none", [0.0, 0.0], True), ("nan", [0.0, 4.0], False)):
        run = build(tmp_path / name, weights=weights | {"gradient_non_finite": still(counts)}, **logged())
        assert ("parameters-without-gradient" in codes(run)) == missing


def test_what_was_frozen_in_the_first_step_only_is_not_frozen(tmp_path):
    gradients = still([0.1, 0.1])
    gradients[0, 0] = math.nan
    run = build(tmp_path / "run", weights={"norm": still([1.0, 1.0]), "gradient_norm": gradients}, **logged())
    rewrite_meta(run.folder, lambda meta: meta["structure"]["layers"][0]["parameters"][0].update(trainable=False))
    assert "parameters-without-gradient" not in codes(gatdiag.load(run.folder))


def test_parameters_of_the_model_itself_are_no_layer(tmp_path):
    run = build(tmp_path / "run", **square(1, 1, 100) | logged())
    rewrite_meta(run.folder, lambda meta: meta["structure"]["layers"][2].update(name="(root)"))
    facts = Facts(gatdiag.load(run.folder))
    assert [*facts.gains] == ["convs.0", "convs.1", "(root)"]  # its initial weights count
    assert [layer["name"] for layer in facts.layers] == ["convs.0", "convs.1"]


@pytest.mark.parametrize(("last", "severity"), [(1.95, "error"), (1.6, "note")])
def test_small_initial_weights_are_no_error_once_the_network_learns(tmp_path, last, severity):
    run = build(tmp_path / "run", **square(*[0.9 * limit("gain-small")] * 3) | logged(np.linspace(2.0, last, STEPS)))
    (found,) = [one for one in diagnose(run) if one.code == "init-too-small"]
    assert found.severity == severity


def test_the_scale_of_an_input_is_said_by_its_own_name(tmp_path):
    one = {"rows": 9, "columns": 2, "non_finite": 0, "relative_mu": 0.5, "largest_column": 1e4, "smallest_column": 1.0}
    for name, line in (("edge_attr", "data.edge_attr = "), ("features", "features = ")):
        signals = {"inputs": [{"name": name, "row_norm": 1e4, **one}]}
        (found,) = diagnose(build(tmp_path / name, **logged(), signals=signals))
        assert found.remedy.startswith(line)


def test_a_run_without_a_step_has_no_constant_inputs(tmp_path):
    one = {"rows": 9, "columns": 2, "non_finite": 0, "relative_mu": 0.0, "largest_column": 1.0, "smallest_column": 1.0}
    run = build(tmp_path / "run", signals={"inputs": [{"name": "x", "row_norm": 1.0, **one}]})
    assert diagnose(run).skipped["input-constant"] == "no step was recorded"


def test_what_a_catalog_holds_is_a_short_line():
    everything = [*CAUSES.values(), *QUANTITIES]
    assert max(len(repr(one)) for one in everything) < 60
    assert repr(CAUSES["dead-units"]) == "Cause(dead-units)"


@pytest.mark.parametrize(("loss", "severity"), [(FLAT, "error"), (FALLING, "note")])
def test_a_few_huge_rows_of_the_inputs_are_named(tmp_path, loss, severity):
    one = {"name": "x", "rows": 90, "columns": 4, "non_finite": 0, "largest_column": 5.0, "smallest_column": 1.0}
    for factor, expected in ((1.1, [severity]), (0.9, [])):
        rows = {"row_norm": 8.0, "relative_mu": 0.9, "largest_row": factor * limit("row-outlier")}
        found = diagnose(build(tmp_path / f"{factor}", logged={"loss": loss}, signals={"inputs": [one | rows]}))
        assert [finding.severity for finding in found if finding.code == "input-scale"] == expected
