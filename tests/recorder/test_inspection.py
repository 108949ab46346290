"""Signals of small trainings for which they are known."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gatdiag

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def train(
    folder,
    model,
    *,
    steps=6,
    lr=0.1,
    clears=True,
    batches=None,
    optimizer=None,
    x=X,
    every=1,
    clip=None,
    loss_of=F.cross_entropy,
    **options,
):
    """Train; returns the run, and weights and unclipped gradients at each step."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=lr)
    seen = []
    with gatdiag.watch(model, folder, every=every, **{"metrics": "fast", **options}) as recorder:
        for step in range(steps):
            rows = slice(None) if batches is None else batches[step]
            if clears:
                optimizer.zero_grad()
            loss = loss_of(model(x if batches is None else x[rows]), Y[rows])
            loss.backward()
            weights = [p.detach().clone() for p in model.parameters()]
            gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
            if clip is not None:
                clip(model.parameters())
            optimizer.step()
            seen.append((weights, gradients))
            recorder.log(loss=loss)
    return gatdiag.load(folder), seen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.01), "lr": 5.0},
        {"clip": lambda parameters: [p.grad.data.clamp_(-0.01, 0.01) for p in parameters], "lr": 5.0},
        {"metrics": ["mu"]},
        {"include": "2"},
    ],
    ids=["plain", "clipped", "clipped without a trace", "weights are not recorded", "one layer is recorded"],
)
def test_the_overshoot_is_that_of_all_gradients_before_and_after_a_step(tmp_path, options):
    run, seen = train(tmp_path / "run", mlp(), **options)
    assert math.isnan(run.steps.overshoot[0])
    for step in range(1, 6):
        (before, g), (after, following) = seen[step - 1], seen[step]
        d = [b - a for a, b in zip(before, after, strict=True)]
        old, new = (
            sum(float((x.double() * y.double()).sum()) for x, y in zip(of, d, strict=True)) for of in (g, following)
        )
        assert run.steps.overshoot[step] == pytest.approx(1 - new / old, rel=1e-3, abs=1e-5)


def test_of_batches_that_differ_there_is_no_overshoot(tmp_path):
    batches = [slice(0, 6), slice(6, 12)] * 3
    run, _ = train(tmp_path / "run", mlp(), batches=batches)
    assert "overshoot" not in run.steps or run.steps.overshoot.isna().all()


def test_steps_that_are_not_recorded_are_not_looked_at(tmp_path):
    run, _ = train(tmp_path / "run", mlp(), steps=9, every=2)
    assert "overshoot" not in run.steps or run.steps.overshoot.isna().all()
    assert run.meta["signals"]["output"]["criterion"] == "cross-entropy"


def test_leftover_gradients_are_seen_at_the_beginning_of_the_backward_pass(tmp_path):
    run, _ = train(tmp_path / "run", mlp(), clears=False)
    assert run.steps.stale_gradient[1:].to_numpy() == pytest.approx([1.0] * 5)
    assert gatdiag.diagnose(train(tmp_path / "longer", mlp(), clears=False, steps=30, lr=3.0)[0]).verdict.code == (
        "gradients-not-cleared"
    )
    run, _ = train(tmp_path / "cleared", mlp())
    assert (run.steps.stale_gradient[1:] == 0).all()


