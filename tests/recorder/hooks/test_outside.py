"""What a hook computes is exact, and no mode of the user sees it."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import gatdiag
from gatdiag.recorder.hooks.outside import Outside, is_measurable_call
from tests.recorder.loops import Gat, graph, loss_of, sgd

X = torch.randn(7, 7, generator=torch.Generator().manual_seed(0))


class SeenFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function.__name__)
        return function(*args, **(kwargs or {}))


class SeenOperations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_modes_see_nothing_inside_and_everything_afterwards():
    functions, operations = SeenFunctions(), SeenOperations()
    with functions, operations, FlopCounterMode(display=False) as flops:
        X.mm(X)
        before = flops.get_total_flops(), [*functions.seen], [*operations.seen]
        with Outside():
            X.mm(X).sum().item()
            with Outside():
                torch.ones(3).tolist()
            X.mm(X)
        assert (flops.get_total_flops(), functions.seen, operations.seen) == before
        X.mm(X)
        assert flops.get_total_flops() == 2 * before[0] > 0
    assert operations.seen == ["aten.mm.default"] * 2
    assert functions.seen.count("mm") == 2


def test_modes_are_entered_again_in_their_order_after_an_error():
    outer, inner = SeenOperations(), SeenOperations()
    with outer, inner:
        with pytest.raises(ZeroDivisionError), Outside():
            raise ZeroDivisionError
        X + X
    assert inner.seen == ["aten.add.Tensor"]
    assert outer.seen == ["aten.add.Tensor"]
    X + X
    assert len(inner.seen) == 1


@pytest.mark.parametrize("options", [{"tracing_mode": "real"}, {"pre_dispatch": True}])
def test_a_graph_that_is_traced_has_the_users_operations_only(options):
    def plain(x):
        return x.mm(x).relu()

    def with_ours(x):
        y = x.mm(x)
        with Outside():
            assert y.square().sum().item() > 0
        return y.relu()

    def operations(function):
        return [node.target for node in make_fx(function, **options)(X).graph.nodes]

    assert operations(with_ours) == operations(plain)


def test_autocast_does_not_round_and_is_on_again_afterwards():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with Outside():
            inside = X.mm(X)
        assert X.mm(X).dtype is torch.bfloat16
    assert torch.equal(inside, X.mm(X))


def test_a_default_device_does_not_move_what_is_created():
    with torch.device("meta"):
        with Outside():
            assert torch.zeros(2).device.type == torch.tensor(1.0).device.type == "cpu"
        assert torch.zeros(2).device.type == "meta"


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_gradients_are_off_inside_and_as_before_afterwards(mode):
    weight = torch.ones(2, requires_grad=True)
    with mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        with Outside():
            found = weight * 2
            assert not found.requires_grad
            assert not found.is_inference()
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_calls_whose_numbers_cannot_be_read_are_recognized():
    seen = []

    def note(x):
        seen.append(is_measurable_call())
        return x * 2

    note(X)
    torch.jit.trace(note, X, check_trace=False)
    make_fx(note)(X)
    make_fx(note, tracing_mode="fake")(X)
    torch.vmap(note)(X)
    torch.func.grad(lambda x: note(x).sum())(X)
    with FakeTensorMode():
        note(X.shape)
    torch.compiler.is_compiling()
    note(X)
    assert seen == [True, False, False, False, False, False, False, True]


# --- of recorders -----------------------------------------------------------------------------------------------------


def loop(folder, around, before=lambda: None, *, enabled=True):
    """Train four steps, each in the context that `around` makes; return the losses, the run and the contexts."""
    torch.manual_seed(0)
    model, data, contexts = Gat(layers=2), graph(), []
    optimizer = sgd(model)
    with gatdiag.watch(model, folder, metrics="full", every=1, enabled=enabled):
        losses = []
        for _ in range(4):
            before()
            with around() as context:
                loss = loss_of(model, data)
                loss.backward()
                optimizer.step()
            optimizer.zero_grad()
            contexts.append(context)
            losses.append(loss.item())
    return losses, gatdiag.load(folder) if enabled else None, contexts


def columns(run):
    return {
        (table, name): column.to_numpy()
        for table in ("layers", "parameters", "neurons")
        for name, column in getattr(run, table).items()
    }


def assert_same_rows(run, other):
    one, another = columns(run), columns(other)
    assert one.keys() == another.keys()
    for key, values in one.items():
        assert [*map(str, values)] == [*map(str, another[key])], key


def test_flops_of_a_watched_step_are_those_of_the_step(tmp_path):
    def count():
        return FlopCounterMode(display=False)

    losses, run, counters = loop(tmp_path / "on", count)
    bare, _, expected = loop(tmp_path / "off", count, enabled=False)
    assert losses == bare
    flops = [counter.get_total_flops() for counter in counters]
    assert flops[1:] == [counter.get_total_flops() for counter in expected[1:]]
    assert flops[1] > 0
    assert_same_rows(run, loop(tmp_path / "plain", lambda: torch.enable_grad())[1])


def test_operations_that_a_mode_sees_are_those_of_the_step(tmp_path):
    losses, run, modes = loop(tmp_path / "on", SeenOperations)
    bare, _, expected = loop(tmp_path / "off", SeenOperations, enabled=False)
    assert losses == bare
    assert [mode.seen for mode in modes[1:]] == [mode.seen for mode in expected[1:]]
    assert len(run.layers)


def test_operations_that_a_mode_sees_in_the_first_step_are_those_of_the_step(tmp_path):
    _, _, modes = loop(tmp_path / "on", SeenOperations)
    _, _, expected = loop(tmp_path / "off", SeenOperations, enabled=False)
    assert modes[0].seen == expected[0].seen


def test_a_default_type_or_device_of_the_training_changes_no_row(tmp_path):
    _, plain, _ = loop(tmp_path / "plain", torch.enable_grad)
    for name, dtype in (("half", torch.float16), ("double", torch.float64)):
        try:
            _, run, _ = loop(tmp_path / name, torch.enable_grad, lambda dtype=dtype: torch.set_default_dtype(dtype))
        finally:
            torch.set_default_dtype(torch.float32)
        assert_same_rows(run, plain)
    _, run, _ = loop(tmp_path / "device", lambda: torch.device("cpu"))
    assert_same_rows(run, plain)


@pytest.mark.parametrize("options", [{"tracing_mode": "real"}, {"tracing_mode": "fake"}, {"pre_dispatch": True}])
def test_a_graph_made_inside_of_a_training_is_that_of_the_model_and_no_pass_of_the_training(tmp_path, options):
    def operations(model):
        called = copy.deepcopy(model)
        parameters = dict(called.named_parameters())

        def call(parameters, x, edge_index):
            return torch.func.functional_call(model, parameters, (x, edge_index))

        return [str(node.target) for node in make_fx(call, **options)(parameters, data.x, data.edge_index).graph.nodes]

    torch.manual_seed(0)
    model, data = Gat(layers=2), graph()
    optimizer = sgd(model)
    expected = operations(model)
    with gatdiag.watch(model, tmp_path / "run", every=1):
        for _ in range(3):
            loss_of(model, data).backward()
            assert operations(model) == expected
            optimizer.step()
            assert operations(model) == expected
            optimizer.zero_grad()
    run = gatdiag.load(tmp_path / "run")
    assert len(run.steps) == 3
    assert len(run.layers) == 6
    assert run.layers.gradient_mu.notna().all()


def test_a_traced_whole_step_has_no_operation_of_ours(tmp_path):
    def step(x):
        loss = model(x).square().sum()
        loss.backward()
        found = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        return found

    def operations():
        return [str(node.target) for node in make_fx(step)(x).graph.nodes]

    model, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)), torch.randn(5, 3)
    expected, optimizer = operations(), sgd(model)
    with gatdiag.watch(model, tmp_path / "run", every=1):
        for _ in range(2):
            assert operations() == expected
            model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(gatdiag.load(tmp_path / "run").steps) == 2
