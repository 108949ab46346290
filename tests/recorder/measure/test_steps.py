"""The measured columns of `steps` in unusual loops, against float64 arithmetic in the loop itself."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gatdiag

X = [torch.randn(12, 5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
Y = torch.arange(12) % 3
ALONE = {"every": 1, "warn": False, "laws": False}


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


class Varied(nn.Module):
    """Parameters of all kinds: complex, of three precisions, sparse, frozen, unused, shared, of no layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.unused = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(3, 3)
        self.twice = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.twice[1].weight = self.twice[0].weight
        self.low, self.high = nn.Linear(6, 6).bfloat16(), nn.Linear(6, 6).double()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.embedding = nn.Embedding(12, 6, sparse=True)
        self.scale, self.phase = nn.Parameter(torch.ones(6)), nn.Parameter(torch.randn(6, 6, dtype=torch.complex64))

    def forward(self, x):
        x = self.first(x).relu() * self.scale + self.embedding(torch.arange(12) % 5)
        x = x + (x.to(torch.complex64) @ self.phase).abs() + self.low(x.bfloat16()).float()
        x = self.frozen(x) + self.high(x.double()).float()
        return self.last(self.twice[1](self.twice[0](x).relu()))


def wide(x):
    """A float64 copy: real and imaginary parts of all entries."""
    x = x.detach().to_dense() if x.is_sparse else x.detach()
    return (torch.view_as_real(x) if x.is_complex() else x).double().flatten().clone()


def inner(one, other):
    return sum(float((a * b).sum()) for a, b in zip(one, other, strict=True) if a is not None)


