"""What looks like a cause and is none, each beside a run in which it is one; and causes that others hid."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import DenseGCNConv, DenseSAGEConv, GATConv, GCNConv, Sequential, dense_diff_pool

import gatdiag
from gatdiag.diagnosis import diagnose
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.thresholds import limit
from gatdiag.recorder.guard import TrainingWarning
from tests.diagnosis.watched import train
from tests.page.builder import build, rewrite_meta

STEPS = 60
FLAT = np.full(STEPS, 2.0)
FALLING = np.linspace(2.0, 0.01, STEPS)
NAMES = [f"convs.{layer}.{key}" for layer in range(12) for key in ("lin_l.weight", "att", "bias")]


def still(values, steps=STEPS):
    return np.tile(np.asarray(values, float), (steps, 1))


def codes(run):
    return {one.code for found in diagnose(run) for one in (found, *found.symptoms)}


def change(run, **layers):
    """Set what the structure says of layers, each as {attribute: value}; "shape" is that of the feature weight."""

    def rewrite(meta):
        for layer in meta["structure"]["layers"]:
            given = dict(layers.get(layer["name"].replace("convs.", "layer"), {}))
            if (shape := given.pop("shape", None)) is not None:
                layer["parameters"][0]["shape"] = shape
            layer.update(given)

    rewrite_meta(run.folder, rewrite)
    return gatdiag.load(run.folder)


def layers(**columns):
    return {"layers": {name: still(values) for name, values in columns.items()}, "logged": {"loss": FLAT}}


def one_input(**given):
    known = {"name": "x", "rows": 9, "columns": 8, "non_finite": 0, "relative_mu": 0.5}
    return known | {"largest_column": 1.0, "smallest_column": 1.0, "row_norm": 1.0} | given


@pytest.mark.parametrize(("rows", "columns", "is_told"), [(2, 1, False), (2, 4, True), (60, 1, True)])
def test_a_few_equal_numbers_may_be_one_example(tmp_path, rows, columns, is_told):
    inputs = [one_input(rows=rows, columns=columns, relative_mu=0.0)]
    assert (
        "input-constant" in codes(build(tmp_path / "run", logged={"loss": FLAT}, signals={"inputs": inputs}))
    ) == is_told


# --- masks ------------------------------------------------------------------------------------------------------------

LENGTHS = torch.arange(40) % 5 + 4


class Padded(nn.Module):
    """Attention over sequences with padding, which is masked in one of the usual ways."""

    def __init__(self, how):
        super().__init__()
        self.tokens, self.how, self.out = nn.Embedding(10, 16), how, nn.Linear(16, 2)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, tokens):
        h, padding, order = self.tokens(tokens), tokens == 0, torch.arange(tokens.shape[1])
        additive = torch.zeros(padding.shape).masked_fill(padding, -math.inf)
        distance = 0.25 * (order - order[:, None]).float()
        alibi = distance.masked_fill(order > order[:, None], -math.inf)
        given = {
            "boolean": {"key_padding_mask": padding},
            "additive": {"key_padding_mask": additive},
            "alibi": {"attn_mask": alibi},
            "broken": {"attn_mask": alibi.nan_to_num(neginf=math.nan)},
        }
        return self.out(self.attend(h, h, h, need_weights=False, **given[self.how])[0].mean(1))


@pytest.mark.parametrize("how", ["boolean", "additive", "alibi", "broken"])
def test_minus_infinity_in_what_is_added_to_scores_is_a_mask(tmp_path, how):
    torch.manual_seed(0)
    tokens = torch.randint(1, 10, (40, 8))
    tokens[torch.arange(8) >= LENGTHS[:, None]] = 0
    model = Padded(how)
    found = train(tmp_path / "run", model, lambda _: F.cross_entropy(model(tokens), LENGTHS % 2), steps=6, warn=False)
    assert (found.verdict.code == "input-nonfinite") == (how == "broken")
    assert "need_weights" not in str(found)


class Pointed(nn.Module):
    """Attention pooling with a mask that the user makes, or logarithms of counts as features."""

    def __init__(self, is_feature):
        super().__init__()
        self.read, self.score, self.out, self.is_feature = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 2), is_feature

    def forward(self, x, bias):
        h = self.read(x + bias[..., None] if self.is_feature else x).relu()
        weights = self.score(h)[..., 0] if self.is_feature else self.score(h)[..., 0] + bias
        return self.out((weights.softmax(1)[..., None] * h).sum(1))


@pytest.mark.parametrize("is_feature", [False, True])
def test_minus_infinity_is_an_error_where_it_breaks_the_first_step(tmp_path, is_feature):
    torch.manual_seed(0)
    x, bias = torch.randn(40, 8, 6), (torch.arange(8) < LENGTHS[:, None]).float().log()
    model = Pointed(is_feature)
    loss_of = lambda _: F.cross_entropy(model(x, bias), LENGTHS % 2)  # noqa: E731
    diagnosis = train(tmp_path / "run", model, loss_of, steps=6, warn=False)
    assert (diagnosis.verdict.code == "input-nonfinite") == is_feature


# --- the scale of inputs ----------------------------------------------------------------------------------------------


class Divided(nn.Module):
    """A network that standardizes what it is given."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.first((x - 100) / 300).relu())


