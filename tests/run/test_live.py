"""A run is read while another process records, resumes and seals it."""

import subprocess
import sys

import pytest

from gatdiag.run import load
from tests.run.recorded import check

WRITER = """
import sys, time
from gatdiag.run import Store, store as module
from tests.run.recorded import META, append_step
module.SECONDS_BETWEEN_WRITES = 0.0
store = Store.create(sys.argv[1], META)
print("begun", flush=True)
for life in range(3):
    for step in range(life * 20, life * 20 + 20):
        append_step(store, step)
        time.sleep(0.002)
    store.seal("finished")
    if life < 2:
        store = Store.resume(sys.argv[1])
"""


@pytest.mark.filterwarnings("error")
def test_every_reading_is_a_beginning_of_the_run_and_no_shorter_than_the_last(tmp_path):
    folder = tmp_path / "run"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"begun\n"
    seen, readings = dict.fromkeys(("steps", "layers", "parameters", "neurons"), 0), 0
    while writer.poll() is None:
        run = load(folder)
        for name, rows in (("neurons", 3), ("parameters", 3), ("layers", 2), ("steps", 1)):
            found = getattr(run, name)
            assert list(found["step"]) == [row // rows for row in range(len(found))]
            assert seen[name] <= len(found)
            seen[name] = len(found)
        readings += 1
    writer.communicate()
    assert writer.returncode == 0
    assert readings > 3
    check(load(folder), [(step, 0.0) for step in range(60)])
