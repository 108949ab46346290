import os
import subprocess
import sys

import pytest

from gatdiag.errors import InputError
from gatdiag.run import lock
from gatdiag.run.lock import Lock, is_held

HOLD = """
import sys
from pathlib import Path
from gatdiag.run.lock import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_it_is_held_until_it_is_released(tmp_path):
    assert not is_held(tmp_path)
    held = Lock(tmp_path)
    assert is_held(tmp_path)
    with pytest.raises(InputError, match="a run has one writer"):
        Lock(tmp_path)
    held.release()
    held.release()
    assert not is_held(tmp_path)
    Lock(tmp_path).release()


def test_it_dies_with_its_process(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    assert is_held(tmp_path)
    holder.kill()
    holder.communicate()
    assert not is_held(tmp_path)
    Lock(tmp_path).release()


def test_asking_whether_it_is_held_does_not_turn_a_writer_away(tmp_path):
    Lock(tmp_path).release()
    asking = os.open(tmp_path / ".lock", os.O_RDONLY)
    assert lock._try(asking, shared=True)
    assert not is_held(tmp_path)
    pauses = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock.time, "sleep", lambda _: (pauses.append(1), os.close(asking)))
        Lock(tmp_path).release()
    assert pauses == [1]


@pytest.mark.parametrize("what", ["no flock in this Python", "no locks on this file system"])
def test_without_locks_it_works_unlocked(tmp_path, monkeypatch, what):
    if what == "no flock in this Python":
        monkeypatch.setattr(lock, "fcntl", None)
    else:
        monkeypatch.setattr(lock.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(95, "not supported")))
    first, second = Lock(tmp_path), Lock(tmp_path)
    assert not is_held(tmp_path)
    first.release()
    second.release()
