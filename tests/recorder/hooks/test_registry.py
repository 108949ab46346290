"""Hooks come and go while other threads are in the middle of modules and steps."""

import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from gatdiag.recorder.hooks.registry import listen_to_modules, listen_to_optimizers, stop_listening

TABLES = (
    module_hooks._global_forward_pre_hooks,
    module_hooks._global_forward_hooks,
    module_hooks._global_forward_hooks_with_kwargs,
    module_hooks._global_forward_hooks_always_called,
    optimizer_hooks._global_optimizer_pre_hooks,
    optimizer_hooks._global_optimizer_post_hooks,
)


class Listener:
    """Notes what it hears, and may wait in the middle of it."""

    def __init__(self, wait_at=None):
        self.heard, self.wait_at = [], wait_at
        self.is_waiting, self.may_go_on = threading.Event(), threading.Event()

    def note(self, what, *given):
        self.heard.append((what, *given))
        if what == self.wait_at:
            self.is_waiting.set()
            assert self.may_go_on.wait(10)

    def on_module_start(self, module, args):
        self.note("start", module)

    def on_module_end(self, module, args, *rest):
        self.note("end", module, len(rest))

    def before_optimizer(self, optimizer, args, kwargs):
        self.note("before", optimizer)

    def after_optimizer(self, optimizer, args, kwargs):
        self.note("after", optimizer)

    def listen(self):
        listen_to_modules(self)
        listen_to_optimizers(self)


def sizes():
    return [len(table) for table in TABLES]


def make():
    model = nn.Linear(2, 2)
    model.weight.grad = torch.ones(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def run(model, optimizer):
    model(torch.ones(1, 2))
    optimizer.step()


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = sizes()
    yield
    assert sizes() == before


def test_each_listener_hears_everything_until_it_stops():
    model, optimizer = make()
    one, other = Listener(), Listener()
    one.listen()
    other.listen()
    one.listen()  # again
    run(model, optimizer)
    expected = [("start", model), ("end", model, 2), ("before", optimizer), ("after", optimizer)]
    assert one.heard == other.heard == expected
    stop_listening(one)
    stop_listening(one)
    run(model, optimizer)
    assert (one.heard, other.heard) == (expected, 2 * expected)
    stop_listening(other)


def test_several_listeners_are_one_hook_of_each_table():
    before, listeners = sizes(), [Listener() for _ in range(3)]
    for listener in listeners:
        listener.listen()
        assert sizes() == [count + 1 for count in before]
    for listener in listeners:
        assert sizes() == [count + 1 for count in before]
        stop_listening(listener)


def test_a_failed_call_ends_too():
    class Fails(nn.Module):
        def forward(self, x):
            raise ZeroDivisionError

    model, listener = Fails(), Listener()
    listen_to_modules(listener)
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(1))
    stop_listening(listener)
    assert listener.heard == [("start", model), ("end", model, 1)]


def test_arguments_of_a_step_can_be_replaced_by_several_listeners():
    class Wraps(Listener):
        def before_optimizer(self, optimizer, args, kwargs):
            closure = kwargs["closure"]

            def wrapped():
                self.heard.append("evaluated")
                return closure()

            return args, {"closure": wrapped}

    _, optimizer = make()
    listeners = Wraps(), Listener(), Wraps()
    for listener in listeners:
        listen_to_optimizers(listener)
    assert optimizer.step(closure=lambda: 3.0) == 3.0
    for listener in listeners:
        stop_listening(listener)
    assert [listener.heard.count("evaluated") for listener in listeners] == [1, 0, 1]


@pytest.mark.parametrize("at", ["start", "end", "before", "after"])
@pytest.mark.parametrize("happens", ["begin", "stop"])
def test_others_begin_and_stop_while_a_thread_is_inside_of_a_hook(at, happens):
    """Torch iterates over its hooks then; removing one of two raises in that thread."""
    errors, (model, optimizer) = [], make()
    inside, other = Listener(wait_at=at), Listener()
    inside.listen()
    if happens == "stop":
        other.listen()

    def train():
        try:
            run(model, optimizer)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    assert inside.is_waiting.wait(10)
    if happens == "begin":
        other.listen()
        stop_listening(other)
    else:
        stop_listening(other)
        stop_listening(inside)
    inside.may_go_on.set()
    thread.join()
    stop_listening(inside)
    assert errors == []


def test_a_hook_among_those_of_the_user_stays_while_another_thread_is_inside_of_these():
    _, optimizer = make()
    users, ours = Listener(wait_at="before"), Listener()
    handle = optimizer_hooks.register_optimizer_step_pre_hook(users.before_optimizer)
    before = sizes()
    listen_to_optimizers(ours)
    errors = []

    def step():
        try:
            optimizer.step()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    assert users.is_waiting.wait(10)
    stop_listening(ours)
    users.may_go_on.set()
    thread.join()
    assert errors == []
    assert ours.heard == []  # the hook is without effect
    handle.remove()
    assert sum(sizes()) == sum(before)  # one less of the user, one more of ours
    stop_listening(ours)  # at the next occasion it goes


def test_threads_that_begin_and_stop_all_the_time_lose_nothing():
    interval, errors = sys.getswitchinterval(), []
    sys.setswitchinterval(1e-5)

    def work():
        try:
            model, optimizer = make()
            for _ in range(150):
                listener = Listener()
                listener.listen()
                run(model, optimizer)
                stop_listening(listener)
                own = [heard[0] for heard in listener.heard if heard[1] in (model, optimizer)]
                assert own == ["start", "end", "before", "after"]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert errors == []