SCALES = torch.tensor([1.0, 50.0, 1.0, 1.0, 300.0, 1.0, 1.0, 1.0])


def plain(*first):
    return nn.Sequential(*first, nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


@pytest.mark.parametrize(
    ("make", "change", "is_told"),
    [
        (lambda: plain(), lambda x: SCALES * x + 100, True),
        (lambda: plain(nn.BatchNorm1d(8)), lambda x: SCALES * x + 100, False),
        (Divided, lambda x: SCALES * x + 100, False),
        (lambda: plain(), lambda x: 15 * x, False),
        (lambda: plain(), lambda x: 127.5 * (x.clamp(-1, 1) + 1), True),
    ],
    ids=["raw", "normalized", "divided", "alike", "pixels"],
)
def test_what_the_first_weights_are_given_is_what_is_large(tmp_path, make, change, is_told):
    torch.manual_seed(0)
    x, y, model = change(torch.randn(100, 8)), torch.randint(2, (100,)), make()
    diagnosis = train(tmp_path / "run", model, lambda _: F.cross_entropy(model(x), y), lr=1e-3)
    told = [one for one in diagnosis if one.code == "input-scale"]
    assert bool(told) == is_told
    assert not told or ("no learning rate suits all columns" in told[0].text) == (told[0].evidence[0].value > 200)


def test_a_large_column_may_be_learned_with_a_loss_whose_lowest_value_is_unknown(tmp_path):
    one = one_input(largest_column=12.0)
    run = build(tmp_path / "run", logged={"loss": np.linspace(5.3, 4.9, STEPS)}, signals={"inputs": [one]})
    assert Facts(run).state == "unknown"
    assert "input-scale" not in codes(run)


def test_a_single_layer_may_begin_small(tmp_path):
    """Behind it nothing shrinks: the logits of a regression begin at zero."""
    torch.manual_seed(0)
    x, y, model = torch.randn(100, 8), torch.randint(2, (100,)), nn.Linear(8, 2)
    nn.init.normal_(model.weight, std=1e-3)
    diagnosis = train(tmp_path / "run", model, lambda _: F.cross_entropy(model(x), y))
    assert "init-too-small" not in {one.code for one in diagnosis}


@pytest.mark.parametrize("model", [plain(), plain(nn.Identity())], ids=["input", "identity"])
def test_the_fix_of_an_input_runs_in_a_script(tmp_path, model):
    torch.manual_seed(0)
    x, y = SCALES * torch.randn(100, 8), torch.randint(2, (100,))
    diagnosis = train(tmp_path / "run", model, lambda _: F.cross_entropy(model(x), y), lr=1e-3)
    script = {"x": x, "model": model, "gatdiag": gatdiag, "torch": torch}
    exec(diagnosis.verdict.remedy, script)
    assert diagnosis.verdict.code == "input-scale"
    assert script["x"].std(0).allclose(torch.ones(8), atol=0.01)
    assert "x: what the model is called with" in diagnosis.verdict.remedy


class Embedded(nn.Module):
    """Nodes by learned numbers, with features of edges."""

    def __init__(self):
        super().__init__()
        self.nodes = nn.Embedding(30, 8)
        self.first, self.last = GATConv(8, 8, edge_dim=1), GATConv(8, 2, edge_dim=1)

    def forward(self, ids, edge_index, ea):
        return self.last(self.first(self.nodes(ids), edge_index, ea).relu(), edge_index, ea)


@pytest.mark.parametrize("is_constant", [True, False])
def test_constant_features_of_edges_leave_nodes_apart_and_constant_ids_do_not(tmp_path, is_constant):
    torch.manual_seed(0)
    edges, y, model = torch.randint(30, (2, 80)), torch.randint(2, (30,)), Embedded()
    ids = torch.zeros(30, dtype=torch.long) if is_constant else torch.arange(30)
    loss_of = lambda _: F.cross_entropy(model(ids, edges, torch.ones(80, 1)), y)  # noqa: E731
    diagnosis = train(tmp_path / "run", model, loss_of)
    assert ("input-constant" in {one.code for one in diagnosis}) == is_constant


# --- dead units, and rows that are alike ------------------------------------------------------------------------------


@pytest.mark.parametrize(("seen", "is_dead"), [(0, False), (5, True)])
def test_inputs_that_are_zero_in_the_first_step_alone_are_not_dead(tmp_path, seen, is_dead):
    """As those of a state that begins at zero: later it is carried on without a gradient, and no longer inspected."""
    zero = {"first": 1.0, "last": 1.0, "since": 0, "seen": seen}
    run = build(tmp_path / "run", logged={"loss": FLAT}, signals={"zero_inputs": {"convs.1": zero}})
    assert ("dead-units" in codes(run)) == is_dead


@pytest.mark.parametrize(("later", "collapses"), [(0.5, False), (0.0, True)])
def test_rows_that_are_the_same_in_the_first_step_alone_do_not_collapse(tmp_path, later, collapses):
    mu = still([0.8, later, 0.5])
    mu[0, 1] = 0.0
    given = layers(effective_rank=[8.0, 1.0, 2.0], output_norm=[1.0] * 3)
    given["layers"]["relative_mu"] = mu
    assert ("rank-collapse" in codes(build(tmp_path / "run", **given))) == collapses


@pytest.mark.parametrize("columns", [(8, 8), (1, 8)])
def test_the_only_unit_of_a_layer_may_have_a_constant_effect(tmp_path, columns):
    """As the assignment of all nodes to one cluster, which gets no gradient."""
    run = build(
        tmp_path / "run",
        **layers(gradient_dead_fraction=[0.0, 1.0, 0.0]),
        weights={"norm": still([1.0] * 3), "gradient_norm": still([1.0, 0.0, 1.0])},
    )
    found = codes(change(run, layer1={"shape": [*columns]}))
    assert ("parameters-without-gradient" in found) == (columns[0] > 1)
    assert "dead-units" not in found


ALIKE = {"relative_mu": [0.8, 0.5, 0.3, 1e-4, 1e-4], "output_norm": [1.0] * 5}


@pytest.mark.parametrize(
    ("constant", "has_several", "smooths"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_node_types_whose_features_are_constant_are_not_oversmoothed(tmp_path, constant, has_several, smooths):
    inputs = [one_input(name="paper"), one_input(name="author", relative_mu=0.0 if constant else 0.5)]
    signals = {"inputs": inputs, "has_several_kinds": has_several}
    diagnosis = diagnose(build(tmp_path / "run", **layers(**ALIKE), signals=signals))
    assert (diagnosis.verdict.code == "depth-oversmoothing") == smooths
    assert smooths or "nodes of one type have the same features" in diagnosis.skipped["depth-oversmoothing"]


@pytest.mark.parametrize(("rows", "smooths"), [(1, False), (100, True)])
def test_the_clusters_of_a_pooling_are_not_compared_with_nodes(tmp_path, rows, smooths):
    signals = {"rows": {f"convs.{layer}": 100 if layer < 3 else rows for layer in range(5)}}
    run = build(tmp_path / "run", **layers(**ALIKE), signals=signals)
    assert ("depth-oversmoothing" in codes(run)) == smooths
    assert len(Facts(run).node_layers) == (5 if smooths else 3)


class Pooling(nn.Module):
    """Two poolings of one graph, the last to one cluster, whose assignment has no gradient."""

    def __init__(self, convolution):
        super().__init__()
        sizes = ((8, 6), (8, 16), (16, 1), (16, 16), (16, 16))
        self.convolutions = nn.ModuleList(convolution(*size) for size in sizes)
        self.last = nn.Linear(16, 2)

    def forward(self, x, adjacency):
        assign, embed, merge, embed_clusters, after = self.convolutions
        hidden, joined, link, entropy = dense_diff_pool(embed(x, adjacency).relu(), adjacency, assign(x, adjacency))
        of_clusters = embed_clusters(hidden, joined).relu()
        pooled, joined, *others = dense_diff_pool(of_clusters, joined, merge(hidden, joined))
        return self.last(after(pooled, joined).relu().mean(1)), link + entropy + sum(others)


@pytest.mark.parametrize("convolution", [DenseGCNConv, DenseSAGEConv])
def test_one_graph_per_batch_is_pooled_to_one_cluster_without_blame(tmp_path, convolution):
    torch.manual_seed(0)
    model = Pooling(convolution)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with gatdiag.watch(model, tmp_path / "run", every=1) as recorder:
        for step in range(60):
            links = (torch.rand(1, 18, 18) < 0.3).float()
            x = torch.randn(1, 18, 8) + step % 2
            out, others = model(x, (links + links.mT).clamp(max=1))
            loss = F.cross_entropy(out, torch.tensor([step % 2])) + others
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.log(loss=loss.item())
    assert not {"dead-units", "rank-collapse"} & {*codes(gatdiag.load(tmp_path / "run"))}


# --- what grows from layer to layer, and from run to run --------------------------------------------------------------


@pytest.mark.parametrize(("kind", "explodes"), [("GATv2Conv", True), ("BatchNorm2d", False)])
def test_outputs_before_and_after_a_normalization_are_not_compared(tmp_path, kind, explodes):
    """As in DCGAN, whose convolutions begin small and whose normalizations do not."""
    norms = [1, 1, 1, 2 * limit("explode"), 100, 100, 100, 1]
    run = build(tmp_path / "run", **layers(output_norm=norms))
    assert ("depth-exploding-gradient" in codes(change(run, layer3={"kind": kind}))) == explodes


@pytest.mark.parametrize(("growth", "rising", "explodes"), [(1e5, 1.0, True), (1e5, 0.5, False), (2.0, 1.0, False)])
def test_a_layer_whose_output_grows_in_each_of_its_runs_explodes(tmp_path, growth, rising, explodes):
    signals = {"repeats": {"convs.1": {"runs": 30, "growth": growth, "rising": rising}}}
    run = build(tmp_path / "run", logged={"loss": FLAT}, signals=signals)
    assert (diagnose(run).verdict.code == "depth-exploding-gradient") == explodes


class Tied(nn.Module):
    """A recurrent network with one matrix for all steps."""

    def __init__(self, gain):
        super().__init__()
        self.read, self.cell, self.out = nn.Linear(3, 16), nn.Linear(16, 16), nn.Linear(16, 2)
        nn.init.orthogonal_(self.cell.weight, gain)

    def forward(self, x):
        h = torch.zeros(len(x), 16)
        for piece in x.unbind(1):
            h = (self.read(piece) + self.cell(h)).relu()
        return self.out(h)


@pytest.mark.parametrize(("gain", "explodes"), [(2.5, True), (1.0, False)])
def test_a_recurrent_network_that_explodes_is_told_so(tmp_path, gain, explodes):
    torch.manual_seed(0)
    x, model = torch.randn(40, 20, 3), Tied(gain)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with gatdiag.watch(model, tmp_path / "run", every=1) as recorder:
        for _ in range(40):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), (x[:, :, 0].sum(1) > 0).long())
            loss.backward()
            optimizer.step()
            recorder.log(loss=loss)
    assert ("depth-exploding-gradient" in codes(gatdiag.load(tmp_path / "run"))) == explodes


# --- initial weights --------------------------------------------------------------------------------------------------


def glorot(*factors, width=8):
    return {"weights": {"norm": still(np.asarray(factors) * math.sqrt(width))}, "width": width}


@pytest.mark.parametrize(("kind", "is_small"), [("GATv2Conv", True), ("LayerNorm", False)])
def test_small_weights_between_normalizations_are_usual(tmp_path, kind, is_small):
    """As in transformers: normal(0, 0.02), divided by the root of the depth where a branch joins the stream."""
    run = build(tmp_path / "run", **glorot(*[0.5 * limit("gain-small")] * 3), logged={"loss": FLAT})
    assert ("init-too-small" in codes(change(run, layer1={"kind": kind}))) == is_small


@pytest.mark.parametrize(("inputs", "is_told"), [(8, True), (5, False)])
def test_a_head_that_begins_near_zero_is_neither_small_nor_out_of_balance(tmp_path, inputs, is_told):
    """As of a policy, behind which the network of the value stands, with other inputs."""
    run = build(tmp_path / "run", **glorot(1, 0.01, 1, width=8), logged={"loss": FLAT})
    run = change(run, layer2={"shape": [8, inputs]})
    assert bool({"init-too-small", "init-unbalanced"} & codes(run)) == is_told


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "is_tight"), [(1e-2, False), (1e-4, True)])
def test_a_bound_that_leaves_steps_of_a_usual_size_is_not_too_tight(tmp_path, ratio, is_tight):
    """As of a squared error in batches, whose gradients are long and noisy."""
    weights = {name: still([value] * 2) for name, value in (("norm", 4.0), ("update_ratio", ratio))}
    logged = {"loss": FLAT, "gradient_norm": FLAT / 40, "gradient_norm_before_clipping": FLAT}
    assert ("clipping-too-tight" in codes(build(tmp_path / "run", weights=weights, logged=logged))) == is_tight


