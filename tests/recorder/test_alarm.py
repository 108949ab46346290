"""Diagnosis while training: `recorder.diagnosis()` at any time, and a warning for each error that is certain."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gatdiag
from gatdiag.recorder import RecordingWarning, TrainingWarning
from tests.recorder.loops import Gat, graph, loss_of, sgd, train_step


class Cut(Gat):
    """Its first layer is cut off from the loss."""

    def forward(self, x, edge_index):
        x = F.relu(self.convs[0](x, edge_index)).detach()
        return self.convs[2](F.relu(self.convs[1](x, edge_index)), edge_index)


class Squashed(Gat):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index).softmax(1)


class Regression(Gat):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index)[:, :1]


def broadcast_loss(model, data):
    return (model(data.x, data.edge_index) - data.y).square().mean()


def train(folder, model=None, steps=12, lr=0.1, parameters=None, *, clears=True, spoil=None, loss=loss_of, **options):
    """Train, watched if there is a folder; returns the model and the recorder."""
    torch.manual_seed(0)
    model, data = model() if model else Gat(), graph()
    optimizer = torch.optim.SGD(parameters(model) if parameters else model.parameters(), lr=lr)
    if spoil is not None:
        spoil(data)
    recorder = gatdiag.watch(model, folder or "unused", enabled=folder is not None, laws=False, **options)
    for _ in range(steps):
        if clears:
            optimizer.zero_grad()
        value = loss(model, data)
        value.backward()
        optimizer.step()
        recorder.log(loss=value)
    recorder.finish()
    return model, recorder


def with_nan(data):
    data.x[3, 2] = math.nan


# Code -> arguments of `train`, the step of the warning, a part of its text.
FAULTS = {
    "parameters-without-gradient": ({"model": Cut}, 9, "convs.0.lin_l.weight"),
    "parameters-not-in-optimizer": (
        {"parameters": lambda model: model.convs[2].parameters()},
        9,
        "keep their initial values: convs.0.",
    ),
    "no-training-signal": (
        {"loss": lambda *given: 0.0 * loss_of(*given)},
        9,
        "The gradient of every parameter is exactly zero",
    ),
    "loss-broadcast": ({"model": Regression, "loss": broadcast_loss}, 9, "[N, 1] and targets [N] are broadcast"),
    "gradients-not-cleared": ({"clears": False}, 9, "Gradients are never cleared"),
    "output-softmax-twice": ({"model": Squashed}, 0, "ends in softmax"),
    "input-nonfinite": ({"spoil": with_nan}, 0, "NaN in the output of convs.0. NaN or infinity in the inputs: The"),
    "lr-too-large": ({"lr": 1e30}, 1, "in the output of convs.0. The learning rate is too large"),
}  # fmt: skip


@pytest.mark.parametrize("code", FAULTS)
def test_an_error_is_said_once_in_one_line_at_its_step(tmp_path, recwarn, code):
    arguments, step, says = FAULTS[code]
    warnings.simplefilter("always")
    train(tmp_path / "run", **arguments)
    (said,) = (one for one in recwarn if issubclass(one.category, TrainingWarning))
    text = str(said.message)
    assert text.startswith(f"gatdiag: step {step}: ")
    assert says in text
    assert text.endswith(f"[{code}]")
    assert "\n" not in text
    shown = warnings.formatwarning(said.message, said.category, said.filename, said.lineno)
    assert shown == f"gatdiag:{step}: TrainingWarning: {text}\n"


def test_a_training_that_is_well_hears_nothing(tmp_path, recwarn):
    warnings.simplefilter("always")
    train(tmp_path / "run", steps=120)
    assert not [one for one in recwarn if issubclass(one.category, TrainingWarning)]


def test_an_infinite_loss_is_not_told_as_the_mean_of_nothing(tmp_path, recwarn):
    warnings.simplefilter("always")
    torch.manual_seed(0)
    x = torch.randn(200, 20)
    y = (x[:, :3].sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=500.0)
    with gatdiag.watch(model, tmp_path / "run") as recorder:
        for _ in range(10):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            recorder.log(loss=loss.item())
    (said,) = (str(one.message) for one in recwarn if issubclass(one.category, TrainingWarning))
    assert said.endswith("[lr-too-large]")


def test_it_can_be_turned_off(tmp_path, recwarn):
    warnings.simplefilter("always")
    train(tmp_path / "run", model=Cut, warn=False)
    assert not recwarn


@pytest.mark.parametrize("code", ["parameters-without-gradient", "lr-too-large"])
def test_where_warnings_are_errors_training_goes_on_bit_for_bit(tmp_path, capfd, code):
    arguments, step, _ = FAULTS[code]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain, _ = train(None, **arguments)
        watched, _ = train(tmp_path / "run", **arguments)
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"gatdiag: step {step}: ")


def test_a_frozen_encoder_and_an_unused_head_are_no_errors(tmp_path, recwarn):
    class Unused(Gat):
        def __init__(self):
            super().__init__()
            self.convs[0].requires_grad_(False)
            self.head = nn.Linear(3, 2)

        def forward(self, x, edge_index):
            found = super().forward(x, edge_index)
            self.head(found)
            return found

    warnings.simplefilter("always")
    train(tmp_path / "run", Unused)
    assert not [one for one in recwarn if issubclass(one.category, TrainingWarning)]


def test_layers_frozen_on_purpose_are_no_error_while_the_loss_is_high(tmp_path, recwarn):
    def frozen():
        model = Gat()
        model.convs[:2].requires_grad_(False)
        return model

    warnings.simplefilter("always")
    _, recorder = train(tmp_path / "run", frozen, steps=102, lr=1e-3)
    severities = {one.code: one.severity for one in recorder.diagnosis()}
    assert severities["parameters-without-gradient"] == "warning"
    assert not [one for one in recwarn if issubclass(one.category, TrainingWarning)]


def test_optimizers_that_take_turns_are_no_errors(tmp_path, recwarn):
    class Adversaries(nn.Module):
        def __init__(self):
            super().__init__()
            self.makes = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            self.judges = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))

        def forward(self, noise):
            return self.judges(self.makes(noise))

    warnings.simplefilter("always")
    torch.manual_seed(0)
    model = Adversaries()
    optimizers = [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (model.judges, model.makes)]
    with gatdiag.watch(model, tmp_path / "run", laws=False):
        for _ in range(8):
            noise, real = torch.randn(32, 4), torch.randn(32, 3)
            for optimizer, losses in zip(
                optimizers,
                (
                    lambda: F.softplus(model.judges(model.makes(noise).detach())) + F.softplus(-model.judges(real)),
                    lambda: F.softplus(-model(noise)),
                ),
                strict=True,
            ):
                optimizer.zero_grad()
                losses().mean().backward()
                optimizer.step()
    assert not [one for one in recwarn if issubclass(one.category, TrainingWarning)]


# --- recorder.diagnosis() ---------------------------------------------------------------------------------------------


def test_a_diagnosis_at_any_time_changes_nothing(tmp_path):
    plain, _ = train(None, steps=3)
    torch.manual_seed(0)
    model, data = Gat(), graph()
    optimizer = sgd(model)
    recorder = gatdiag.watch(model, tmp_path / "run", laws=False)
    states = {recorder.diagnosis().state}
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(data.x, data.edge_index)
        recorder.diagnosis()
        loss = F.cross_entropy(logits, data.y)
        loss.backward()
        with torch.inference_mode():
            recorder.diagnosis()
        optimizer.step()
        recorder.diagnosis()
        recorder.log(loss=loss)
        states.add(recorder.diagnosis().state)
    recorder.finish()
    assert states == {"unknown"}
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
    run = gatdiag.load(tmp_path / "run")
    assert run.steps["step"].tolist() == [*range(3)]
    assert run.steps["loss"].notna().all()
    assert len(run.parameters) == 3 * len(list(model.parameters()))
    assert recorder.diagnosis() == gatdiag.diagnose(tmp_path / "run")


def test_steps_that_are_made_meanwhile_do_not_count(tmp_path, monkeypatch):
    """As by a training in another thread."""
    torch.manual_seed(0)
    model, data = Gat(), graph()
    optimizer, checks = sgd(model), gatdiag.diagnosis.run_checks

    def after_more_steps(facts):
        monkeypatch.setattr(gatdiag.diagnosis, "run_checks", checks)
        for _ in range(30):
            recorder.log(loss=train_step(model, data, optimizer))
        assert recorder.diagnosis() != expected
        return checks(facts)

    with gatdiag.watch(model, tmp_path / "run", every=1) as recorder:
        for _ in range(3):
            recorder.log(loss=train_step(model, data, optimizer))
        expected = recorder.diagnosis()
        monkeypatch.setattr(gatdiag.diagnosis, "run_checks", after_more_steps)
        assert recorder.diagnosis() == expected


def test_it_knows_the_last_step_before_the_next_one_begins(tmp_path):
    torch.manual_seed(0)
    model, data = Gat(), graph()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e30)
    with gatdiag.watch(model, tmp_path / "run", laws=False, warn=False) as recorder:
        for _ in range(2):
            recorder.log(loss=train_step(model, data, optimizer))
        assert recorder.diagnosis().verdict.code == "lr-too-large"


def test_a_resumed_run_is_judged_as_a_whole_and_without_what_was_superseded(tmp_path, recwarn):
    warnings.simplefilter("always")
    train(tmp_path / "run", lr=1e30, steps=6)
    _, recorder = train(tmp_path / "run", resume=1, steps=12)
    assert recorder.diagnosis().verdict.code == "undetermined"
    assert gatdiag.load(tmp_path / "run").meta["first_non_finite"] is None
    assert len([one for one in recwarn if issubclass(one.category, TrainingWarning)]) == 1


def test_without_a_recording_there_is_nothing_to_say(tmp_path):
    recorder = gatdiag.watch(Gat(), tmp_path / "run", enabled=False)
    assert recorder.diagnosis().verdict.code == "undetermined"
    assert recorder.diagnosis().verdict.text == "Nothing was recorded."


def test_what_keeps_it_from_an_answer_is_one_warning(tmp_path):
    model = Gat()
    with gatdiag.watch(model, tmp_path / "run") as recorder:
        train_step(model, graph(), sgd(model))
        (tmp_path / "run" / "meta.json").write_text("{")
        with pytest.warns(RecordingWarning, match="the diagnosis"):
            assert recorder.diagnosis().findings == ()
        assert recorder.diagnosis().findings == ()