class Truth:
    """What the columns should be. The loop says what it does; `expected` has a number for each step."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.steps = model, optimizer, []
        self.now = {"batches": [], "left": math.nan}

    def gradients(self, scale=1.0):
        """Of each parameter, once."""
        return [None if p.grad is None else wide(p.grad) / scale for p in self.model.parameters()]

    def before_backward(self, batch):
        left = inner(self.gradients(), self.gradients()) ** 0.5
        if left == 0:
            self.now = {"batches": [], "left": 0.0}
        elif math.isnan(self.now["left"]):
            self.now["left"] = left
        self.now["batches"].append(batch)

    def after_backward(self, scale=1.0):
        self.now["raw"] = self.gradients(scale)

    def before_step(self, scale=1.0):
        self.now |= {"used": self.gradients(scale), "weights": [wide(p) for p in self.model.parameters()]}
        self.now["learning_rate"] = self.optimizer.param_groups[0]["lr"]

    def after_step(self):
        weights = zip(self.model.parameters(), self.now["weights"], strict=True)
        self.now["change"] = [wide(after) - before for after, before in weights]
        self.steps.append(self.now)
        self.now = {"batches": [], "left": math.nan}

    def expected(self, every=None):
        """Column -> values at the recorded steps, by default all."""
        recorded = range(len(self.steps)) if every is None else every
        columns = {name: [] for name in ("gradient_norm", "gradient_norm_before_clipping", "learning_rate")}
        columns |= {"overshoot": [], "stale_gradient": []}
        for number in recorded:
            now, last = self.steps[number], self.steps[number - 1] if number - 1 in recorded else None
            raw = now.get("raw")
            columns["gradient_norm"].append(inner(now["used"], now["used"]) ** 0.5)
            columns["gradient_norm_before_clipping"].append(math.nan if raw is None else inner(raw, raw) ** 0.5)
            columns["learning_rate"].append(now["learning_rate"])
            stale = overshoot = math.nan
            if last is not None:
                used = inner(last["used"], last["used"]) ** 0.5
                stale = now["left"] / used if used else 0.0
                if now["batches"] and now["batches"] == last["batches"] and now["left"] == last["left"] == 0:
                    overshoot = 1 - inner(raw, last["change"]) / inner(last["raw"], last["change"])
            columns["stale_gradient"].append(stale)
            columns["overshoot"].append(overshoot)
        return columns


def check(folder, truth, every=None):
    steps = gatdiag.load(folder).steps
    steps = steps[steps["gradient_norm"].notna()]
    assert steps["step"].tolist() == list(range(len(truth.steps)) if every is None else every)
    for name, expected in truth.expected(every).items():
        found = steps[name].tolist() if name in steps else [math.nan] * len(expected)
        size = 1e-3 if name == "overshoot" else 1e-9
        assert found == pytest.approx(expected, rel=1e-4, abs=size, nan_ok=True), name


def train(
    folder,
    model,
    optimizer,
    *,
    steps=9,
    batches=lambda step: [0],
    makes_step=lambda step: True,
    clears=lambda step: True,
    clip=None,
    scheduler=None,
    **options,
):
    """A loop whose steps may lack batches, have several, or not be made; `clears` tells after which of them."""
    truth = Truth(model, optimizer)
    with gatdiag.watch(model, folder, **{**ALONE, **options}):
        for step in range(steps):
            for batch in batches(step):
                loss = F.cross_entropy(model(X[batch]), Y)
                truth.before_backward(batch)
                loss.backward()
                truth.after_backward()
            if makes_step(step):
                if clip is not None:
                    clip(model)
                truth.before_step()
                optimizer.step()
                truth.after_step()
            if scheduler is not None:
                scheduler.step()
            if clears(step):
                optimizer.zero_grad()
    return truth


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.05, **options})


OPTIMIZERS = {
    "sgd": sgd,
    "momentum": lambda model: sgd(model, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}
PARTS = {
    "all": {},
    "include": {"include": "last"},
    "exclude": {"exclude": ["first", "low", "twice.*"]},
    "no gradient reaches the recorded layer": {"include": "unused"},
}


@pytest.mark.parametrize("part", PARTS)
def test_norms_are_of_all_parameters_of_any_kind_whatever_is_recorded(tmp_path, part):
    model = Varied()
    returned = []

    def clip(model):
        model.embedding.weight.grad = model.embedding.weight.grad.to_dense()  # which torch cannot clip otherwise
        returned.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))

    truth = train(tmp_path / "run", model, sgd(model, lr=0.01), clip=clip, **PARTS[part])
    check(tmp_path / "run", truth)
    norms = gatdiag.load(tmp_path / "run").steps["gradient_norm_before_clipping"]
    assert norms.tolist() == pytest.approx(returned, rel=1e-4)


@pytest.mark.parametrize("part", PARTS)
def test_gradients_of_all_kinds_that_are_not_cleared(tmp_path, part):
    model = Varied()
    check(tmp_path / "run", train(tmp_path / "run", model, sgd(model), clears=lambda step: step > 4, **PARTS[part]))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("by", ["norm", "value", None])
def test_optimizers_that_are_told_clipped_gradients(tmp_path, name, by):
    clips = {
        "norm": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
        "value": lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.01),
    }
    model = mlp()
    optimizer = OPTIMIZERS[name](model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
    options = {"clip": clips.get(by), "scheduler": scheduler, "include": "2"}
    check(tmp_path / "run", train(tmp_path / "run", model, optimizer, **options))


def test_parameters_that_are_trained_later(tmp_path):
    model = mlp()
    model[0].requires_grad_(False)

    def batches(step):
        model[0].requires_grad_(step >= 3)
        return [0]

    truth = train(tmp_path / "run", model, sgd(model), batches=batches, include="2")
    del truth.steps[:3]
    steps = gatdiag.load(tmp_path / "run").steps
    for name, expected in truth.expected().items():
        assert steps[name][4:].tolist() == pytest.approx(expected[1:], rel=1e-4, abs=1e-9), name
    assert steps["gradient_norm"][3] == pytest.approx(truth.expected()["gradient_norm"][0])


def test_each_recorded_step_after_a_recorded_one_is_compared_with_it(tmp_path):
    model = mlp()
    check(tmp_path / "run", train(tmp_path / "run", model, sgd(model, lr=0.1), steps=80))
    steps = gatdiag.load(tmp_path / "run").steps
    assert steps["overshoot"].notna().sum() == steps["stale_gradient"].notna().sum() == 79


LOOPS = {
    "gradients of two tries add up": {"makes_step": lambda step: step % 4 != 2, "clears": lambda step: step % 4 != 2},
    "gradients of a try are cleared": {"makes_step": lambda step: step % 4 != 2},
    "never cleared": {"clears": lambda step: False},
    "never cleared, two batches": {"clears": lambda step: False, "batches": lambda step: [0, 1]},
    "two batches": {"batches": lambda step: [0, 1]},
    "a batch twice": {"batches": lambda step: [0, 0]},
    "other batches at each step": {"batches": lambda step: [[0], [0, 0], [0, 1], [1]][step % 4]},
    "no gradients": {"batches": lambda step: [0] if step % 3 else []},
    "old gradients alone": {"batches": lambda step: [0] if step % 3 else [], "clears": lambda step: step % 3 == 0},
}


@pytest.mark.parametrize("name", LOOPS)
def test_batches_that_are_accumulated_missing_or_not_stepped_with(tmp_path, name):
    model = mlp()
    check(tmp_path / "run", train(tmp_path / "run", model, sgd(model, momentum=0.5), steps=14, **LOOPS[name]))


@pytest.mark.parametrize(
    ("every", "recorded"),
    [
        (3, range(0, 90, 3)),
        ("log", [step for step in range(90) if step < 64 or step % 2 == 0]),
        ("auto", range(90)),
        (lambda step: step % 3 > 0, [step for step in range(90) if step % 3]),
    ],
)
def test_tries_between_steps_that_are_recorded_now_and_then(tmp_path, every, recorded):
    model = mlp()
    tries = {"makes_step": lambda step: step % 4 != 2, "clears": lambda step: step % 8 != 2}
    check(tmp_path / "run", train(tmp_path / "run", model, sgd(model), steps=120, every=every, **tries), recorded)


@pytest.mark.parametrize("clears", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("clip", [True, False])
def test_steps_that_a_gradient_scaler_leaves_out(tmp_path, clears, fused, clip):
    model = mlp()
    optimizer = sgd(model, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=3)
    truth = Truth(model, optimizer)
    with gatdiag.watch(model, tmp_path / "run", scaler=scaler, include="2", **ALONE):
        for step in range(14):
            factor = math.inf if step in (3, 7, 8) else 1.0
            loss, scale = F.cross_entropy(model(X[0]), Y) * factor, scaler.get_scale()
            truth.before_backward(0)
            scaler.scale(loss).backward()
            truth.after_backward(scale)
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            truth.before_step(1.0 if clip else scale)
            scaler.step(optimizer)
            if math.isfinite(factor):
                truth.after_step()
            scaler.update()
            if clears or math.isinf(factor):
                optimizer.zero_grad()
    check(tmp_path / "run", truth)


@pytest.mark.parametrize("every", [2, 3, lambda step: step % 3 > 0, lambda step: step in (2, 3, 4, 7, 8)])
@pytest.mark.parametrize("batches", [[0], [0, 1]])
@pytest.mark.parametrize("clears_to_zero", [False, True])
def test_steps_that_are_recorded_now_and_then_of_which_a_scaler_leaves_some_out(
    tmp_path, every, batches, clears_to_zero
):
    model = mlp()
    optimizer = sgd(model, momentum=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=3)
    truth = Truth(model, optimizer)
    with gatdiag.watch(model, tmp_path / "run", scaler=scaler, include="2", **{**ALONE, "every": every}):
        for step in range(18):
            factor, scale = math.inf if step in (2, 5, 6, 10) else 1.0, scaler.get_scale()
            for batch in batches:
                truth.before_backward(batch)
                scaler.scale(F.cross_entropy(model(X[batch]), Y) * factor).backward()
            truth.after_backward(scale)
            truth.before_step(scale)
            scaler.step(optimizer)
            if math.isfinite(factor):
                truth.after_step()
            scaler.update()
            optimizer.zero_grad(set_to_none=not clears_to_zero)
    due = every if callable(every) else lambda step: step % every == 0
    check(tmp_path / "run", truth, [step for step in range(14) if due(step)])


def test_two_losses_of_one_forward_pass(tmp_path):
    model = mlp()
    truth = Truth(model, optimizer := sgd(model))
    with gatdiag.watch(model, tmp_path / "run", **ALONE):
        for _ in range(6):
            optimizer.zero_grad()
            out = model(X[0])
            for half in (slice(0, 6), slice(6, 12)):
                truth.before_backward(half.start)
                F.cross_entropy(out[half], Y[half]).backward(retain_graph=True)
            truth.after_backward()
            truth.before_step()
            optimizer.step()
            truth.after_step()
    check(tmp_path / "run", truth)


def test_a_loss_of_two_batches(tmp_path):
    model = mlp()
    truth = Truth(model, optimizer := sgd(model))
    with gatdiag.watch(model, tmp_path / "run", **ALONE):
        for step in range(8):
            optimizer.zero_grad()
            other = X[0].flip(1 if step < 4 else 0)  # another tensor at each step: not known to be the same
            loss = F.cross_entropy(model(X[0]), Y) + F.cross_entropy(model(X[1] if step < 3 else other), Y)
            truth.before_backward((0, 1 if step < 3 else -step))
            loss.backward()
            truth.after_backward()
            truth.before_step()
            optimizer.step()
            truth.after_step()
    check(tmp_path / "run", truth)


def test_a_closure_that_is_evaluated_several_times(tmp_path):
    model = mlp()
    truth = Truth(model, optimizer := torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3))

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X[0]), Y)
        if "used" not in truth.now:  # the first evaluation
            truth.before_backward(0)
        loss.backward()
        if "used" not in truth.now:
            truth.after_backward()
            truth.before_step()
        return loss

    with gatdiag.watch(model, tmp_path / "run", **ALONE):
        for _ in range(5):
            optimizer.step(closure)
            truth.after_step()
    check(tmp_path / "run", truth)


def test_sparse_gradients_that_an_optimizer_of_their_own_uses(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))
    pairs = torch.randint(0, 20, (12, 2))
    optimizers = [torch.optim.SparseAdam(model[0].parameters(), lr=0.01), sgd(model[2])]
    truth = Truth(model, optimizers[0])
    with gatdiag.watch(model, tmp_path / "run", include="2", **ALONE):
        for _ in range(6):
            model.zero_grad()
            truth.before_backward(0)
            F.cross_entropy(model(pairs), Y).backward()
            truth.after_backward()
            truth.before_step()
            for optimizer in optimizers:
                optimizer.step()
            truth.after_step()
    check(tmp_path / "run", truth)


def test_steps_with_very_many_batches_are_not_compared(tmp_path):
    model = mlp()
    train(tmp_path / "run", model, sgd(model), steps=3, batches=lambda step: [0] * 70)
    steps = gatdiag.load(tmp_path / "run").steps
    assert "overshoot" not in steps or steps["overshoot"].isna().all()
    assert steps["stale_gradient"][1:].tolist() == [0, 0]
