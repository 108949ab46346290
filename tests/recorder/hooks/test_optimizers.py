"""What counts as a step, and which gradients and weights its rows contain."""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gatdiag
from gatdiag.errors import InputError
from gatdiag.recorder import RecordingWarning
from tests.recorder.loops import Gat, gradient_norm, graph, loss_of, sgd, train_step


def weight_norms(run, name="convs.0.lin_l.weight"):
    return run.parameters[run.parameters.parameter == name].norm.tolist()


def test_the_row_of_accumulated_passes_is_of_the_last_one(tmp_path):
    model, batches = Gat(), [graph(seed=seed) for seed in range(2)]
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run", laws=False):
        losses = [loss_of(model, batch) for batch in batches]
        torch.stack(losses).sum().backward()
        optimizer.step()
    twin = Gat()
    twin.load_state_dict(
        {k: torch.from_numpy(v) for k, v in gatdiag.load(tmp_path / "run").snapshot("initial").items()}
    )
    expected = twin.convs[0](batches[1].x, batches[1].edge_index).double().norm().item()
    assert gatdiag.load(tmp_path / "run").layers.output_norm[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("named", [False, True])
def test_a_closure_is_measured_where_it_was_first_evaluated(tmp_path, named):
    model, data = Gat(), graph()
    optimizer, expected, weights, values = sgd(model), [], [], []
    with gatdiag.watch(model, tmp_path / "run"):

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, data)
            loss.backward()
            expected.append(gradient_norm(model))
            weights.append(model.convs[0].lin_l.weight.detach().norm().item())
            return loss

        for _ in range(3):
            value = optimizer.step(closure=closure) if named else optimizer.step(closure)
            values += [value]
    run = gatdiag.load(tmp_path / "run")
    assert all(value.item() > 0 for value in values)
    assert run.steps.gradient_norm.tolist() == pytest.approx(expected, rel=1e-5)
    assert weight_norms(run) == pytest.approx(weights, rel=1e-5)
    assert (run.neurons.c - run.neurons.predicted_c).abs().max() < 1e-5


def test_an_optimizer_can_tell_which_closure_it_is_given(tmp_path):
    seen = []

    class Asks(torch.optim.SGD):
        def step(self, closure):
            seen.append((closure.__name__, closure.needs_hessian, closure.__self__, inspect.signature(closure)))
            return super().step(closure)

    class Loop:
        def evaluate(self, scale=1.0):
            loss = loss_of(model, data) * scale
            loss.backward()
            return loss

    Loop.evaluate.needs_hessian = True
    model, data, loop = Gat(), graph(), Loop()
    optimizer = Asks(model.parameters(), lr=0.1)
    with gatdiag.watch(model, tmp_path / "run", laws=False):
        optimizer.step(loop.evaluate)
        optimizer.step(closure=loop.evaluate)
    assert seen == [("evaluate", True, loop, inspect.signature(loop.evaluate))] * 2


def test_a_closure_may_take_arguments_and_a_model_is_no_closure(tmp_path):
    class Asking(torch.optim.SGD):
        def step(self, closure=None):
            if isinstance(closure, nn.Module):
                assert closure is model
                return super().step()
            closure(backward=True)
            return super().step()

    model, data = Gat(), graph()
    optimizer = Asking(model.parameters(), lr=0.1)

    def closure(backward):
        assert backward
        loss = loss_of(model, data)
        loss.backward()
        return loss

    with gatdiag.watch(model, tmp_path / "run"):
        optimizer.step(closure)
        loss_of(model, data).backward()
        optimizer.step(model)
    assert len(gatdiag.load(tmp_path / "run").steps) == 2


def test_gradients_from_elsewhere_have_no_norm_before_clipping(tmp_path):
    model, data = Gat(), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run", laws=False):
        for _ in range(3):
            gradients = torch.autograd.grad(loss_of(model, data), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
    steps = gatdiag.load(tmp_path / "run").steps
    assert steps.gradient_norm.gt(0).all()
    assert steps.gradient_norm_before_clipping.isna().all()


def test_an_optimizer_that_evaluates_often_makes_one_step(tmp_path):
    model, data = Gat(), graph()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
    with gatdiag.watch(model, tmp_path / "run"):

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, data)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
    run = gatdiag.load(tmp_path / "run")
    assert run.steps.step.tolist() == [0, 1, 2]
    assert run.neurons.predicted_c.isna().all()


