import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GCN, GCNConv, SAGPooling, global_mean_pool
from torch_geometric.nn.aggr import AttentionalAggregation

import gatdiag
from gatdiag.diagnosis import CAUSES, MODULES, SEVERITIES, diagnose
from gatdiag.diagnosis.finding import Finding
from gatdiag.diagnosis.thresholds import limits_of
from gatdiag.diagnosis.verdict import rank_findings
from gatdiag.errors import InputError
from tests.page.builder import build
from tests.run.synthetic import synthetic_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [
        gatdiag.load(
            synthetic_run(
                folder / name, steps=30 if name == "stuck" else 120, layers=10, neurons=2, collapse=name == "stuck"
            )
        )
        for name in ("stuck", "fine")
    ]


def test_a_stuck_network_is_told_from_one_that_trains(runs):
    stuck, fine = map(diagnose, runs)
    assert (stuck.verdict.code, stuck.verdict.severity) == ("init-unbalanced", "error")
    (finding,) = stuck
    assert {symptom.code for symptom in finding.symptoms} >= {"loss-not-falling", "unchanged-weights"}
    assert (fine.verdict.code, fine.findings) == ("healthy", ())


def test_a_folder_will_do(runs):
    assert gatdiag.diagnose(str(runs[0].folder)) == gatdiag.diagnose(runs[0])
    with pytest.raises(InputError):
        gatdiag.diagnose("nowhere")


def test_what_was_not_recorded_is_skipped_with_the_reason(tmp_path):
    diagnosis = diagnose(build(tmp_path / "run", logged={"loss": [1.0]}))
    assert diagnosis.findings == ()
    assert diagnosis.state == "unknown"
    assert (diagnosis.verdict.code, diagnosis.verdict.text[:11]) == ("undetermined", "Only 1 step")
    assert {"input-scale", "init-unbalanced", "depth-oversmoothing", "overfitting"} <= {*diagnosis.skipped}
    assert all(diagnosis.skipped.values())


@pytest.mark.parametrize(
    ("accuracy", "last", "labels", "state"),
    [
        (0.95, 1.3, [5, 5, 5, 5], "partly"),
        (0.25, 1.3, [5, 5, 5, 5], "failing"),
        (0.98, 0.3, [98, 2], "failing"),  # that of the most frequent class
    ],
)
def test_a_network_that_predicts_well_trains_though_its_loss_lags_behind(tmp_path, accuracy, last, labels, state):
    logged = {"loss": np.linspace(last + 0.1, last, 60), "val_accuracy": np.full(60, accuracy)}
    output = {"criterion": "cross-entropy", "labels": labels}
    assert diagnose(build(tmp_path / "run", logged=logged, signals={"output": output})).state == state


WITHOUT_CAUSE = {"healthy", "unexplained", "undetermined"}
ODD = {
    "empty": {},
    "live": {"logged": {"loss": [1.0, 0.9]}, "ending": None},
    **{
        str(value): {
            "layers": {
                name: np.full((30, 4), value)
                for name in ("output_norm", "relative_mu", "output_gradient_norm", "effective_rank")
            },
            "weights": {name: np.full((30, 4), value) for name in ("norm", "gradient_norm", "update_ratio")},
            "neurons": {name: np.full((30, 6), value) for name in ("c", "delta", "predicted_c")},
            "logged": {name: np.full(30, value) for name in ("loss", "val_accuracy", "val_loss", "learning_rate")},
        }
        for value in (math.nan, math.inf, 0.0, -1.0, 1e300)
    },
    "optimizer": {
        "logged": {"loss": [1.0] * 30},
        "optimizers": [{"class": "Own", "groups": [{"lr": None, "weight_decay": None, "momentum": "x"}]}],
    },
    "signals": {
        "logged": {"loss": [1.0] * 30},
        "signals": {
            "inputs": [{"name": "x", "rows": 3, "columns": 9, "non_finite": 0, "relative_mu": None}],
            "output": {"criterion": "cross-entropy", "criterion_share": None, "implied_mse": 1.0, "implied_step": 0},
            "zero_inputs": {"convs.0": {"first": None, "last": None, "since": None}},
        },
    },
    "no output": {
        "logged": {"loss": [1.0] * 30},
        "signals": {"output": {"criterion": "nll", "criterion_share": 1.0, "last_operation": "SoftmaxBackward0"}},
    },
}


@pytest.mark.parametrize("case", ODD)
def test_odd_runs_get_a_diagnosis_without_a_warning(tmp_path, case):
    document = diagnose(build(tmp_path / "run", **ODD[case])).document()
    assert document["verdict"]["code"] in {*CAUSES, *WITHOUT_CAUSE}


