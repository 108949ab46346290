"""A time limit is enforced at the next check, and leaves nothing behind."""

import pytest
import torch
from torch import nn

from gatdiag.errors import TimeLimitError
from gatdiag.structure import deadline
from gatdiag.structure.deadline import check_time, time_limit


def test_time_is_over_at_the_next_check_and_no_longer_afterwards():
    with pytest.raises(TimeLimitError, match=r"0\.5 s"), time_limit(0.5):
        check_time()
        deadline._CURRENT.get()._computing_start -= 1
        check_time()
    check_time()


def test_time_that_others_take_does_not_count():
    with time_limit(0.5):
        deadline._CURRENT.get()._start -= 3
        check_time()


def test_a_module_that_is_called_is_a_check():
    hooks = dict(torch.nn.modules.module._global_forward_pre_hooks)
    with pytest.raises(TimeLimitError), time_limit(0):
        nn.ReLU()(torch.ones(1))
    nn.ReLU()(torch.ones(1))
    assert dict(torch.nn.modules.module._global_forward_pre_hooks) == hooks


def test_who_waits_is_told_once():
    told = []
    with time_limit(None, told.append):
        check_time()
        deadline._CURRENT.get()._start -= 3
        check_time()
        check_time()

    assert [round(seconds) for seconds in told] == [3]


def test_a_limit_inside_another_ends_with_it():
    with time_limit(None):
        with pytest.raises(TimeLimitError), time_limit(0):
            check_time()
        check_time()