@pytest.mark.parametrize("calls_parts", [False, True])
def test_rows_of_layers_are_of_the_first_evaluation_of_a_step(tmp_path, calls_parts):
    model, data, outputs = Gat(layers=2), graph(), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure():
        optimizer.zero_grad()
        if calls_parts:
            outputs.append(model.convs[1](F.relu(model.convs[0](data.x, data.edge_index)), data.edge_index))
        else:
            outputs.append(model(data.x, data.edge_index))
        loss = F.cross_entropy(outputs[-1], data.y)
        loss.backward()
        return loss

    expected = []
    with gatdiag.watch(model, tmp_path / "run", metrics="full", every=1):
        for _ in range(3):
            outputs.clear()
            optimizer.step(closure)
            assert len(outputs) > 1
            expected.append(outputs[0].norm().item())
    run = gatdiag.load(tmp_path / "run")
    assert run.layers[run.layers.layer == "convs.1"].output_norm.tolist() == pytest.approx(expected, rel=1e-5)
    assert run.layers.attention_entropy.notna().all()
    assert not any("several backward passes" in note for note in run.meta["notes"])


def test_only_the_optimizers_named_count(tmp_path):
    model, data = Gat(), graph()
    counted, other = sgd(model), sgd(model)
    with gatdiag.watch(model, tmp_path / "run", optimizer=counted, laws=False):
        for _ in range(3):
            train_step(model, data, other)
            train_step(model, data, counted)
    assert len(gatdiag.load(tmp_path / "run").steps) == 3
    with pytest.raises(InputError, match=r"expects a torch\.optim\.Optimizer or several, got dict"):
        gatdiag.watch(model, tmp_path / "other", optimizer=[{}])


def test_an_optimizer_that_wraps_another_makes_one_step(tmp_path):
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, inner):
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None):
            self.inner.step()
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter.mul_(0.5)

    model, data = Gat(), graph()
    optimizer = Lookahead(sgd(model))
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(3):
            train_step(model, data, optimizer)
    run = gatdiag.load(tmp_path / "run")
    assert run.steps.step.tolist() == [0, 1, 2]
    weights = run.parameters[run.parameters.role == "feature weight"]
    assert weights.update_ratio.between(0.4, 0.6).all()


@pytest.mark.parametrize("as_context", [False, True])
def test_a_step_by_hand(tmp_path, as_context):
    model, data = Gat(), graph()
    gradients, moved = [], []
    with gatdiag.watch(model, tmp_path / "run") as recorder:

        def update():
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad

        for step in range(3):
            model.zero_grad()
            loss = loss_of(model, data)
            loss.backward()
            gradients.append(gradient_norm(model))
            before = model.convs[0].lin_l.weight.detach().clone()
            if as_context:
                with recorder.step():
                    update()
            else:
                recorder.step()
                update()
            moved.append(((model.convs[0].lin_l.weight - before).norm() / before.norm()).item())
            recorder.log(loss=step)
    run = gatdiag.load(tmp_path / "run")
    assert run.steps.gradient_norm.tolist() == pytest.approx(gradients, rel=1e-5)
    ratios = run.parameters[run.parameters.parameter == "convs.0.lin_l.weight"].update_ratio
    assert ratios.tolist() == pytest.approx(moved, rel=1e-4)
    assert run.steps.loss.tolist() == [0, 1, 2]


def test_learning_rates_of_all_groups(tmp_path):
    model, data = Gat(), graph()
    groups = [{"params": conv.parameters(), "lr": 0.1 * (number + 1)} for number, conv in enumerate(model.convs)]
    optimizer = torch.optim.SGD(groups)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with gatdiag.watch(model, tmp_path / "run", laws=False):
        for _ in range(3):
            train_step(model, data, optimizer)
            schedule.step()
    steps = gatdiag.load(tmp_path / "run").steps
    for number, name in enumerate(("learning_rate", "learning_rate_1", "learning_rate_2")):
        assert steps[name].tolist() == pytest.approx([0.1 * (number + 1) * 0.5**step for step in range(3)])
    settings = gatdiag.load(tmp_path / "run").meta["optimizers"]
    assert [group["lr"] for group in settings[0]["groups"]] == pytest.approx([0.1, 0.2, 0.3])
    assert settings[0]["class"] == "SGD"
    assert settings[0]["groups"][1]["parameters"][0] == "convs.1.att"


