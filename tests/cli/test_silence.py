import io
import subprocess
import sys
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from gatdiag.cli import silence
from gatdiag.cli.silence import break_silence
from tests.run.synthetic import synthetic_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(silence, "SECONDS", 0.05)
    monkeypatch.setattr(silence, "_INTERVAL", 0.01)


def wait_for(text, seconds=20.0):
    """Wait until a text is in standard error, without printing."""
    end = time.monotonic() + seconds
    while text not in sys.stderr.getvalue() and time.monotonic() < end:
        time.sleep(0.01)


@contextmanager
def redirected():
    """Two streams in place of standard output and error."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        yield out, err


def test_a_silent_command_says_once_that_it_works(impatient):
    with redirected() as streams:
        with break_silence("report"):
            wait_for("still working")
            time.sleep(0.2)
            sys.stdout.write("done\n")
        assert (sys.stdout, sys.stderr) == streams
    assert [stream.getvalue() for stream in streams] == ["done\n", "gatdiag: report is still working ...\n"]


def test_a_command_that_prints_is_left_alone(monkeypatch):
    monkeypatch.setattr(silence, "SECONDS", 5.0)
    monkeypatch.setattr(silence, "_INTERVAL", 0.001)
    with redirected() as (_, err), break_silence("train"):
        for _ in range(20):
            sys.stderr.write(".")
            time.sleep(0.005)
    assert err.getvalue() == "." * 20


def test_a_slow_import_is_named(impatient, tmp_path, monkeypatch):
    slow = "import sys, time\nwhile 'importing' not in sys.stderr.getvalue():\n    time.sleep(0.01)\n"
    (tmp_path / "slow_module.py").write_text(slow)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(silence, "_SLOW_IMPORTS", ("slow_module",))
    with redirected() as (_, err), break_silence("laws"):
        import slow_module  # noqa: F401
    assert "gatdiag: importing slow_module ...\n" in err.getvalue()


def test_an_error_restores_the_streams(impatient):
    with redirected() as streams:
        with pytest.raises(KeyError), break_silence("laws"):
            raise KeyError
        assert (sys.stdout, sys.stderr) == streams


def test_the_word_never_gets_into_the_json_document(tmp_path):
    script = """
import sys, time
from gatdiag.cli import app, silence
silence.SECONDS = 0.0
silence._INTERVAL = 0.001
sys.argv[1:] = ["diagnose", sys.argv[1], "--json"]
app.main()
"""
    folder = synthetic_run(tmp_path / "run", steps=20, layers=3, neurons=2)
    command = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.stdout.startswith('{"version": 3')
    assert done.stdout.count("\n") == 1
    assert "gatdiag: " in done.stderr