def decayed(folder, norms, *decays, gradient=0.01, **given):
    """A training whose layers each have a group of their own, with a weight decay."""
    groups = [
        {"lr": 0.1, "weight_decay": decay, "parameters": NAMES[3 * layer : 3 * layer + 3]}
        for layer, decay in enumerate(decays)
    ]
    weights = {"norm": norms, "gradient_norm": still([gradient] * len(decays))}
    return build(folder / "run", weights=weights, optimizers=[{"class": "SGD", "groups": groups}], **given)


def test_each_weight_decays_by_the_setting_of_its_own_group(tmp_path):
    """As in GCNII, whose convolutions decay far more than its linear layers, which are larger."""
    run = decayed(tmp_path, np.linspace([4.0, 4.0], [4.0, 1.0], STEPS), 0.0, 0.1, logged={"loss": FLAT})
    assert Facts(run).decays.tolist() == [0.0, 0.1]
    assert "weight-decay-too-strong" not in codes(run)


def test_decay_that_leaves_nothing_is_named_whatever_gradient_is_left(tmp_path):
    """As with momentum, where noise keeps the little that is left moving."""
    norms = 4.0 * np.exp(-np.arange(STEPS) / 12)[:, None].repeat(2, axis=1)
    run = decayed(tmp_path, norms, 1.0, 1.0, gradient=10.0, logged={"loss": FLAT})
    assert diagnose(run).verdict.code == "weight-decay-too-strong"