def test_logged_values_belong_to_the_step_they_are_about(tmp_path):
    model, data = Gat(), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run", every=2, laws=False) as recorder:
        recorder.log(start=1.0)
        for step in range(4):
            loss = loss_of(model, data)
            recorder.log(before_backward=step)
            loss.backward()
            recorder.log(before_step=torch.tensor(step))
            optimizer.step()
            optimizer.zero_grad()
            recorder.log(after_step=torch.tensor([float(step)]))
            model.eval()
            model(data.x, data.edge_index)  # an evaluation that forgot no_grad
            recorder.log(evaluation=step)
            model.train()
    steps = gatdiag.load(tmp_path / "run").steps
    assert steps.step.tolist() == [0, 1, 2, 3]
    for name in ("before_backward", "before_step", "after_step", "evaluation"):
        assert steps[name].tolist() == [0, 1, 2, 3], name
    assert steps.start.notna().tolist() == [True, False, False, False]
    assert steps.gradient_norm.notna().tolist() == [True, False, True, False]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("every", [1, 3])
def test_two_losses_of_one_forward_pass_make_two_steps(tmp_path, shared, every):
    """The second step has the gradients of the second loss, and no rows of layers: its outputs have other weights."""
    body, heads, x = nn.Linear(4, 5), [nn.Linear(5, 2), nn.Linear(5, 3)], torch.randn(6, 4)
    model = nn.ModuleList([body, *heads])
    first, second = sgd(heads[0]), sgd(nn.ModuleList([body, heads[1]]))
    optimizers = [first, second]  # shared: the second optimizer's parameters get gradients of the first loss, too
    expected, moved = [], []
    with gatdiag.watch(model, tmp_path / "run", every=every) as recorder:
        for _ in range(3):
            hidden = body(x).tanh()
            losses = [head(hidden if shared else hidden.detach()).square().sum() for head in heads]
            for loss, optimizer in zip(losses, optimizers, strict=True):
                model.zero_grad()
                loss.backward(retain_graph=True)
                expected.append(gradient_norm(model))
                before = heads[1].weight.detach().clone()
                optimizer.step()
                moved.append(not torch.equal(before, heads[1].weight))
                recorder.log(loss=loss)
    run = gatdiag.load(tmp_path / "run")
    recorded = range(0, 6, every)
    assert run.steps.step.tolist() == list(range(6))
    assert run.steps.gradient_norm.dropna().tolist() == pytest.approx([expected[step] for step in recorded], rel=1e-5)
    ratios = run.parameters[run.parameters.parameter == "2.weight"].update_ratio
    assert [ratio > 0 for ratio in ratios] == [moved[step] for step in recorded]
    assert set(run.layers.step) == {step for step in recorded if step % 2 == 0}


def test_gradients_through_one_forward_pass_several_times_are_noted(tmp_path):
    model, data = Gat(), graph()
    optimizer, gradients = sgd(model), []
    with gatdiag.watch(model, tmp_path / "run", laws=False):
        for _ in range(2):
            output = model(data.x, data.edge_index)
            output.register_hook(lambda gradient: gradients.append(gradient.double().norm().item()))
            F.cross_entropy(output, data.y).backward(retain_graph=True)
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    run = gatdiag.load(tmp_path / "run")
    last = run.layers[run.layers.layer == "convs.2"]
    assert last.output_gradient_norm.tolist() == pytest.approx(gradients[1::2], rel=1e-5)
    assert len([note for note in run.meta["notes"] if "those of the last backward pass are recorded" in note]) == 1


def test_optimizers_inside_the_backward_pass_are_warned_of_and_not_recorded(tmp_path):
    """One optimizer for each parameter, which steps as soon as the gradient is accumulated."""
    torch.manual_seed(0)
    model, data = Gat(), graph()
    twin = copy.deepcopy(model)

    def fused(model):
        optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
        for _ in range(3):
            model.zero_grad()
            loss_of(model, data).backward()

    with pytest.warns(RecordingWarning, match="inside the backward pass") as caught:
        with gatdiag.watch(model, tmp_path / "run"):
            fused(model)
    assert len(caught) == 1
    assert len(gatdiag.load(tmp_path / "run").parameters) == 0
    fused(twin)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), twin.parameters(), strict=True))


