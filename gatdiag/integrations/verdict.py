"""The end of a recording that a framework has made: its verdict in one line."""

import sys
from typing import Final

from gatdiag.names import printable
from gatdiag.recorder import Recorder
from gatdiag.recorder.ranks import is_first_process
from gatdiag.run.files import from_here

FOLDER: Final = "gatdiag-run"
"""Name of the run's folder, where the framework has a folder of its own."""


def finish(recorder: Recorder | None) -> None:
    """End a recording, and print the verdict on standard error, in the process that has recorded."""
    if recorder is None:
        return
    recorder.finish()
    if not recorder.enabled or not is_first_process():
        return
    title = recorder.diagnosis().title
    print(printable(f"gatdiag: {title}; see gatdiag diagnose {from_here(recorder.folder)}"), file=sys.stderr)  # noqa: T201