# --- the loop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("last", "is_missing"), [(1.0, True), (2.0, False)])
def test_parameters_that_moved_got_a_gradient_some_time(tmp_path, last, is_missing):
    """As where two networks take turns and each is frozen when the other's gradients are looked at."""
    norms, gradients = still([1.0, 1.0]), still([0.1, math.nan])
    norms[-1, 1] = last
    run = build(tmp_path / "run", weights={"norm": norms, "gradient_norm": gradients}, logged={"loss": FLAT})
    assert ("parameters-without-gradient" in codes(run)) == is_missing


@pytest.mark.parametrize(("held", "steps", "severity"), [(0, 12, "warning"), (1, 12, "error"), (0, STEPS, "error")])
def test_layers_whose_turn_may_come_are_not_yet_missing(tmp_path, held, steps, severity):
    optimizers = [{"class": "SGD", "groups": [{"lr": 0.1, "parameters": NAMES[3 * held : 3 * held + 3]}]}]
    run = build(tmp_path / "run", logged={"loss": FLAT[:steps]}, optimizers=optimizers)
    (found,) = [one for one in diagnose(run) if one.code == "parameters-not-in-optimizer"]
    assert found.severity == severity


def test_layers_that_get_no_gradient_yet_are_in_no_optimizer_with_reason(tmp_path):
    """As in greedy training: one layer after another, each with its own head."""
    weights = {"norm": still([1.0, 1.0], 12), "gradient_norm": still([0.1, math.nan], 12)}
    optimizers = [{"class": "SGD", "groups": [{"lr": 0.1, "parameters": NAMES[:3]}]}]
    run = build(tmp_path / "run", weights=weights, logged={"loss": FLAT[:12]}, optimizers=optimizers)
    assert Facts(run).without_gradient == {"convs.1.lin_l.weight"}
    assert "convs.1.lin_l.weight" not in Facts(run).not_in_optimizer