def test_each_optimizer_is_described_from_its_first_step_on(tmp_path):
    model, data = Gat(), graph()

    def steps(optimizer, count):
        for _ in range(count):
            train_step(model, data, optimizer)

    with gatdiag.watch(model, tmp_path / "run"):
        steps(torch.optim.Adam(model.parameters(), lr=0.01), 2)
        for _ in range(3):
            steps(sgd(model), 1)
    with gatdiag.watch(model, tmp_path / "run", resume=True):
        steps(sgd(model), 1)
        steps(torch.optim.SGD(model.parameters(), lr=0.2), 1)
    described = gatdiag.load(tmp_path / "run").meta["optimizers"]
    known = [(entry["class"], entry["groups"][0]["lr"], entry["from_step"]) for entry in described]
    assert known == [("Adam", 0.01, 0), ("SGD", 0.1, 2), ("SGD", 0.2, 6)]


def test_what_is_logged_after_an_evaluation_in_training_mode_belongs_to_the_coming_step(tmp_path):
    model, data = Gat(), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run", laws=False) as recorder:
        for step in range(3):
            train_step(model, data, optimizer)
            recorder.log(before=step)
            with torch.no_grad():
                loss_of(model, data)
            recorder.log(without_gradients=step)
            loss_of(model, data)
            recorder.log(with_gradients=step)
    steps = gatdiag.load(tmp_path / "run").steps.set_index("step")
    assert steps.before.dropna().to_dict() == {0: 0, 1: 1, 2: 2}
    assert steps.without_gradients.dropna().to_dict() == {0: 0, 1: 1, 2: 2}
    assert steps.with_gradients.dropna().to_dict() == {1: 0, 2: 1, 3: 2}


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_unscales_and_the_step_it_skips_is_none(tmp_path, fused):
    model, data = Gat(), graph()
    optimizer, scaler = sgd(model, fused=fused), torch.amp.GradScaler("cpu", init_scale=1024.0)
    expected = []
    with gatdiag.watch(model, tmp_path / "run", scaler=scaler):
        for step in range(4):
            optimizer.zero_grad()
            loss = loss_of(model, data) * (float("inf") if step == 2 else 1.0)
            gradient = torch.autograd.grad(loss_of(model, data), list(model.parameters()))
            scaler.scale(loss).backward()
            expected.append(torch.stack([g.double().norm() for g in gradient]).norm().item())
            scaler.step(optimizer)
            scaler.update()
    run = gatdiag.load(tmp_path / "run")
    assert len(run.steps) == 3
    wanted = [expected[0], expected[1], expected[3]]
    assert run.steps.gradient_norm.tolist() == pytest.approx(wanted, rel=1e-4)
    assert run.steps.gradient_norm_before_clipping.tolist() == pytest.approx(wanted, rel=1e-4)
    assert run.layers.output_gradient_norm.max() < 1.0
    assert (run.neurons.c - run.neurons.predicted_c).abs().max() < 1e-5
    assert run.meta["first_non_finite"] is None


def test_a_loss_that_is_not_the_models_own(tmp_path):
    """The loss may use any layer's output; the layers after it get no gradient."""
    model, data = Gat(), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run"):
        model(data.x, data.edge_index)
        F.relu(model.convs[0](data.x, data.edge_index)).sum().backward()
        optimizer.step()
    layers = gatdiag.load(tmp_path / "run").layers.set_index("layer")
    assert layers.output_gradient_norm.notna().to_dict() == {"convs.0": True}


def test_a_step_made_by_hand_has_the_number_it_is_given_unless_it_was_there_already(tmp_path):
    model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    with pytest.warns(RecordingWarning, match="from 11, got 5") as caught:
        with gatdiag.watch(model, tmp_path / "run", laws=False) as recorder:
            for number in (3, None, 10, 5):
                model.zero_grad()
                model(x).sum().backward()
                recorder.step(number)
                with torch.no_grad():
                    model.weight -= 0.1
    assert len(caught) == 1
    run = gatdiag.load(tmp_path / "run")
    assert run.steps.step.tolist() == [3, 4, 10, 11]
    assert sorted(set(run.parameters.step)) == sorted(set(run.layers.step)) == [3, 4, 10, 11]
    assert (run.parameters.update_ratio[run.parameters.parameter == "weight"] > 0).all()


