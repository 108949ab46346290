"""Faults of schedule, precision, optimizer and loop in small trainings, each beside healthy ones that look like it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler as schedulers

import gatdiag

X = torch.randn(120, 8, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + X[:, 1] > 0).long()
STEPS = 100


def mlp(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to(dtype)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.003)


def train(
    folder,
    *,
    model=None,
    make_optimizer=adam,
    make_schedule=None,
    pasted="",
    between=lambda model, step: None,
    loss_of=lambda model, step: F.cross_entropy(model(X), Y),
    passes=1,
    steps=STEPS,
    every=1,
):
    """Watch a training and diagnose it; returns the diagnosis and the last loss.

    Args:
        folder: Of the run.
        model: What is trained.
        make_optimizer: From its parameters.
        make_schedule: From the optimizer; called after each step.
        pasted: Code that runs after the schedule, with the optimizer; a line that creates one replaces it.
        between: Called after each step.
        loss_of: The loss of a step.
        passes: Backward passes for each step.
        steps: Their number.
        every: Which of them are recorded.
    """
    model = model or mlp()
    optimizer = make_optimizer(model.parameters())
    if pasted.startswith("optimizer ="):
        optimizer, pasted = run(pasted, model=model)["optimizer"], ""
    schedule = (lambda: None) if make_schedule is None else make_schedule(optimizer)
    step_schedule = getattr(schedule, "step", schedule)
    with gatdiag.watch(model, folder, every=every, laws=False) as recorder:
        for step in range(steps):
            optimizer.zero_grad()
            for _ in range(passes):
                loss = loss_of(model, step)
                loss.backward()
            optimizer.step()
            step_schedule()
            run(pasted, optimizer=optimizer)
            between(model, step)
            recorder.log(loss=loss)
    return gatdiag.diagnose(folder), loss.item()


def run(code, **names):
    known = {"torch": torch, **names}
    exec(code, known)
    return known


def alarms(diagnosis):
    return [one.code for one in diagnosis if one.severity != "note"]


# --- schedules --------------------------------------------------------------------------------------------------------


def plateau_of_losses_that_should_rise(optimizer):
    schedule = schedulers.ReduceLROnPlateau(optimizer, mode="max", patience=0)
    losses = iter(range(STEPS, 0, -1))
    return lambda: schedule.step(next(losses))


def warm_up_by_hand(optimizer):
    steps = iter(range(1, 10**6))

    def step():
        for group in optimizer.param_groups:
            group["lr"] = 0.003 * next(steps) / 10_000

    for group in optimizer.param_groups:
        group["lr"] = 0.0
    return step


ENDING = {
    "gamma of epochs, stepped per batch": lambda optimizer: schedulers.ExponentialLR(optimizer, 0.8),
    "gamma zero": lambda optimizer: schedulers.StepLR(optimizer, 10, gamma=0.0),
    "factor zero": lambda optimizer: schedulers.LambdaLR(optimizer, lambda step: step // 1000),
    "plateau of the wrong mode": plateau_of_losses_that_should_rise,
    "polynomial that ends early": lambda optimizer: schedulers.PolynomialLR(optimizer, total_iters=5),
    "warm-up of epochs": lambda optimizer: schedulers.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 5000)),
    "one cycle of far more steps": lambda optimizer: schedulers.OneCycleLR(optimizer, 0.003, total_steps=20_000),
    "warm-up by hand": warm_up_by_hand,
}
HEALTHY_SCHEDULES = {
    "cosine": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, STEPS),
    "one cycle": lambda optimizer: schedulers.OneCycleLR(optimizer, 0.02, total_steps=STEPS + 1),
    "warm restarts": lambda optimizer: schedulers.CosineAnnealingWarmRestarts(optimizer, STEPS // 5),
    "cosine, period of epochs": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, 5),
    "exponential": lambda optimizer: schedulers.ExponentialLR(optimizer, 0.95),
    "warm-up": lambda optimizer: schedulers.LinearLR(optimizer, 0.01, total_iters=20),
    "linear": lambda optimizer: schedulers.LinearLR(optimizer, 1.0, 0.0, total_iters=STEPS),
}


@pytest.mark.parametrize("kind", ENDING)
def test_a_schedule_that_ends_training_is_named_and_what_is_pasted_cures_it(tmp_path, kind):
    diagnosis, last = train(tmp_path / "run", make_schedule=ENDING[kind])
    verdict = diagnosis.verdict
    assert verdict.code == "lr-decays-too-fast", str(diagnosis)
    assert ("warm-up" in verdict.title) == (kind.startswith("warm-up") or "cycle" in kind)
    healthy, lowest = train(tmp_path / "constant")
    assert healthy.state == "trained"
    assert last > 2 * lowest
    cured, cured_last = train(tmp_path / "cured", make_schedule=ENDING[kind], pasted=verdict.remedy)
    assert not alarms(cured), str(cured)
    assert cured_last < 1.2 * lowest


@pytest.mark.parametrize("kind", ["gamma of epochs, stepped per batch", "warm-up of epochs"])
def test_a_schedule_that_ends_training_is_treated(tmp_path, kind):
    def loop(model, recorder):
        optimizer = adam(model.parameters())
        schedule = ENDING[kind](optimizer)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            optimizer.step()
            schedule.step()
            recorder.log(loss=loss)

    treatment = gatdiag.treat(mlp, loop, X, seeds=[0], folder=tmp_path / "treated")
    assert treatment.verdict.code == "lr-decays-too-fast"
    assert treatment.helped


@pytest.mark.parametrize("kind", HEALTHY_SCHEDULES)
def test_a_schedule_that_lowers_the_rate_as_training_ends_is_no_fault(tmp_path, kind):
    diagnosis, _ = train(tmp_path / "run", make_optimizer=lambda p: torch.optim.Adam(p, lr=0.02),
                         make_schedule=HEALTHY_SCHEDULES[kind])  # fmt: skip
    assert not alarms(diagnosis), str(diagnosis)


@pytest.mark.parametrize("kind", HEALTHY_SCHEDULES)
def test_a_network_that_fails_for_another_reason_is_not_blamed_on_its_schedule(tmp_path, kind):
    noise = torch.randint(0, 2, (120,), generator=torch.Generator().manual_seed(1))
    diagnosis, _ = train(
        tmp_path / "run",
        model=nn.Linear(8, 2),
        make_optimizer=lambda p: torch.optim.Adam(p, lr=0.02),
        make_schedule=HEALTHY_SCHEDULES[kind],
        loss_of=lambda model, step: F.cross_entropy(model(X), noise),
    )
    assert diagnosis.state == "failing"
    assert "lr-decays-too-fast" not in alarms(diagnosis)


def test_each_group_gets_back_its_own_rate(tmp_path):
    def groups(parameters):
        first, *rest = parameters
        return torch.optim.Adam([{"params": [first], "lr": 0.001}, {"params": rest}], lr=0.003)

    given = {"make_optimizer": groups, "make_schedule": ENDING["gamma of epochs, stepped per batch"]}
    verdict = train(tmp_path / "run", **given)[0].verdict
    assert verdict.remedy.startswith("for group, rate in zip(optimizer.param_groups, [0.001, 0.003]):")
    cured, _ = train(tmp_path / "cured", **given, pasted=verdict.remedy)
    assert cured.state == "trained"


def test_a_rate_of_zero_is_named(tmp_path):
    verdict = train(tmp_path / "run", make_optimizer=lambda p: torch.optim.SGD(p, lr=0.0))[0].verdict
    assert (verdict.code, verdict.title) == ("lr-too-small", "The learning rate is zero")
    assert train(tmp_path / "cured", pasted=verdict.remedy)[0].state == "trained"


# --- precision --------------------------------------------------------------------------------------------------------


def in_precision(dtype):
    return lambda model, step: F.cross_entropy(model(X.to(dtype)).float(), Y)


def test_an_eps_that_is_zero_in_half_precision_is_named(tmp_path):
    diagnosis, _ = train(tmp_path / "run", model=mlp(torch.float16), loss_of=in_precision(torch.float16))
    verdict = diagnosis.verdict
    assert (verdict.code, verdict.severity) == ("precision-underflow", "error"), str(diagnosis)
    assert "eps" in verdict.title
    cured = run("\n".join(line for line in verdict.remedy.splitlines() if "model =" in line), model=mlp(torch.float16))
    assert train(tmp_path / "cured", model=cured["model"])[0].state == "trained"


def test_steps_that_rounding_takes_back_are_named(tmp_path):
    given = {"make_optimizer": lambda p: torch.optim.Adam(p, lr=1e-4), "steps": 400}
    bfloat16 = {"model": mlp(torch.bfloat16), "loss_of": in_precision(torch.bfloat16)}
    diagnosis, last = train(tmp_path / "run", **bfloat16, **given)
    assert diagnosis.verdict.code == "precision-underflow", str(diagnosis)
    assert "to the bit" in diagnosis.verdict.text
    _, lower = train(tmp_path / "single", **given)
    assert lower < 0.95 * last


@pytest.mark.parametrize(
    ("dtype", "make_optimizer"),
    [
        (torch.bfloat16, lambda p: torch.optim.Adam(p, lr=0.01)),
        (torch.float16, lambda p: torch.optim.SGD(p, lr=0.5)),
        (torch.float16, lambda p: torch.optim.Adam(p, lr=0.003, eps=1e-4)),
    ],
)
def test_half_precision_that_trains_is_no_fault(tmp_path, dtype, make_optimizer):
    diagnosis, _ = train(tmp_path / "run", model=mlp(dtype), make_optimizer=make_optimizer, loss_of=in_precision(dtype))
    assert diagnosis.state == "trained"
    assert not alarms(diagnosis), str(diagnosis)


@pytest.mark.parametrize("scale", [1e-5, 1.0])
def test_gradients_that_are_too_small_for_float16_are_named(tmp_path, scale):
    def loss_of(model, step):
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(X)
        return scale * F.cross_entropy(out.float(), Y)

    diagnosis, _ = train(tmp_path / "run", loss_of=loss_of)
    assert ("precision-underflow" in alarms(diagnosis)) == (scale < 1), str(diagnosis)
    if scale < 1:
        assert "GradScaler" in diagnosis.verdict.remedy


def test_a_rate_that_is_too_small_in_any_precision_is_not_blamed_on_it(tmp_path):
    diagnosis, _ = train(
        tmp_path / "run",
        model=mlp(torch.bfloat16),
        loss_of=in_precision(torch.bfloat16),
        make_optimizer=lambda p: torch.optim.Adam(p, lr=1e-7),
    )
    assert "precision-underflow" not in alarms(diagnosis)


# --- settings of the optimizer ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1.0, 0.1])
def test_an_eps_that_swamps_the_gradients_is_mended_first(tmp_path, eps):
    def make_optimizer(parameters):
        return torch.optim.Adam(parameters, lr=0.003, eps=eps)

    verdict = train(tmp_path / "run", make_optimizer=make_optimizer)[0].verdict
    assert verdict.title == "Adam's eps swamps the gradients"
    assert "eps=1e-08" in verdict.remedy.splitlines()[0]
    assert train(tmp_path / "cured", pasted=verdict.remedy)[0].state == "trained"


def test_a_large_eps_that_the_rate_makes_up_for_is_no_fault(tmp_path):
    diagnosis, _ = train(tmp_path / "run", make_optimizer=lambda p: torch.optim.Adam(p, lr=0.5, eps=1.0))
    assert not alarms(diagnosis), str(diagnosis)


def test_momentum_near_one_is_named(tmp_path):
    order = torch.randperm(len(Y), generator=torch.Generator().manual_seed(1))

    def loss_of(model, step):
        rows = order[20 * (step % 6) :][:20]
        return F.cross_entropy(model(X[rows]), Y[rows])

    def make_optimizer(parameters):
        return torch.optim.SGD(parameters, lr=0.5, momentum=0.999)

    diagnosis, _ = train(tmp_path / "run", make_optimizer=make_optimizer, loss_of=loss_of)
    verdict = diagnosis.verdict
    assert verdict.title == "The momentum is too close to one", str(diagnosis)
    assert "acts like 500" in verdict.text
    assert "momentum=0.9" in verdict.remedy
    assert train(tmp_path / "cured", pasted=verdict.remedy)[0].state == "trained"


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
@pytest.mark.parametrize("lr", [500.0, 1e8])
def test_a_huge_rate_is_replaced_by_one_that_trains(tmp_path, lr, make):
    diagnosis, _ = train(tmp_path / "run", make_optimizer=lambda p: make(p, lr=lr))
    assert diagnosis.verdict.code == "lr-too-large", str(diagnosis)
    cured, _ = train(tmp_path / "cured", pasted=diagnosis.verdict.remedy, steps=200)
    assert cured.state == "trained", diagnosis.verdict.remedy


@pytest.mark.parametrize(
    ("given", "words", "line"),
    [
        ({"passes": 20}, "20 backward passes", "# or: loss = loss / 20 "),
        (
            {"loss_of": lambda model, step: F.cross_entropy(model(X), Y, reduction="sum")},
            "is a sum",
            "reduction='mean'",
        ),
        ({"loss_of": lambda model, step: F.mse_loss(model(X), X[:, :2], reduction="sum")}, "is a sum", "loss / 240"),
    ],
)
def test_what_makes_a_gradient_many_times_too_long_is_named(tmp_path, given, words, line):
    def make_optimizer(parameters):
        return torch.optim.SGD(parameters, lr=1.0)

    verdict = train(tmp_path / "run", make_optimizer=make_optimizer, **given)[0].verdict
    assert verdict.code == "lr-too-large"
    assert words in verdict.text
    assert line in verdict.remedy
    assert train(tmp_path / "cured", pasted=verdict.remedy, **given)[0].state == "trained"


@pytest.mark.parametrize("passes", [1, 20])
def test_a_gradient_of_the_usual_length_is_not_said_to_be_a_sum(tmp_path, passes):
    verdict = train(
        tmp_path / "run",
        make_optimizer=lambda p: torch.optim.SGD(p, lr=500.0),
        loss_of=lambda model, step: F.cross_entropy(model(X), Y) / passes,
        passes=passes,
    )[0].verdict
    assert verdict.code == "lr-too-large"
    assert "# or: loss" not in verdict.remedy


# --- the loop ---------------------------------------------------------------------------------------------------------


def restores(kept):
    def between(model, step):
        if not kept:
            kept.update(copy.deepcopy(model.state_dict()))
        if step % 5 == 4:
            model.load_state_dict(kept)

    return between


def writes_back_an_average(averaged, decay=0.999, swaps=False):
    def between(model, step):
        before = copy.deepcopy(model.state_dict())
        for name, value in before.items():
            averaged.setdefault(name, value.clone()).lerp_(value, 1 - decay)
        model.load_state_dict(averaged)
        if swaps:
            model.load_state_dict(before)

    return between


def draws_anew(model, step):
    for layer in model[::2] if step % 5 == 4 else ():
        layer.reset_parameters()


@pytest.mark.parametrize("between", [restores({}), writes_back_an_average({}), draws_anew])
def test_weights_that_are_overwritten_are_named(tmp_path, between):
    diagnosis, _ = train(tmp_path / "run", between=between)
    assert diagnosis.verdict.code == "weights-overwritten", str(diagnosis)


def test_weights_that_are_overwritten_are_named_though_early_steps_alone_were_looked_at(tmp_path):
    diagnosis, _ = train(
        tmp_path / "run", between=restores({}), every=lambda step: step < 25 or step % 2 == 0, steps=200
    )
    assert diagnosis.verdict.code == "weights-overwritten", str(diagnosis)


def clips(model, step):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.05, 0.05)


def projects(model, step):
    with torch.no_grad():
        model[0].weight.div_(model[0].weight.norm(dim=1, keepdim=True))


def prunes(masks):
    def between(model, step):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.mul_(masks.setdefault(name, torch.rand_like(parameter) > 0.9))

    return between


LEGITIMATE = {
    "clipped": lambda: clips,
    "projected": lambda: projects,
    "pruned": lambda: prunes({}),
    "averaged a little": lambda: writes_back_an_average({}, decay=0.5),
    "average swapped in and back": lambda: writes_back_an_average({}, swaps=True),
}


@pytest.mark.parametrize("is_hard", [False, True])
@pytest.mark.parametrize("kind", LEGITIMATE)
def test_weights_that_are_changed_for_a_reason_are_no_fault(tmp_path, kind, is_hard):
    noise = torch.randint(0, 2, (120,), generator=torch.Generator().manual_seed(1))
    diagnosis, _ = train(
        tmp_path / "run",
        between=LEGITIMATE[kind](),
        loss_of=lambda model, step: F.cross_entropy(model(X), noise if is_hard else Y),
    )
    assert "weights-overwritten" not in alarms(diagnosis), str(diagnosis)


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.generator, self.discriminator = (
            nn.Linear(4, 8),
            nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)),
        )


@pytest.mark.parametrize("is_shared", [True, False])
def test_two_optimizers_of_the_same_parameters_are_named(tmp_path, is_shared):
    pair = Pair()
    own = pair.parameters() if is_shared else pair.generator.parameters()
    of_generator = torch.optim.Adam(own, lr=0.001)
    of_discriminator = torch.optim.Adam(pair.discriminator.parameters(), lr=0.0005)
    with gatdiag.watch(pair, tmp_path / "run", every=1, laws=False) as recorder:
        for _ in range(40):
            fake = pair.generator(torch.randn(120, 4))
            of_discriminator.zero_grad()
            loss = F.softplus(pair.discriminator(fake.detach())).mean() + F.softplus(-pair.discriminator(X)).mean()
            loss.backward()
            of_discriminator.step()
            of_generator.zero_grad()
            F.softplus(-pair.discriminator(fake)).mean().backward()
            of_generator.step()
            recorder.log(loss=loss)
    diagnosis = gatdiag.diagnose(tmp_path / "run")
    found = {one.code: one for one in diagnosis}
    assert ("optimizers-share-parameters" in found) == is_shared, str(diagnosis)
    if is_shared:
        assert "discriminator.0.bias" in found["optimizers-share-parameters"].parameters


def test_an_optimizer_of_all_after_one_of_the_head_is_no_fault(tmp_path):
    model = mlp()
    with gatdiag.watch(model, tmp_path / "run", every=1, laws=False) as recorder:
        for optimizer in (
            torch.optim.Adam(model[2].parameters(), lr=1e-5),
            torch.optim.Adam(model.parameters(), lr=1e-4),
        ):
            for _ in range(30):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(X), Y)
                loss.backward()
                optimizer.step()
                recorder.log(loss=loss)
    assert "optimizers-share-parameters" not in alarms(gatdiag.diagnose(tmp_path / "run"))


def test_an_embedding_that_is_frozen_is_named_with_its_table(tmp_path):
    torch.manual_seed(0)
    table = nn.Embedding.from_pretrained(torch.randn(120, 8))
    model = nn.Sequential(table, nn.Linear(8, 2))
    labels = torch.randint(0, 2, (120,))
    diagnosis, _ = train(
        tmp_path / "run", model=model, loss_of=lambda model, step: F.cross_entropy(model(torch.arange(120)), labels)
    )
    (found,) = [one for one in diagnosis if one.code == "parameters-without-gradient"]
    assert "freeze=False" in found.remedy


def test_a_rate_that_is_switched_off_while_the_loss_begins_to_fall_is_named(tmp_path):
    diagnosis, _ = train(
        tmp_path / "run",
        make_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
        make_schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.0),
        steps=100,
    )
    assert diagnosis.verdict.code == "lr-decays-too-fast", str(diagnosis)
