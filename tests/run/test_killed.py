import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the killed processes are forks")
@pytest.mark.parametrize(("what", "fewest"), [("seal", 30), ("resume", 30), ("write", 12), ("train", 100)])
def test_killed_at_any_instant_a_run_opens_and_goes_on(tmp_path, what, fewest):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.run.killing", what, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split().count("killed") >= fewest, done.stdout