@pytest.mark.parametrize(
    ("turns", "ratio", "state"), [(True, 0.01, "unknown"), (False, 0.01, "failing"), (True, 1e-5, "failing")]
)
def test_the_loss_of_networks_that_take_turns_need_not_fall(tmp_path, turns, ratio, state):
    """Unless their weights do not move."""
    ratios = still([ratio, ratio])
    if turns:
        ratios[::2, 0] = ratios[1::2, 1] = 0.0
    norms = np.linspace([1.0, 1.0], [1.2, 1.3], STEPS)
    optimizers = [
        {"class": "Adam", "groups": [{"lr": 0.1, "parameters": NAMES[start : start + 3]}]} for start in (0, 3)
    ]
    weights = {"norm": norms, "update_ratio": ratios}
    run = build(tmp_path / "run", weights=weights, logged={"loss": FLAT}, optimizers=optimizers)
    assert diagnose(run).state == state


@pytest.mark.parametrize(
    ("first", "shown", "is_known"),
    [(2.0, 1.5, True), (9.0, 1.5, False), (4e4, 26.0, True)],  # the last: the softmax is saturated
)
def test_a_loss_with_other_parts_is_not_compared_with_the_entropy_of_the_labels(tmp_path, first, shown, is_known):
    output = {"labels": [9, 9, 9], "first_cross_entropy": shown}
    run = build(tmp_path / "run", logged={"loss": [first, *FLAT[1:]]}, signals={"output": output})
    assert math.isnan(Facts(run).chance_loss) != is_known


@pytest.mark.parametrize(("kind", "is_told"), [(None, True), ("NaN", False)])
def test_labels_are_not_counted_by_the_gradient_of_a_loss_that_breaks_at_once(tmp_path, kind, is_told):
    broken = {"step": 1, "layer": "convs.1", "where": "output", "parameter": None, "kind": kind}
    loss = [2.0, math.nan] if kind else FLAT
    given = {"logged": {"loss": loss}, "first_non_finite": broken if kind else None}
    run = build(tmp_path / "run", **given, signals={"output": {"labels": [0, 30]}})
    assert ("no-training-signal" in codes(run)) == is_told


# --- rankings, pairs and many labels ----------------------------------------------------------------------------------


class Pairs(nn.Module):
    """Scores of pairs: with positive and negative ones apart, as their difference, or as candidates of each row."""

    def __init__(self, how):
        super().__init__()
        self.score, self.how = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)), how

    def forward(self, better, worse):
        high, low = self.score(better), self.score(worse)
        return {"tuple": (high, low), "difference": high - low, "candidates": torch.cat([high, low], 1)}[self.how]


def binary(scores, label):
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))


