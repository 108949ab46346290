"""Steps that are not recorded are counted and logged to like others, at almost no cost."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch_geometric.nn import GATv2Conv

import gatdiag
from gatdiag.recorder import RecordingWarning
from gatdiag.recorder.buffer import SampleBuffer
from gatdiag.recorder.hooks import modules
from tests.recorder.loops import Gat, graph, loss_of, sgd, train_step

STEPS = 13


def plain(model, data, log):
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, data)
        loss.backward()
        optimizer.step()
        log(loss=loss, step_of_user=step)


def logged_before_the_step(model, data, log):
    optimizer = sgd(model)
    for step in range(STEPS):
        loss = loss_of(model, data)
        log(loss=loss, step_of_user=step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluated(model, data, log):
    """With gradients off, in evaluation mode with gradients on, and, now and then, in training mode."""
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, data).backward()
        optimizer.step()
        with torch.no_grad():
            log(silent=loss_of(model, data))
        model.eval()
        log(evaluated=loss_of(model, data))
        model.train()
        if step % 3 == 1:
            log(seen_by_the_next=loss_of(model, data))


def accumulated(model, data, log):
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(3):
            loss = loss_of(model, data) / 3
            loss.backward()
            log({f"part {part}": loss})
        optimizer.step()
        log(step_of_user=step)


def by_a_closure(model, data, log):
    optimizer = sgd(model)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, data)
        loss.backward()
        return loss

    for _ in range(STEPS):
        log(loss=optimizer.step(closure))


def two_optimizers(model, data, log):
    first, rest = sgd(model.convs[0]), sgd(model.convs[1], model.convs[2])
    for step in range(STEPS):
        model.zero_grad()
        loss_of(model, data).backward()
        first.step()
        rest.step()
        log(step_of_user=step)


def a_second_optimizer_joins(model, data, log):
    """The last layer is frozen at first."""
    first, last = sgd(model.convs[0], model.convs[1]), sgd(model.convs[2])
    for step in range(STEPS):
        model.convs[2].requires_grad_(step >= 6)
        model.zero_grad()
        loss_of(model, data).backward()
        first.step()
        if step >= 6:
            last.step()
        log(step_of_user=step)


def optimizers_take_turns(model, data, log):
    first, rest = sgd(model.convs[0]), sgd(model.convs[1], model.convs[2])
    for step in range(STEPS):
        model.zero_grad()
        loss = loss_of(model, data)
        loss.backward()
        (rest if step % 2 else first).step()
        log(loss=loss)


def one_part_only(model, data, log):
    """The step stays open until the next training pass, because other parameters have gradients, too."""
    optimizer = sgd(model.convs[0])
    for step in range(STEPS):
        model.zero_grad()
        loss = loss_of(model, data)
        log(before=step)
        loss.backward()
        optimizer.step()
        log(after=step)


def in_evaluation_mode(model, data, log):
    """Only the backward pass shows that this is training."""
    model.eval()
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, data)
        log(before=step)
        loss.backward()
        log(loss=loss)
        optimizer.step()


def interrupted(model, data, log):
    """In some steps, of one optimizer and later of the first of two."""
    first, rest = sgd(model.convs[0], model.convs[1]), sgd(model.convs[2].requires_grad_(False))

    def interrupt(*_):
        if step % 3 == 1:
            raise KeyboardInterrupt

    first.register_step_pre_hook(interrupt)
    for step in range(STEPS):
        model.convs[2].requires_grad_(step > 6)
        model.zero_grad()
        loss_of(model, data).backward()
        with contextlib.suppress(KeyboardInterrupt):
            first.step()
            if step > 6:
                rest.step()
        log(step_of_user=step)


PATTERNS = [
    plain,
    logged_before_the_step,
    evaluated,
    accumulated,
    by_a_closure,
    two_optimizers,
    a_second_optimizer_joins,
    optimizers_take_turns,
    one_part_only,
    in_evaluation_mode,
    interrupted,
]


LOGGING_THE_LOSS = [
    plain,
    logged_before_the_step,
    by_a_closure,
    optimizers_take_turns,
    in_evaluation_mode,
]  # of the others it is known where they are recorded


def by_hand(model, data, log, recorder):
    """Every second step as a context."""
    for step in range(STEPS):
        model.zero_grad()
        loss = loss_of(model, data)
        loss.backward()
        moving = recorder.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        if step % 2:
            with moving:
                pass
        log(loss=loss)


def watched(folder, every, pattern):
    torch.manual_seed(0)
    model = Gat()
    with gatdiag.watch(model, folder, every=every, laws=False, warn=False) as recorder:
        more = (recorder,) if pattern is by_hand else ()
        pattern(model, graph(), recorder.log, *more)
    return gatdiag.load(folder)


@pytest.mark.parametrize("pattern", [*PATTERNS, by_hand])
def test_steps_are_counted_and_logged_to_as_where_all_are_recorded(tmp_path, pattern):
    whole = watched(tmp_path / "whole", 1, pattern)
    measured = {"time", "overshoot", "stale_gradient"}
    measured |= set() if pattern in (*LOGGING_THE_LOSS, by_hand) else {"loss"}
    logged = [name for name in whole.steps if name not in measured and not name.startswith(("gradient", "learning"))]
    columns = ["step", "parameter", "norm", "gradient_norm"]
    for every in (5, 100):
        thinned = watched(tmp_path / str(every), every, pattern)
        assert set(thinned.steps.columns) <= set(whole.steps.columns)
        assert thinned.steps[logged].equals(whole.steps[logged])
        assert thinned.parameters["step"].unique().tolist() == list(range(0, int(whole.steps["step"].max()) + 1, every))
        at_those = whole.parameters[whole.parameters["step"] % every == 0].reset_index(drop=True)
        assert thinned.parameters[columns].equals(at_those[columns])
        assert hooks() == 0


def test_gradients_before_clipping_are_those_of_the_step_and_of_none_before(tmp_path):
    """Two losses share a forward pass; the second backward pass comes before the end of the first step."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"actor": nn.Linear(4, 3), "critic": nn.Linear(4, 1)})
    model.forward = lambda x: (model["actor"](x), model["critic"](x))
    first, second = sgd(model["actor"]), sgd(model["critic"])
    with gatdiag.watch(model, tmp_path / "run", every=7, laws=False):
        for _ in range(20):
            values = model(torch.ones(5, 4))
            for optimizer, value in zip((first, second), values, strict=True):
                optimizer.zero_grad()
                (value - 2).square().mean().backward()
                optimizer.step()
    steps = gatdiag.load(tmp_path / "run").steps.dropna(subset=["gradient_norm_before_clipping"])
    assert len(steps) >= 3
    assert steps["gradient_norm_before_clipping"].equals(steps["gradient_norm"].rename("gradient_norm_before_clipping"))


