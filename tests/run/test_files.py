import subprocess
import sys
from pathlib import Path

import filelock
import pytest

from gatdiag.errors import InputError
from gatdiag.run.files import acquire_lock, atomic_write, is_locked

HOLD = """
import sys
from pathlib import Path
from gatdiag.run.files import acquire_lock
held = acquire_lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, durable):
    path = tmp_path / "meta.json"
    for text in ("first", "second"):
        with atomic_write(path, durable=durable) as part:
            part.write_text(text)
        assert path.read_text() == text
    with pytest.raises(KeyboardInterrupt), atomic_write(path, durable=durable) as part:
        part.write_text("half of the th")
        raise KeyboardInterrupt
    assert [found.name for found in tmp_path.iterdir()] == ["meta.json"]
    assert path.read_text() == "second"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_what_is_no_regular_file_keeps_its_place(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError) as raised, atomic_write(tmp_path / "no folder" / "page.html"):
        pass
    assert raised.value.filename == str(tmp_path / "no folder")
    with pytest.raises(OSError, match="no regular file"), atomic_write(tmp_path / "pipe"):
        pass
    assert (tmp_path / "pipe").is_fifo()


def test_nothing_that_stands_beside_a_file_is_touched_by_replacing_it(tmp_path: Path) -> None:
    target, precious = tmp_path / "model.pt", tmp_path / "precious.txt"
    precious.write_text("mine")
    (tmp_path / "model.pt.part").symlink_to(precious)
    with atomic_write(target) as part:
        part.write_text("new")
    with pytest.raises(RuntimeError), atomic_write(target) as part:
        part.write_text("half")
        raise RuntimeError
    assert (target.read_text(), precious.read_text()) == ("new", "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "model.pt.part", "precious.txt"]


def test_a_lock_is_held_until_it_is_released(tmp_path):
    assert not is_locked(tmp_path)
    held = acquire_lock(tmp_path)
    assert is_locked(tmp_path)
    with pytest.raises(InputError, match="a run has one writer"):
        acquire_lock(tmp_path)
    held.release()
    held.release()
    assert not is_locked(tmp_path)
    acquire_lock(tmp_path).release()


def test_a_lock_dies_with_its_process(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    assert is_locked(tmp_path)
    holder.kill()
    holder.communicate()
    assert not is_locked(tmp_path)
    acquire_lock(tmp_path).release()


def test_asking_for_a_lock_does_not_turn_a_writer_away(tmp_path):
    asking = subprocess.Popen(
        [sys.executable, "-c", HOLD.replace("sys.stdin.read()", "import time; time.sleep(0.1)"), str(tmp_path)],
        stdout=subprocess.PIPE,
    )
    assert asking.stdout.readline() == b"held\n"
    acquire_lock(tmp_path).release()
    asking.communicate()


@pytest.mark.parametrize("error", [NotImplementedError("no flock in this Python"), OSError(95, "not supported")])
def test_without_locks_it_works_unlocked(tmp_path, monkeypatch, error):
    monkeypatch.setattr(filelock.FileLock, "acquire", lambda *_, **__: (_ for _ in ()).throw(error))
    first, second = acquire_lock(tmp_path), acquire_lock(tmp_path)
    assert not is_locked(tmp_path)
    first.release()
    second.release()
