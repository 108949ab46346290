"""What holds for all tests."""

import os

# Each test process has one core to itself: threads that wait for each other would take twice the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
