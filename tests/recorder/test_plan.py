"""Replaced parameters end the recording of the model; laws that the gradients violate are dropped, with a warning."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch_geometric.nn import GATv2Conv

import gatdiag
from gatdiag.recorder import RecordingWarning
from tests.recorder.loops import Gat, graph, loss_of, sgd, train

NAME = "convs.1.lin_l.weight"


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def assigned(model):
    """As `load_state_dict(assign=True)` does."""
    state = {name: (tensor * 1.5).clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def watched(folder, model, replace, weight_of=lambda model: model.get_parameter(NAME), *, renews=True):
    """The run, and the true norms of a weight before each step."""
    data, optimizer, norms = graph(), sgd(model), []
    with gatdiag.watch(model, folder):
        for step in range(5):
            if step == 2:
                replace(model)
                optimizer = sgd(model) if renews else optimizer
            loss_of(model, data).backward()
            norms.append(weight_of(model).detach().double().norm().item())
            optimizer.step()
            optimizer.zero_grad()
    return gatdiag.load(folder), norms


def series(run, column, name=NAME):
    return run.parameters[run.parameters.parameter == name].set_index("step")[column]


def wider(model):
    model.convs[1] = GATv2Conv(6, 6, heads=2, concat=False)


@pytest.mark.parametrize("replace", [assigned, wider])
def test_replaced_parameters_end_the_recording_of_the_model(tmp_path, replace):
    model = Gat()
    message = r"before step 2 because convs\.\d\..* was replaced; call gatdiag.watch again$"
    with pytest.warns(RecordingWarning, match=message):
        run, norms = watched(tmp_path / "run", model, replace)
    assert run.status == "finished"
    assert series(run, "norm").tolist() == pytest.approx(norms[:2], rel=1e-5)
    assert run.neurons.step.max() == run.layers.step.max() == 1


def test_modules_without_parameters_may_come_and_go(tmp_path, recwarn):
    watched(tmp_path / "run", Gat(), lambda model: model.add_module("extra", nn.ReLU()))
    assert not recwarn.list


def test_a_parameter_that_is_only_renamed_goes_on(tmp_path):
    def pruned(model):
        prune.random_unstructured(model.convs[1].lin_l, "weight", 0.5)

    model = Gat()
    weight = model.get_parameter(NAME)
    run, norms = watched(tmp_path / "run", model, pruned, lambda _: weight, renews=False)
    assert series(run, "norm").tolist() == pytest.approx(norms, rel=1e-5)
    assert not [note for note in run.meta["notes"] if "replaced" in note]


def test_parameters_that_are_lent_for_one_call_are_not_taken_for_the_models(tmp_path):
    model, data = Gat(), graph()
    optimizer, norms = sgd(model), []
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(3):
            lent = {name: 1.1 * parameter for name, parameter in model.named_parameters()}
            output = torch.func.functional_call(model, lent, (data.x, data.edge_index))
            nn.functional.cross_entropy(output, data.y).backward()
            norms.append(model.get_parameter(NAME).detach().double().norm().item())
            optimizer.step()
            optimizer.zero_grad()
    run = gatdiag.load(tmp_path / "run")
    assert series(run, "norm").tolist() == pytest.approx(norms, rel=1e-5)
    assert (series(run, "gradient_norm") > 0).all()
    assert "no conservation law" in run.meta["laws"]["error"]  # of the lent ones are others


# --- laws ------------------------------------------------------------------------------------------------------------

MODEL_HAS = 12


def with_a_penalty_on_all(model, data):
    return loss_of(model, data) + 0.01 * sum(p.abs().sum() for p in model.parameters())


def with_a_penalty_on_the_last(model, data):
    return loss_of(model, data) + 0.1 * model.convs[2].lin_l.weight.square().sum()


def with_a_second_use(model, data):
    return loss_of(model, data) + F.linear(data.x, model.convs[0].lin_l.weight).square().mean()


def with_a_reversed_gradient(model, data):
    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return -gradient

    handle = model.convs[1].register_forward_hook(lambda module, args, out: Reversed.apply(out))
    try:
        return loss_of(model, data)
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("loss_of", "left"),
    [
        (with_a_penalty_on_all, 0),
        (with_a_penalty_on_the_last, 6),  # the laws of the first layer
        (with_a_second_use, 6),
        (with_a_reversed_gradient, 6 + 2),  # two units behind it are dead, so their laws hold
    ],
)
def test_laws_that_training_disobeys_are_not_recorded(tmp_path, loss_of, left):
    with pytest.warns(RecordingWarning, match="conservation laws are not recorded: delta is up to .* of its terms"):
        run = train(tmp_path / "run", steps=3, loss_of=loss_of).run
    assert len(run.laws) == left
    assert len(run.neurons) == 3 * left
    assert not left or run.neurons.delta.abs().max() < 1e-6
    dropped = [item["what"] for item in run.meta["laws"]["excluded"] if "of its terms in training" in item["reason"]]
    assert len(dropped) == MODEL_HAS - left


@pytest.mark.parametrize(
    "change",
    [
        lambda step, model: nn.utils.clip_grad_value_(model.parameters(), 1e-3),
        lambda step, model: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
        lambda step, model: [p.grad.add_(torch.randn_like(p)) for p in model.parameters()],
    ],
)
def test_gradients_that_are_changed_after_the_backward_pass_say_nothing_about_laws(tmp_path, change):
    run = train(tmp_path / "run", steps=3, before_step=change).run
    assert len(run.laws) == MODEL_HAS
    assert not run.meta["notes"]


def test_parameters_without_a_gradient_say_nothing_either(tmp_path):
    model, data = Gat(), graph()
    half = list(model.convs[1].parameters())
    optimizer = torch.optim.SGD(half, lr=0.1)
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(2):
            loss_of(model, data).backward(inputs=half)
            optimizer.step()
            optimizer.zero_grad()
    assert len(gatdiag.load(tmp_path / "run").laws) == MODEL_HAS


def test_rounding_in_low_precision_disproves_nothing(tmp_path):
    def loss_in_bfloat16(model, data):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_of(model, data)

    run = train(tmp_path / "run", steps=3, loss_of=loss_in_bfloat16).run
    assert len(run.laws) == MODEL_HAS
    assert run.neurons.delta.abs().max() > 1e-6


def test_rounding_of_gradients_that_underflow_disproves_nothing(tmp_path):
    run = train(tmp_path / "run", steps=2, loss_of=lambda model, data: loss_of(model, data) * 1e-42).run
    assert len(run.laws) == MODEL_HAS
