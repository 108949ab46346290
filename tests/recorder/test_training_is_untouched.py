"""Training is bit for bit the same as without gatdiag, and no hook is left behind."""

import copy
import gc
import io
import pickle
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

import gatdiag
from gatdiag.recorder.hooks import modules
from tests.recorder.loops import Gat, graph, loss_of, sgd, train, train_step

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def hooks():
    tables = [
        module_hooks._global_forward_hooks,
        module_hooks._global_forward_pre_hooks,
        module_hooks._global_forward_hooks_with_kwargs,
        module_hooks._global_forward_hooks_always_called,
        module_hooks._global_backward_hooks,
        optimizer_hooks._global_optimizer_pre_hooks,
        optimizer_hooks._global_optimizer_post_hooks,
    ]
    return [dict(table) for table in tables]


def planted(model):
    """All hooks and attributes of a model's modules and parameters."""
    return [
        (sorted(vars(module)), [len(table) for name, table in vars(module).items() if name.endswith("_hooks")])
        for module in model.modules()
    ] + [(parameter._backward_hooks, parameter.grad_fn, sorted(vars(parameter))) for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("optimizer", "metrics", "dropout", "steps"),
    [("sgd", "standard", 0.5, 110), ("adam", "full", 0.0, 25)],
)
def test_weights_losses_and_random_state_are_those_of_the_bare_loop(tmp_path, optimizer, metrics, dropout, steps):
    options = {
        "steps": steps,
        "make_model": lambda: Gat(dropout=dropout),
        "make_optimizer": OPTIMIZERS[optimizer],
    }
    bare = train(**options)
    state = torch.get_rng_state()
    watched = train(tmp_path / "run", metrics=metrics, every=1, **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert watched.losses == bare.losses
    for one, other in zip(watched.model.parameters(), bare.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert watched.run.parameters.step.nunique() == steps


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_number_types_are_untouched_as_well(tmp_path, dtype):
    def loop(folder):
        torch.manual_seed(0)
        model, data = Gat().to(dtype), graph()
        data.x = data.x.to(dtype)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        with gatdiag.watch(model, folder, metrics="full", enabled=folder.name == "on"):
            losses = [train_step(model, data, optimizer).item() for _ in range(20)]
        return losses, list(model.parameters())

    (bare, one), (watched, other) = loop(tmp_path / "off"), loop(tmp_path / "on")
    assert watched == bare
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_nothing_is_planted_on_the_model_while_it_is_watched(tmp_path):
    model, data = Gat(), graph()
    before = planted(model)
    with gatdiag.watch(model, tmp_path / "run") as recorder:
        assert planted(model) == before
        loss_of(model, data).backward()
        assert [len(parameter._backward_hooks or ()) for parameter in model.parameters()] == [0] * len(
            list(model.parameters())
        )
        recorder.log(loss=1.0)
        model.zero_grad()
        assert planted(model) == before
    assert planted(model) == before


class _Stop(BaseException):
    pass


@pytest.mark.parametrize(
    ("ending", "place"),
    [
        (None, "loop"),
        *((ValueError("mine"), place) for place in ("loop", "forward", "backward", "step")),
        *((KeyboardInterrupt(), place) for place in ("forward", "backward", "step")),
        (_Stop(), "loop"),
        (SystemExit(3), "backward"),
    ],
)
def test_hooks_are_gone_and_exceptions_are_the_users_own(tmp_path, ending, place):  # noqa: C901
    before = hooks()

    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ending

    class Model(Gat):
        def forward(self, x, edge_index):
            x = super().forward(x, edge_index)
            if armed and place == "forward":
                raise ending
            return Raises.apply(x) if armed and place == "backward" else x

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            if armed and place == "step":
                raise ending
            return super().step(closure)

    armed = False
    model, data = Model(), graph()
    optimizer = Optimizer(model.parameters(), lr=0.1)
    caught = None
    try:
        with gatdiag.watch(model, tmp_path / "run"):
            for step in range(3):
                armed = step == 2 and ending is not None
                train_step(model, data, optimizer)
                if armed and place == "loop":
                    raise ending
    except BaseException as error:
        caught = error
    assert caught is ending
    assert hooks() == before
    run = gatdiag.load(tmp_path / "run")
    assert len(run.steps) >= 2
    assert run.status == {type(None): "finished", KeyboardInterrupt: "interrupted"}.get(type(ending), "failed")


def test_hooks_are_gone_after_an_interrupt_inside_an_attention_layer(tmp_path, monkeypatch):
    model = Gat()

    def message(**_):
        assert model.convs[1]._edge_update_forward_hooks
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), gatdiag.watch(model, tmp_path / "run"):
        monkeypatch.setattr(model.convs[1], "message", message)
        loss_of(model, graph())
    assert all(not conv._edge_update_forward_hooks for conv in model.convs)


def test_a_watched_model_can_be_saved_copied_and_pickled_and_its_copies_write_nothing(tmp_path):
    model, data = Gat(), graph()
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run"):
        train_step(model, data, optimizer)
        copied = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
        pickled = pickle.loads(pickle.dumps(model))
        for twin in (copied, pickled):
            other = torch.optim.SGD(twin.parameters(), lr=0.1)
            for _ in range(5):
                train_step(twin, data, other)
        train_step(model, data, optimizer)
    assert b"gatdiag" not in file.getvalue()
    assert b"gatdiag" not in pickle.dumps(model)
    assert gatdiag.load(tmp_path / "run").steps.step.tolist() == [0, 1]


def test_two_models_are_watched_side_by_side_and_one_after_the_other(tmp_path):
    models, data = [Gat(), Gat()], graph()
    optimizers = [sgd(model) for model in models]
    with gatdiag.watch(models[0], tmp_path / "a"), gatdiag.watch(models[1], tmp_path / "b"):
        for step in range(6):
            for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                if number == 0 or step % 2 == 0:
                    train_step(model, data, optimizer)
    with gatdiag.watch(models[0], tmp_path / "c"):
        loss_of(models[0], data).backward()
        optimizers[0].step()
    assert [len(gatdiag.load(tmp_path / name).steps) for name in "abc"] == [6, 3, 1]


def test_warnings_may_be_errors(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filters = list(warnings.filters)
        train(tmp_path / "run", steps=2)
        assert warnings.filters == filters


def test_operations_in_place_on_outputs_are_allowed(tmp_path):
    class InPlace(Gat):
        def forward(self, x, edge_index):
            for conv in self.convs[:-1]:
                x = torch.relu_(conv(x, edge_index))
            return self.convs[-1](x, edge_index)

    in_place = train(tmp_path / "a", steps=3, make_model=InPlace)
    plain = train(tmp_path / "b", steps=3)
    assert in_place.losses == plain.losses
    for column in ("output_norm", "gradient_mu"):
        assert in_place.run.layers[column].tolist() == plain.run.layers[column].tolist()


def test_a_no_op_records_nothing(tmp_path, monkeypatch):
    before = hooks()
    with gatdiag.watch(Gat(), tmp_path / "off", enabled=False) as recorder:
        assert hooks() == before
        recorder.log(loss=1.0)
        with recorder.step():
            pass
    monkeypatch.setenv("GATDIAG_DISABLE", "1")
    with gatdiag.watch(Gat(), tmp_path / "off"):
        assert hooks() == before
    assert not (tmp_path / "off").exists()
    monkeypatch.setenv("GATDIAG_DISABLE", "0")
    with gatdiag.watch(Gat(), tmp_path / "on") as recorder:
        assert recorder.enabled


def test_an_interrupt_while_hooks_are_registered_leaves_none(tmp_path, monkeypatch):
    def interrupted(*args, **options):
        register(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(modules, "has_compiled", lambda: False)  # as other tests may have
    register, model, data = modules.listen_to_modules, Gat(), graph()
    before = hooks()
    with pytest.raises(KeyboardInterrupt), gatdiag.watch(model, tmp_path / "run", every=3):
        for step in range(4):
            train_step(model, data, sgd(model))
            if step == 1:  # the hooks are gone until the next recorded step
                monkeypatch.setattr(modules, "listen_to_modules", interrupted)
    assert hooks() == before


def test_hooks_of_the_user_see_the_users_passes_only(tmp_path):
    model, data, seen = Gat(), graph(), []
    model.convs[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(2):
            loss = loss_of(model, data) + seen[-1].square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(seen) == 2


def test_tensors_of_the_users_own_get_no_hooks(tmp_path):
    class Given(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 3))

        def forward(self):
            return self.weight

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.given, self.lin = Given(), nn.Linear(3, 2)

        def forward(self, x):
            return self.lin(self.given() + x)

    model, x = Model(), torch.randn(4, 3, requires_grad=True)
    optimizer = sgd(model)
    with gatdiag.watch(model, tmp_path / "run"):
        for _ in range(3):
            model(x).sum().backward()
            optimizer.step()
    assert not x._backward_hooks
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_a_trace_inside_sees_nothing_of_ours(tmp_path):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)
    optimizer = sgd(model)
    with warnings.catch_warnings(), gatdiag.watch(model, tmp_path / "run"):
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(model, x)
        model(x).sum().backward()
        optimizer.step()
        assert torch.equal(traced(x), model(x))
    assert len(gatdiag.load(tmp_path / "run").neurons) == 4


def test_what_a_loop_has_made_is_freed_when_it_returns(tmp_path):
    def loop(model):
        data, optimizer = graph(), sgd(model)
        train_step(model, data, optimizer)
        return weakref.ref(optimizer), weakref.ref(data.x)

    gc.disable()
    try:
        with gatdiag.watch(Gat(), tmp_path / "run") as recorder:
            left = loop(recorder._root)
            assert [one() for one in left] == [None, None]
    finally:
        gc.enable()
