"""What holds for all tests."""

import gc
import os

# Each test process has one core to itself: threads that wait for each other would take twice the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# It is installed by its test, and would otherwise add a cause to all other tests.
collect_ignore = ["tests/diagnosis/plugin"]

# Importing frameworks and trackers takes seconds, in each process; these files have no examples that run.
collect_ignore_glob = ["gatdiag/integrations/*.py"]

# Nothing that importing the tests makes is garbage, and looking through it took an eighth of the suite's time.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on, look for garbage only among what tests make."""
    gc.freeze()
    gc.set_threshold(20_000)  # new objects, in place of 700
    gc.enable()