LOSSES = {
    "tuple": lambda scores: binary(scores[0], 1.0) + binary(scores[1], 0.0),
    "difference": lambda scores: binary(scores, 1.0),
    "candidates": lambda scores: F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long)),
}


@pytest.mark.parametrize("how", LOSSES)
def test_what_is_better_may_come_first_in_each_row(tmp_path, how):
    torch.manual_seed(0)
    one, other = torch.randn(2, 100, 8)
    is_better = one[:, :1] > other[:, :1]
    pairs, model = (torch.where(is_better, one, other), torch.where(is_better, other, one)), Pairs(how)
    diagnosis = train(tmp_path / "run", model, lambda _: LOSSES[how](model(*pairs)))
    assert "no-training-signal" not in {one.code for one in diagnosis}


@pytest.mark.parametrize("columns", [1, 2])
def test_labels_that_are_all_of_one_class_are_no_signal(tmp_path, columns):
    torch.manual_seed(0)
    x, model = torch.randn(100, 8), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, columns))
    diagnosis = train(
        tmp_path / "run", model, lambda _: LOSSES["candidates" if columns > 1 else "difference"](model(x))
    )
    assert diagnosis.verdict.code == "no-training-signal"


def test_the_losses_of_two_calls_add_up_in_that_of_a_constant_prediction(tmp_path):
    torch.manual_seed(0)
    (positive, negative), model = torch.randn(2, 100, 8), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    positive[:, 0] += 1
    loss_of = lambda _: binary(model(positive), 1.0) + binary(model(negative), 0.0)  # noqa: E731
    train(tmp_path / "run", model, loss_of, steps=20)
    assert Facts(gatdiag.load(tmp_path / "run")).chance_loss == pytest.approx(2 * math.log(2), rel=1e-3)


def test_many_binary_labels_are_no_classes_of_which_one_is_right(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(100, 8)
    y, model = (x @ torch.randn(8, 12) > 0).float(), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12))
    loss_of = lambda _: F.binary_cross_entropy_with_logits(model(x), y)  # noqa: E731
    train(tmp_path / "run", model, loss_of, scores_of=lambda _: {"val_accuracy": 0.1}, steps=20)
    share = y.mean(0)
    expected = -(share * share.log() + (1 - share) * (1 - share).log()).mean()
    assert Facts(gatdiag.load(tmp_path / "run")).chance_loss == pytest.approx(float(expected), rel=1e-3)


# --- what is meant ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [False, True], ids=["columns", "exchangeable"])
def test_inputs_in_another_order_may_be_exchangeable(tmp_path, counts):
    torch.manual_seed(0)
    x, model = torch.randn(64, 12), nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2))
    y = ((x.sum(1) if counts else x[:, 0]) > 0).long()
    loss_of = lambda _: F.cross_entropy(model(x[:, torch.randperm(12)]), y)  # noqa: E731
    told = {one.severity for one in train(tmp_path / "run", model, loss_of, lr=1e-3) if one.code == "input-permuted"}
    assert ("error" in told) != counts
    assert "warning" not in told


@pytest.mark.parametrize("is_labeled", [False, True])
def test_an_output_as_target_beside_labels_is_a_penalty(tmp_path, is_labeled):
    torch.manual_seed(0)
    x, model = torch.randn(80, 8), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    y = (x[:, :1] > 0).float()

    def loss_of(_):
        scores = model(x)
        penalty = F.binary_cross_entropy_with_logits(scores, scores.sigmoid())
        return 0.1 * penalty + F.binary_cross_entropy_with_logits(scores[:40], y[:40]) if is_labeled else penalty

    assert ("target-is-output" in {one.code for one in train(tmp_path / "run", model, loss_of)}) != is_labeled


@pytest.mark.parametrize("is_copied", [False, True])
def test_copied_statistics_may_be_frozen(tmp_path, is_copied):
    torch.manual_seed(0)
    x = torch.randn(80, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).eval()
    if is_copied:
        model[1].running_mean, model[1].running_var = model[0](x).mean(0).detach(), model[0](x).var(0).detach()
    diagnosis = train(tmp_path / "run", model, lambda _: F.cross_entropy(model(x), (x[:, 0] > 0).long()), steps=20)
    told = {one.severity for one in diagnosis if one.code == "evaluation-mode"}
    assert told == ({"note"} if is_copied else {"warning"})


@pytest.mark.parametrize("spread", [0.05, 1.0])
def test_noise_beyond_the_range_of_an_output_is_no_target_to_reach(tmp_path, spread):
    torch.manual_seed(0)
    x, model = torch.randn(200, 6), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
    y = (2 * x[:, :1]).sigmoid() + spread * torch.randn(200, 1)
    diagnosis = train(tmp_path / "run", model, lambda _: F.mse_loss(model(x), y), steps=100, lr=0.02)
    assert ("output-out-of-range" in {one.code for one in diagnosis}) == (spread == 1.0)


# --- what others hid --------------------------------------------------------------------------------------------------