def test_each_cause_says_where_it_stands_and_why():
    of_others = {code for code, cause in CAUSES.items() if cause.check is None}
    assert of_others == {"overflow", "non-finite", "unchanged-checkpoints"}
    assert {cause.figure for cause in CAUSES.values()} - {""} <= {figure.name for figure in gatdiag.figures.FIGURES}
    assert {cause.below_if_late for cause in CAUSES.values()} - {""} <= {*CAUSES}
    assert all(cause.title and cause.why for cause in CAUSES.values())
    assert all(cause.text for cause in CAUSES.values())
    assert [cause.rank for cause in CAUSES.values()] == sorted({cause.rank for cause in CAUSES.values()})
    assert all(one.reason for one in limits_of(name for cause in CAUSES.values() for name in cause.limits).values())


def test_every_check_is_declared():
    written = {value for file in MODULES for name, value in vars(file).items() if name.startswith("check_")}
    assert written == {cause.check for cause in CAUSES.values()} - {None}, "declare it with @cause"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (["lr-too-small", "lr-too-large", "overflow"], [("lr-too-large", ["overflow"])]),
        (["lr-too-large", "small-steps", "unchanged-weights"], [("lr-too-large", ["unchanged-weights"])]),
        (["small-steps", "unchanged-weights"], []),
        (["loss-not-falling", "small-steps"], [("loss-not-falling", ["small-steps"])]),
        (["overflow"], [("nonfinite-operation", [])]),
        (["input-constant", "no-training-signal"], [("no-training-signal", []), ("input-constant", [])]),
        (["law-broken", "dead-units"], [("dead-units", []), ("law-broken", [])]),
        (["clipping-too-tight", "lr-too-small"], [("clipping-too-tight", ["lr-too-small"])]),
        (["clipping-too-tight", "init-unbalanced"], [("init-unbalanced", []), ("clipping-too-tight", [])]),
    ],
)
def test_a_finding_explains_what_stands_below_it_but_not_what_stands_by_itself(found, expected):
    severity = {code: "note" if CAUSES[code].severity == "note" else "error" for code in found}
    ordered = rank_findings([Finding(code, severity[code], "", "") for code in found])
    assert [(one.code, [symptom.code for symptom in one.symptoms]) for one in ordered] == expected


def test_a_note_explains_no_error_and_stands_below_it():
    noted, error = Finding("dead-units", "note", "", ""), Finding("lr-too-small", "error", "", "")
    assert [*rank_findings([noted, error])] == [error, noted]


def test_dead_units_that_training_made_stand_below_what_was_there_before():
    early, late = (Finding("dead-units", "error", "", "", steps=(step,)) for step in (0, 1))
    rank = Finding("rank-collapse", "error", "", "")
    assert [next(rank_findings([rank, dead])).code for dead in (early, late)] == ["dead-units", "rank-collapse"]


def test_a_remedy_of_comments_only_is_tried_and_not_pasted():
    lines = ["# train on one batch", "# train on one batch\nmodel.train()"]
    found = [next(Finding("unexplained", "warning", "", "", remedy=line).details()) for line in lines]
    assert found == [("heading", "  to try:"), ("heading", "  to paste:")]


def test_the_document_is_plain_data(runs):
    document = diagnose(runs[0]).document()
    assert [*document] == ["word", "verdict", "findings", "skipped", "state", "reason", "remarks"]
    assert document["verdict"] == document["findings"][0]
    assert document["verdict"]["severity"] in SEVERITIES


def test_a_diagnosis_prints_as_text(runs):
    stuck, fine = (str(diagnose(run)).splitlines() for run in runs)
    assert stuck[0].startswith("failing: Neurons are out of balance from the start: In these 10 attention layers ")
    assert stuck[3].startswith("  evidence: ")
    assert stuck[4].startswith("  also measured: ")
    assert stuck[1:3] == [
        "  to paste, after `import gatdiag`:",
        '    gatdiag.remedies.initialize_(model, "balanced_orthogonal")  # before training',
    ]
    assert "  would also look like: the loss does not fall, weights that never moved" in stuck
    assert fine[0].startswith("healthy: No problem found. The network ")
    assert fine[1].endswith("causes; diagnosis.skipped says why not the others")


class Gated(nn.Module):
    """A convolution, a gate or a pooling that gives each node one number, and a convolution."""

    def __init__(self, kind, width=16):
        super().__init__()
        self.first = GCNConv(8, width)
        self.gate = {"sag": lambda: SAGPooling(width, 0.5), "gate": lambda: nn.Linear(width, 1)}.get(
            kind, nn.Identity
        )()
        self.second = GCNConv(width, 8 if kind == "attention" else 3)
        self.pool = AttentionalAggregation(nn.Linear(8, 1)) if kind == "attention" else None
        self.last = nn.Linear(8, 3) if kind == "attention" else nn.Identity()
        self.kind = kind

    def forward(self, x, edge_index):
        batch = torch.arange(len(x)) // 10
        h = self.first(x, edge_index).relu()
        if self.kind == "sag":
            h, edge_index, _, batch, *_ = self.gate(h, edge_index, batch=batch)
        if self.kind == "gate":
            h = h * self.gate(h).sigmoid()
        h = self.second(h, edge_index)
        return self.last(global_mean_pool(h, batch) if self.pool is None else self.pool(h, batch))