def hooks():
    return len(module_hooks._global_forward_pre_hooks) + len(module_hooks._global_forward_hooks)


def test_a_run_of_which_nothing_was_logged_goes_on_after_its_last_step(tmp_path):
    model, data = Gat(), graph()
    for resume in (False, True):
        optimizer = sgd(model)
        with gatdiag.watch(model, tmp_path / "run", every=5, resume=resume, laws=False):
            for _ in range(STEPS):
                train_step(model, data, optimizer)
    run = gatdiag.load(tmp_path / "run")
    assert run.steps["step"].tolist() == [0, 5, 10, 12, 15, 20, 25]
    assert run.parameters["step"].unique().tolist() == [0, 5, 10, 15, 20, 25]


@pytest.mark.parametrize("has_compiled", [False, True])
def test_modules_are_listened_to_only_where_something_is_recorded(tmp_path, monkeypatch, has_compiled):
    """After compilation the hooks stay, because removing them would compile again."""
    monkeypatch.setattr(modules, "has_compiled", lambda: has_compiled)
    seen = {}

    class Seeing(Gat):
        def forward(self, x, edge_index):
            seen.setdefault(len(seen), hooks())
            return super().forward(x, edge_index)

    model, data = Seeing(), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run", every=4, laws=False):
        for _ in range(9):
            seen[f"before {len(seen) // 2}"] = hooks()
            train_step(model, data, optimizer)
    of_passes = [seen[number] for number in seen if isinstance(number, int)]
    before = [seen[f"before {step}"] for step in range(9)]
    assert of_passes == ([2] * 9 if has_compiled else [2, 0, 0, 0, 2, 0, 0, 0, 2])
    assert before == [2] * 9
    assert hooks() == 0


def test_the_call_that_ends_a_step_is_heard_as_part_of_the_next(tmp_path):
    """The step before stays open, because other parameters have gradients, too."""
    layer, data = GATv2Conv(5, 3), graph()
    optimizer = torch.optim.SGD([layer.bias], lr=0.1)
    with gatdiag.watch(layer, tmp_path / "run", every=lambda step: step == 2, metrics="full", laws=False):
        for _ in range(4):
            train_step(layer, data, optimizer)
    recorded = gatdiag.load(tmp_path / "run").layers
    assert recorded["step"].tolist() == [2]
    assert recorded["attention_entropy"].notna().all()


def test_replaced_parameters_are_noticed_at_once(tmp_path):
    model, data = Gat(), graph()
    with pytest.warns(RecordingWarning, match="recording of the model stopped before step 3"):
        recorder = gatdiag.watch(model, tmp_path / "run", every=6, laws=False)
        optimizer = sgd(model)
        for step in range(9):
            if step == 3:
                model.convs[0].lin_l.weight = nn.Parameter(model.convs[0].lin_l.weight.detach().clone())
            train_step(model, data, optimizer)
        recorder.finish()
    assert gatdiag.load(tmp_path / "run").parameters["step"].unique().tolist() == [0]


@pytest.mark.parametrize("pattern", [plain, logged_before_the_step])
def test_rows_are_written_once_their_steps_are_over(tmp_path, monkeypatch, pattern):
    monkeypatch.setattr(SampleBuffer, "is_due", True)
    run = watched(tmp_path / "run", 100, pattern)
    assert run.steps["step"].tolist() == run.steps["step_of_user"].tolist() == [*range(STEPS)]
    assert run.steps["loss"].notna().all()


def test_a_nan_between_records_is_found_at_its_step(tmp_path):
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), torch.ones(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gatdiag.watch(model, tmp_path / "run", every=50, warn=False, laws=False):
        for step in range(60):
            optimizer.zero_grad()
            model(x).sum().backward()
            if step == 30:
                model[1].weight.grad[0, 1] = torch.nan
            optimizer.step()
    run = gatdiag.load(tmp_path / "run")
    assert run.parameters["step"].unique().tolist() == [0, 30, 50]
    assert run.meta["first_non_finite"]["step"] == 30
    assert run.meta["first_non_finite"]["parameter"] == "1.weight"