def test_the_loss_that_a_closure_returns_is_recorded_unless_the_loop_logs_one(tmp_path):
    """The recorded loss is that of the first evaluation, with the weights before the step."""

    def losses(folder, log):
        torch.manual_seed(0)
        model, data, first = Gat(), graph(), []
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        with gatdiag.watch(model, folder, laws=False) as recorder:
            for _ in range(3):
                seen = []

                def closure():
                    optimizer.zero_grad()
                    loss = loss_of(model, data)
                    loss.backward()
                    seen.append(loss.item())
                    return loss

                optimizer.step(closure)
                first.append(seen[0])
                if log:
                    recorder.log(loss=len(first))
        return gatdiag.load(folder).steps.loss.tolist(), first

    recorded, first = losses(tmp_path / "plain", log=False)
    assert recorded == pytest.approx(first, rel=1e-6)
    assert losses(tmp_path / "logged", log=True)[0] == [1, 2, 3]


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_is_noticed_by_the_step_it_makes(tmp_path, fused):
    """Gradients of layer outputs are unscaled even if the scaler was not passed to `watch`."""
    recorded = {}
    for scale in (1.0, 1024.0):
        torch.manual_seed(0)
        model, data = Gat(), graph()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale > 1)
        with gatdiag.watch(model, tmp_path / str(scale), laws=False):
            for _ in range(3):
                scaler.scale(loss_of(model, data)).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        recorded[scale] = gatdiag.load(tmp_path / str(scale)).layers.output_gradient_norm.to_numpy()
    assert recorded[1024.0] == pytest.approx(recorded[1.0], rel=1e-4)


def test_float16_without_a_scaler_is_told_once(tmp_path):
    model, data = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).half(), graph()
    optimizer = sgd(model)
    with pytest.warns(RecordingWarning, match="scaler=") as caught:
        with gatdiag.watch(model, tmp_path / "run", warn=False, laws=False):
            for _ in range(3):
                (1024 * F.cross_entropy(model(data.x.half()).float(), data.y)).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert len(caught) == 1
    assert any("scaler=" in note for note in gatdiag.load(tmp_path / "run").meta["notes"])


def test_parameters_that_are_added_to_an_optimizer_are_in_its_description(tmp_path):
    model, data = Gat(), graph()
    first, *rest = model.convs
    optimizer = torch.optim.SGD([parameter for conv in rest for parameter in conv.parameters()], lr=0.1)
    with gatdiag.watch(model, tmp_path / "run", every=1, laws=False):
        for step in range(4):
            if step == 2:
                optimizer.add_param_group({"params": list(first.parameters()), "lr": 0.05})
            train_step(model, data, optimizer)
    run = gatdiag.load(tmp_path / "run")
    (one,) = run.meta["optimizers"]
    assert [len(group["parameters"]) for group in one["groups"]] == [
        sum(1 for conv in rest for _ in conv.parameters()),
        sum(1 for _ in first.parameters()),
    ]
    assert (one["from_step"], [group["lr"] for group in one["groups"]]) == (0, [0.1, 0.05])
    assert run.steps.learning_rate.tolist() == [0.1] * 4
    assert run.steps.learning_rate_1[2:].tolist() == [0.05] * 2


def test_steps_of_an_explainer_are_no_steps_of_the_training(tmp_path, recwarn):
    from torch_geometric.explain import Explainer, GNNExplainer

    model, data = Gat(), graph()
    optimizer = sgd(model)
    explainer = Explainer(
        model,
        GNNExplainer(epochs=3),
        explanation_type="model",
        node_mask_type="attributes",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    with gatdiag.watch(model, tmp_path / "run", every=1, laws=False):
        for _ in range(2):
            train_step(model, data, optimizer)
            explainer(data.x, data.edge_index, index=0)
            model.train()
    run = gatdiag.load(tmp_path / "run")
    assert run.steps.step.tolist() == [0, 1]
    assert not [warning for warning in recwarn if "gatdiag" in str(warning.message)]