LINEAR = {f"layer{number}": {"kind": "Linear"} for number in range(6)}


@pytest.mark.parametrize(("rate", "code"), [(0.5, "depth-dropout"), (0.0, "healthy")])
def test_dropout_in_each_of_many_layers_leaves_noise(tmp_path, rate, code):
    torch.manual_seed(0)
    x = torch.randn(120, 32)
    y = (x[:, 0] > 0).long()
    hidden = [part for _ in range(12) for part in (nn.Linear(32, 32), nn.ELU(), nn.Dropout(rate))]
    model = nn.Sequential(*hidden, nn.Linear(32, 2))
    diagnosis = train(tmp_path / "run", model, lambda _: F.cross_entropy(model(x), y), steps=80, lr=1e-3)
    assert diagnosis.verdict.code == code


def test_rows_without_a_gradient_are_no_batch_of_one_class(tmp_path):
    """Outputs are saturated after one step at such a rate: only rows of the wrong class have a gradient."""
    torch.manual_seed(0)
    x = torch.randn(200, 20)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    given = {"steps": 30, "lr": 500, "optimizer": torch.optim.SGD}
    with pytest.warns(TrainingWarning):
        diagnosis = train(tmp_path / "run", model, lambda _: F.cross_entropy(model(x), y), **given)
    assert diagnosis.verdict.code == "lr-too-large"


@pytest.mark.parametrize(("sums", "code"), [(16, "depth-oversmoothing"), (0, "rank-collapse")])
def test_products_with_an_adjacency_matrix_smooth_as_convolutions_do(tmp_path, sums, code):
    given = layers(effective_rank=[8, 4, 2, 1.1, 1.01, 1.5], output_norm=[1.0] * 6, relative_mu=[0.8] * 6)
    run = build(tmp_path / "run", **given, signals={"propagations": sums})
    assert diagnose(change(run, **LINEAR)).verdict.code == code


@pytest.mark.parametrize(("hops", "rank", "smooths"), [(64, 1.5, True), (64, 6.0, False), (2, 1.5, False)])
def test_many_hops_within_one_layer_smooth(tmp_path, hops, rank, smooths):
    """As in SGC, and in APPNP without teleport, where no layer stands between the hops."""
    given = layers(effective_rank=[rank], relative_mu=[0.3], output_norm=[1.0])
    run = build(tmp_path / "run", **given, signals={"hops": {"convs.0": hops}}, width=8)
    assert (diagnose(run).verdict.code == "depth-oversmoothing") == smooths


@pytest.mark.parametrize(("loss", "severity"), [(FLAT, "error"), (FALLING, "note")])
def test_attention_that_a_module_computes_itself_may_be_saturated(tmp_path, loss, severity):
    run = build(tmp_path / "run", logged={"loss": loss}, signals={"attention_peaks": {"attend": 0.9, "other": 0.1}})
    (found,) = [one for one in diagnose(run) if one.code == "attention-saturated"]
    assert (found.severity, found.layers) == (severity, ("attend",))
    assert "math.sqrt" in found.remedy


class Attention(nn.Module):
    """Of each node of a graph to all of it, with scores that are divided by the root of the width, or multiplied."""

    def __init__(self, power):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 64) for _ in range(3))
        self.out, self.power = nn.Linear(64, 3), power

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * 64**self.power
        return self.out((scores.softmax(-1) @ self.value(x)).mean(1))


@pytest.mark.parametrize(("power", "is_saturated"), [(0.5, True), (-0.5, False)])
def test_attention_multiplied_by_the_root_of_the_width_is_saturated(power, is_saturated):
    torch.manual_seed(0)
    x = 3 * torch.randn(40, 12, 16)
    model = Attention(power)
    diagnosis = gatdiag.preflight(model, x, loss=lambda out: F.cross_entropy(out, torch.arange(40) % 3))
    assert ("attention-saturated" in {one.code for one in diagnosis}) == is_saturated


class Sparse(nn.Module):
    """A layer of pyGAT, whose attention vector is a matrix with one row."""

    def __init__(self, width=8):
        super().__init__()
        self.W, self.a = nn.Parameter(torch.empty(16, width)), nn.Parameter(torch.empty(1, 2 * width))
        for each in (self.W, self.a):
            nn.init.xavier_normal_(each, gain=1.414)

    def forward(self, x, adjacency):
        h = x @ self.W
        source, target = adjacency.nonzero().t()
        scores = torch.exp(-F.leaky_relu((self.a @ torch.cat((h[source], h[target]), 1).t()).squeeze(), 0.2))
        return torch.zeros_like(h).index_add(0, target, scores[:, None] * h[source])