def test_gradients_that_are_put_in_the_place_of_old_ones_are_no_leftovers(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gatdiag.watch(model, tmp_path / "run", every=1) as recorder:
        for _ in range(12):
            loss = F.cross_entropy(model(X), Y)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            recorder.log(loss=loss)
    assert (gatdiag.load(tmp_path / "run").steps.stale_gradient[1:] == 0).all()


@pytest.mark.parametrize("clears", [True, False])
def test_gradients_of_a_head_that_the_loop_calls_are_no_leftovers(tmp_path, clears):
    model = mlp()
    model.head = nn.Linear(3, 3)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    run, _ = train(tmp_path / "run", model, clears=clears, loss_of=lambda out, y: F.cross_entropy(model.head(out), y))
    assert run.steps.stale_gradient[1:].to_numpy() == pytest.approx([0.0 if clears else 1.0] * 5)


@pytest.mark.parametrize("clears", [True, False])
def test_of_several_backward_passes_one_without_old_gradients_shows_that_they_are_cleared(tmp_path, clears):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gatdiag.watch(model, tmp_path / "run", every=1):
        for _ in range(6):
            x = X.clone().requires_grad_()
            F.cross_entropy(model(x), Y).backward()  # only for the gradient of x
            if clears:
                optimizer.zero_grad(set_to_none=False)
            F.cross_entropy(model(x.detach() + 0.01 * x.grad.sign()), Y).backward()
            optimizer.step()
    stale = gatdiag.load(tmp_path / "run").steps.stale_gradient[1:]
    assert (stale == 0).all() if clears else (stale > 0.5).all()


def test_inputs_outputs_and_labels_are_described(tmp_path):
    run, _ = train(tmp_path / "run", mlp())
    signals = run.meta["signals"]
    (x,) = signals["inputs"]
    assert (x["rows"], x["columns"], x["non_finite"]) == (12, 5, 0)
    output = signals["output"]
    assert (output["criterion"], output["criterion_share"]) == ("cross-entropy", 1.0)
    assert output["labels"] == [4, 4, 4]  # of one batch, which all steps share
    assert output["last_operation"] == "AddmmBackward0"
    assert output["first_cross_entropy"] == pytest.approx(run.steps.loss[0])
    assert (signals["unreached"], signals["foreign_leaves"]) == ([], 0)
    assert {*signals["zero_inputs"]} == {"2"}  # zero columns of the data are not dead units


@pytest.mark.parametrize(
    ("last", "loss", "code"),
    [
        (nn.LogSoftmax(-2), F.nll_loss, "output-softmax-over-nodes"),
        (nn.Softmax(0), F.cross_entropy, "output-softmax-twice"),
        (nn.ReLU(), F.cross_entropy, "output-relu"),
    ],
)
def test_an_activation_that_makes_outputs_unfit_for_the_loss_is_named(tmp_path, last, loss, code):
    run, _ = train(tmp_path / "run", nn.Sequential(mlp(), last), steps=25, loss_of=loss)
    assert gatdiag.diagnose(run).verdict.code == code


@pytest.mark.parametrize("squash", ["softmax", "sigmoid"])
def test_a_softmax_between_the_output_and_the_loss_is_named(tmp_path, squash):
    losses = {
        "softmax": lambda o, y: F.cross_entropy(o.softmax(1), y),
        "sigmoid": lambda o, y: F.binary_cross_entropy_with_logits(o.sigmoid(), F.one_hot(y).float()),
    }
    run, _ = train(tmp_path / "run", mlp(), steps=25, loss_of=losses[squash])
    finding = gatdiag.diagnose(run).verdict
    assert finding.code == "output-softmax-twice"
    assert f"passes through {squash} before" in finding.text
    assert f"without {squash} before it" in finding.remedy


@pytest.mark.parametrize("is_logged", [True, False])
def test_probabilities_given_to_cross_entropy_are_a_warning_where_the_network_learns(tmp_path, is_logged):
    model = nn.Sequential(mlp(), nn.Softmax(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x = X.clone()
    x[:, :3] += 4 * F.one_hot(Y)
    with gatdiag.watch(model, tmp_path / "run", every=1) as recorder:
        for _ in range(60):
            optimizer.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, Y)
            loss.backward()
            optimizer.step()
            accuracy = (out.argmax(1) == Y).float().mean()
            recorder.log(loss=loss, **({"train_accuracy": accuracy} if is_logged else {}))
    assert accuracy == 1
    verdict = gatdiag.diagnose(tmp_path / "run").verdict
    assert (verdict.code, verdict.severity) == ("output-softmax-twice", "warning")


@pytest.mark.parametrize("squash", [nn.Sigmoid, nn.Tanh])
def test_layers_behind_a_sigmoid_are_noted(tmp_path, squash):
    run, _ = train(tmp_path / "run", nn.Sequential(nn.Linear(5, 6), squash(), nn.Linear(6, 3)), steps=1)
    assert run.meta["signals"]["after_sigmoid"] == (["2"] if squash is nn.Sigmoid else [])


def test_units_that_the_first_step_kills_are_not_said_to_be_dead_from_the_start(tmp_path):
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    kept = []

    class Killing(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            if not kept:
                kept.append(nn.init.constant_(model[0].bias, -50.0))

    run, _ = train(tmp_path / "run", model, steps=60, optimizer=Killing(model.parameters(), lr=0.1))
    assert run.meta["signals"]["zero_inputs"]["2"]["since"] == 1
    verdict = gatdiag.diagnose(run).verdict
    assert verdict.code == "lr-too-large"  # a step of this size
    (dead,) = [one for one in verdict.symptoms if one.code == "dead-units"]
    assert "from step 1 on" in dead.text


def test_a_nan_in_the_inputs_is_named(tmp_path):
    x = X.clone()
    x[3, 2] = math.nan
    verdict = gatdiag.diagnose(train(tmp_path / "run", mlp(), x=x)[0]).verdict
    assert verdict.code == "input-nonfinite"
    assert "row 3, column 2" in verdict.text


def regression():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 1))


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss_of", [F.mse_loss, F.l1_loss])
def test_targets_without_the_column_of_the_outputs_are_named(tmp_path, loss_of):
    y = X[:, 0] / 3
    for right, folder in ((False, "wrong"), (True, "right")):
        targets = y.view(-1, 1) if right else y
        run, _ = train(tmp_path / folder, regression(), lr=0.02, loss_of=lambda o, _, t=targets: loss_of(o, t))
        verdict = gatdiag.diagnose(run).verdict
        assert (verdict.code == "loss-broadcast") != right
        if not right:
            assert verdict.severity == "error"
            assert "view_as(out)" in verdict.remedy


def test_a_step_with_several_outputs_has_no_common_target(tmp_path):
    """As of a critic, which is pulled to one for what is real and to zero for what is not."""
    model = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with gatdiag.watch(model, tmp_path / "run", every=1, laws=False) as recorder:
        for _ in range(30):
            optimizer.zero_grad()
            loss = (model(X) - 1).square().mean() + model(X.flip(1)).square().mean()
            loss.backward()
            optimizer.step()
            recorder.log(loss=loss)
    assert "loss-broadcast" not in {one.code for one in gatdiag.diagnose(tmp_path / "run")}


class Convolution(nn.Module):
    """A layer that averages over neighbors."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(5, 3)
        self.root = nn.Parameter(torch.eye(5))

    def forward(self, x, edge_index):
        source, target = edge_index
        return self.lin(x @ self.root + torch.zeros_like(x).index_add(0, target, x[source]))


class OneConvolution(nn.Module):
    def __init__(self, edge_index):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.edge_index = Convolution(), edge_index

    def forward(self, x):
        return self.conv(x, self.edge_index)


LOOPS = torch.arange(12).repeat(2, 1)
RING = torch.stack([LOOPS[0], LOOPS[0].roll(1)])


@pytest.mark.parametrize(
    ("edges", "says"),
    [(RING[:, :0], "is empty"), (LOOPS, "holds only self-loops"), (RING[:, :1], ""), (torch.cat([RING, LOOPS], 1), "")],
)
def test_a_layer_without_edges_between_nodes_is_named(tmp_path, edges, says):
    run, _ = train(tmp_path / "run", OneConvolution(edges), steps=30)
    found = {one.code: one for one in gatdiag.diagnose(run)}
    assert ("input-without-edges" in found) == bool(says)
    if says:
        assert says in found["input-without-edges"].text
        assert found["input-without-edges"].layers == ("conv",)


def test_edges_are_missing_only_if_no_step_and_no_layer_has_any(tmp_path):
    class Pooled(OneConvolution):
        """A second layer, on a graph of one node."""

        def __init__(self, edge_index):
            super().__init__(edge_index)
            self.last = Convolution()

        def forward(self, x):
            pooled = (x * self.conv(x, self.edge_index).sum(1, keepdim=True)).mean(0, keepdim=True)
            return self.last(pooled, LOOPS[:, :0])

    run, _ = train(tmp_path / "run", Pooled(RING), loss_of=lambda o, _: o.square().sum())
    assert run.meta["signals"]["edges"] == {"conv": {"edges": 12, "loops": 0, "connected": 1.0}}
    assert "input-without-edges" not in {one.code for one in gatdiag.diagnose(run)}
    model = OneConvolution(LOOPS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gatdiag.watch(model, tmp_path / "batches", every=1, laws=False):
        for edges in (LOOPS, RING, LOOPS):
            model.edge_index = edges
            optimizer.zero_grad()
            F.cross_entropy(model(X), Y).backward()
            optimizer.step()
    assert gatdiag.load(tmp_path / "batches").meta["signals"]["edges"]["conv"]["connected"] == 1.0


class Listed(nn.Module):
    """A layer in a plain list."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.others = [nn.Linear(6, 6)]

    def forward(self, x):
        return self.last(self.others[0](self.first(x).relu()).relu())


def test_layers_in_a_plain_list_are_leaves_that_nobody_moves(tmp_path):
    model = Listed()
    run, _ = train(tmp_path / "run", model)
    assert run.meta["signals"]["foreign_leaves"] == 2
    assert gatdiag.diagnose(run).verdict.code == "parameters-not-in-optimizer"
    both = torch.optim.SGD([*model.parameters(), *model.others[0].parameters()], lr=0.1)
    run, _ = train(tmp_path / "held", model, optimizer=both)
    assert run.meta["signals"]["foreign_leaves"] == 0


def test_what_the_inputs_were_computed_from_is_outside_the_model(tmp_path):
    noise, encoder = torch.zeros(12, 5, requires_grad=True), nn.Linear(5, 5)
    for name, given in (("noise", lambda: X + noise), ("encoder", lambda: encoder(X).relu())):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gatdiag.watch(model, tmp_path / name) as recorder:
            for _ in range(12):
                loss = F.cross_entropy(model(given()), Y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                recorder.log(loss=loss)
        signals = gatdiag.load(tmp_path / name).meta["signals"]
        assert (signals["unreached"], signals["foreign_leaves"]) == ([], 0)


def test_dead_units_are_seen_where_they_feed_a_layer(tmp_path):
    model = mlp()
    with torch.no_grad():
        model[0].bias.fill_(-50.0)
    run, _ = train(tmp_path / "run", model, steps=60)
    assert run.meta["signals"]["zero_inputs"]["2"] == {"first": 1.0, "since": 0, "last": 1.0, "seen": 50}
    assert gatdiag.diagnose(run).verdict.code == "dead-units"


def trains_as_bare(watched):
    """True if weights and gradients are those after twenty unwatched steps that do not clear gradients."""
    bare = mlp()
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.1)
    for _ in range(20):
        F.cross_entropy(bare(X), Y).backward()
        optimizer.step()
    pairs = list(zip(watched.parameters(), bare.parameters(), strict=True))
    return all(torch.equal(a, b) and torch.equal(a.grad, b.grad) for a, b in pairs)


def test_an_output_that_cannot_be_looked_at_costs_a_warning_and_no_more(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no")

    monkeypatch.setattr("gatdiag.recorder.criterion.identify", fail)
    model = mlp()
    with pytest.warns(UserWarning, match="signals"):
        train(tmp_path / "run", model, steps=20, clears=False, warn=False)
    assert trains_as_bare(model)


class Moded(nn.Module):
    """Dropout as a module and as a function, and a normalization."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 6), nn.Linear(6, 3)])
        self.norm, self.drop, self.dropout = nn.BatchNorm1d(6), nn.Dropout(0.25), 0.5

    def forward(self, x):
        x = F.dropout(self.norm(self.layers[0](x)).relu(), self.dropout, self.training)
        return self.layers[1](self.drop(x))


@pytest.mark.parametrize("since", [None, 0, 1])
def test_the_mode_of_the_model_and_what_it_matters_to_are_noted(tmp_path, since):
    model = Moded()
    model.train(since != 0)

    def loss_of(out, y):
        if since == 1 and model.training:  # as after an evaluation at the end of the first epoch
            optimizer.register_step_post_hook(lambda *_: model.eval())
        return F.cross_entropy(out, y)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    signals = train(tmp_path / "run", model, optimizer=optimizer, loss_of=loss_of)[0].meta["signals"]
    assert signals["evaluation_from"] == since
    assert signals["batch_norms"] == {"norm": 0 if since == 0 else 1}
    assert signals["dropout"] == {"dropout": 0.5, "drop.p": 0.25}