def normalized():
    model = GCN(8, 16, 2, 3)
    nn.utils.parametrizations.weight_norm(model.convs[0].lin)
    return model


@pytest.mark.parametrize(
    ("make", "collapses"),
    [
        (lambda: Gated("sag"), False),
        (lambda: Gated("gate"), False),
        (lambda: Gated("attention"), False),
        (lambda: GCN(8, 16, 3, 3, jk="lstm"), False),
        (normalized, False),
        (lambda: GCN(1, 16, 2, 3), False),
        (lambda: Gated("none", width=1), True),
        (lambda: GCN(8, 1, 3, 3), True),
    ],
)
def test_one_number_for_each_node_collapses_ranks_where_the_next_layer_reads_nothing_else(make, collapses):
    generator = torch.Generator().manual_seed(0)
    x, edge_index = torch.rand(60, 8, generator=generator), torch.randint(0, 60, (2, 300), generator=generator)
    torch.manual_seed(0)
    model = make()
    x = x[:, : getattr(model, "in_channels", 8)]
    diagnosis = gatdiag.preflight(
        model, x, edge_index, loss=lambda out: F.cross_entropy(out, torch.arange(len(out)) % 3)
    )
    codes = [finding.code for finding in diagnosis]
    assert ("rank-collapse" in codes) is collapses
    assert "depth-oversmoothing" not in codes


def test_a_branch_that_the_loss_does_not_use_hides_no_cause(tmp_path):
    """As the last weights of node types without labels in every heterogeneous network."""
    norms, grads = np.full((60, 3), 4.0), np.full((60, 3), 0.1)
    grads[:, 2] = np.nan
    weights = {"norm": norms, "gradient_norm": grads, "update_ratio": np.where(np.isnan(grads), 0.0, 1e-7)}
    diagnosis = diagnose(build(tmp_path / "run", weights=weights, logged={"loss": np.full(60, 2.0)}))
    assert [(one.code, one.severity) for one in diagnosis] == [
        ("lr-too-small", "error"),
        ("parameters-without-gradient", "warning"),
    ]
    assert diagnosis.findings[1].parameters == ("convs.2.lin_l.weight",)


def test_a_training_that_fails_without_a_cause_is_not_headed_by_no_problem(tmp_path):
    logged = {"loss": np.linspace(2.0, 1.6, 60)}
    diagnosis = diagnose(build(tmp_path / "run", logged=logged))
    verdict = ("failing", "unexplained", "warning")
    assert (diagnosis.state, diagnosis.verdict.code, diagnosis.verdict.severity) == verdict
    assert str(diagnosis).startswith("failing: It does not train, and no check says why. The loss went from 2 to 1.6.")
    assert "No problem" not in str(diagnosis)


def test_a_symptom_without_a_cause_does_not_contradict_the_line_to_paste(tmp_path):
    stuck = diagnose(build(tmp_path / "stuck", logged={"loss": np.full(60, 2.0)})).verdict
    assert stuck.text.endswith("No check found the cause; what to try narrows it down.")
    assert stuck.remedy.startswith("# train on one batch")
    output = {"implied_mse": 1e6, "implied_variance": 1.0, "implied_step": 0}
    logged = {"loss": np.linspace(1e6, 7e5, 60)}
    far = diagnose(build(tmp_path / "far", logged=logged, signals={"output": output})).verdict
    assert far.text.endswith("has not even learned the mean of the targets.")


@pytest.mark.parametrize(("accuracy", "severity"), [(0.95, "warning"), (0.25, "error")])
@pytest.mark.parametrize("code", ["output-softmax-twice", "gradients-not-cleared"])
def test_what_is_certain_is_a_warning_where_the_network_predicts_well(tmp_path, code, accuracy, severity):
    logged = {"loss": np.linspace(1.4, 1.3, 60), "val_accuracy": np.full(60, accuracy), "stale_gradient": np.ones(60)}
    output = {"criterion": "cross-entropy", "criterion_share": 1.0, "last_operation": "SoftmaxBackward0"}
    output |= {"labels": [5, 5, 5, 5], "min": 0.0, "max": 1.0}
    found = {one.code: one for one in diagnose(build(tmp_path / "run", logged=logged, signals={"output": output}))}
    assert found[code].severity == severity