def test_the_attention_vector_of_pygat_is_no_layer_of_one_neuron():
    torch.manual_seed(0)
    x, adjacency = torch.randn(30, 16), (torch.rand(30, 30) < 0.3).float()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Sparse(16), Sparse(3)

        def forward(self, x, adjacency):
            return self.second(F.elu(self.first(x, adjacency)), adjacency)

    diagnosis = gatdiag.preflight(Net(), x, adjacency, loss=lambda out: F.cross_entropy(out, torch.arange(30) % 3))
    assert "rank-collapse" not in {one.code for one in diagnosis}


# what is left of the loss at the end is the noise of the labels
NOISY = {
    "long steps": (lambda p: torch.optim.SGD(p, lr=1.0), lambda x: x),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.002, momentum=0.99), lambda x: x),
    "columns of several scales": (
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda x: x * torch.tensor([30.0, *[1.0] * 7]),
    ),
}


@pytest.mark.parametrize("kind", NOISY)
@pytest.mark.parametrize("seed", [0, 1])
def test_noise_of_the_labels_is_not_held_against_a_training_that_learned_the_rest(tmp_path, kind, seed):
    make_optimizer, change_inputs = NOISY[kind]
    torch.manual_seed(seed)
    x = torch.randn(2000, 8)
    y = (torch.rand(2000) < torch.sigmoid(1.2 * x[:, 0] + 0.8 * x[:, 1])).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    found = train(
        tmp_path / "run",
        model,
        lambda step: F.cross_entropy(model(change_inputs(x)), y),
        steps=200,
        optimizer=lambda p, lr: make_optimizer(p),
    )
    assert found.state == "partly"
    assert not [one for one in found if one.severity == "error"], str(found)
    assert found.tone != "failing"


@pytest.mark.parametrize("maximize", [True, False])
def test_a_sign_is_flipped_unless_the_optimizer_maximizes(tmp_path, maximize):
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    verdict = train(
        tmp_path / "run",
        model,
        lambda step: -F.cross_entropy(model(x), y),
        optimizer=lambda p, lr: torch.optim.Adam(p, lr=lr, maximize=maximize),
    ).verdict
    assert verdict.code == ("undetermined" if maximize else "loss-unbounded")


def test_targets_that_are_all_the_same_are_no_constant_to_beat_and_the_usual_eps_is_no_cause(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64), nn.Linear(64, 1))
    x = torch.randn(9, 4)
    found = train(tmp_path / "run", model, lambda step: model(x).square().mean(), steps=400, lr=0.001)
    assert found.state == "trained"
    assert not [one for one in found if one.severity != "note"], str(found)


class Returning(nn.Module):
    """Returns logits, and hidden features or logits for other rows."""

    def __init__(self, is_pair):
        super().__init__()
        self.body, self.head, self.is_pair = nn.Linear(6, 16), nn.Linear(16, 2), is_pair

    def forward(self, x, others):
        hidden = self.body(x).relu()
        return self.head(hidden), self.head(self.body(others).relu()) if self.is_pair else hidden


@pytest.mark.parametrize("is_pair", [False, True])
def test_labels_of_one_class_are_no_signal_unless_others_are_compared_with_them(tmp_path, is_pair):
    torch.manual_seed(0)
    x, others = torch.randn(80, 6) + 1, torch.randn(80, 6) - 1
    model, ones = Returning(is_pair), torch.ones(80, dtype=torch.long)

    def loss_of(step):
        out, more = model(x, others)
        return F.cross_entropy(out, ones) + (
            F.cross_entropy(more, 0 * ones) if is_pair else 1e-3 * more.square().mean()
        )

    found = train(tmp_path / "run", model, loss_of)
    assert (found.verdict.code == "no-training-signal") is not is_pair


@pytest.mark.parametrize("is_constant", [True, False])
def test_features_of_nodes_are_judged_where_there_are_as_many_edges(tmp_path, is_constant):
    torch.manual_seed(0)
    ring = torch.stack([torch.arange(60), (torch.arange(60) + 1) % 60])
    x, y = torch.ones(60, 8) if is_constant else torch.randn(60, 8), torch.arange(60) % 3
    model = Sequential(
        "x, edge_index", [(GCNConv(8, 16), "x, edge_index -> x"), (GCNConv(16, 3), "x, edge_index -> x")]
    )
    found = train(tmp_path / "run", model, lambda step: F.cross_entropy(model(x, ring), y))
    assert (found.verdict.code == "input-constant") is is_constant


@pytest.mark.parametrize(("norm", "is_scale"), [(nn.LayerNorm, True), (nn.BatchNorm1d, False)])
def test_a_huge_column_is_cured_by_a_norm_of_columns_and_not_of_rows(tmp_path, norm, is_scale):
    torch.manual_seed(0)
    x = torch.randn(200, 8)
    y = (x[:, 1] + x[:, 2] > 0).long()
    x = x * torch.tensor([3000.0, *[1.0] * 7])
    model = nn.Sequential(norm(8), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    found = train(tmp_path / "run", model, lambda step: F.cross_entropy(model(x), y))
    assert (found.verdict.code == "input-scale") is is_scale
