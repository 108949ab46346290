import os

import pytest
import torch

from gatdiag.errors import InputError
from gatdiag.experiments.pool import mapped


def worked(number):
    return number, number**2, torch.get_num_threads()


def killed(number):
    os.kill(os.getpid(), 9)


@pytest.mark.parametrize("jobs", [1, 2])
def test_all_is_worked_on_with_one_thread_whatever_the_number_of_processes(jobs):
    threads = torch.get_num_threads()
    with mapped(worked, range(4), jobs) as done:
        assert sorted(done) == [(number, number**2, 1) for number in range(4)]
    assert torch.get_num_threads() == threads


def test_a_process_that_was_killed_is_one_line():
    with pytest.raises(InputError, match="workers was killed"), mapped(killed, range(2), 2) as done:
        list(done)
