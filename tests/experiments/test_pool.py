import multiprocessing
from multiprocessing.connection import wait

import pytest
import torch

from gatdiag.experiments.pool import Pool

# What other processes work on must be found there, wherever tests are imported from: so it is of Python itself.
WORK = [f"({number}, {number}**2, __import__('torch').get_num_threads())" for number in range(4)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_all_is_worked_on_with_one_thread_whatever_the_number_of_processes(jobs):
    threads = torch.get_num_threads()
    with Pool(jobs).map(eval, WORK) as done:
        assert sorted(done) == [(WORK[number], (number, number**2, 1)) for number in range(4)]
    assert torch.get_num_threads() == threads


def test_after_an_interrupt_workers_do_not_finish_what_they_began():
    others = {*multiprocessing.active_children()}  # of an earlier test, on their way out
    with pytest.raises(KeyboardInterrupt), Pool(2).map(eval, ["1", *["__import__('time').sleep(90)"] * 2]) as done:
        next(iter(done))
        workers = {*multiprocessing.active_children()} - others
        raise KeyboardInterrupt
    assert len(workers) == 2
    for worker in workers:  # by its sentinel: the pool may be the one that collects its exit code
        assert wait([worker.sentinel], 30)
