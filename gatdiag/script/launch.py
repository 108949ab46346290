"""How a script is started: by Python itself, with an environment that makes it load gatdiag."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

VARIABLE: Final = "GATDIAG_RUN"
RUNS: Final = "*/meta.json"  # in the folder; `gatdiag.run`, which knows the name, imports NumPy
SITE: Final = Path(__file__).parent / "site"
_PATH: Final = "PYTHONPATH"


@dataclass(frozen=True)
class Launch:
    """What the process of a script is told.

    Attributes:
        out: Folder of the runs, absolute: a script may change the working directory.
        every: As of `gatdiag.watch`.
        metrics: As of `gatdiag.watch`.
        conclude: Command that reports on the folder when the script has ended.
        process: Id of the process of the script; its children are other ones.
    """

    out: str
    every: Literal["auto", "log"] | int
    metrics: str
    conclude: Sequence[str]
    process: int

    @classmethod
    def of_environment(cls) -> "Launch":
        """As `environment` has written it."""
        return cls(**json.loads(os.environ[VARIABLE]))

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        """The environment of the script, given that of the command."""
        path = os.pathsep.join(filter(None, [str(SITE), outer.get(_PATH)]))
        return {**outer, VARIABLE: json.dumps(asdict(self)), _PATH: path}


def python(command: Sequence[str], *, as_module: bool) -> list[str]:
    """The command line of Python for a script or a module, and its arguments.

    Example:
        >>> python(["train.py", "--lr", "0.1"], as_module=False)[1:]
        ['train.py', '--lr', '0.1']
    """
    return [sys.executable, *(["-m"] if as_module else []), *command]


def outer_environment() -> dict[str, str]:
    """The environment without what `Launch.environment` has added, for processes that are left alone."""
    paths = [path for path in os.environ.get(_PATH, "").split(os.pathsep) if path != str(SITE)]
    others = {name: value for name, value in os.environ.items() if name not in (VARIABLE, _PATH)}
    return {**others, _PATH: os.pathsep.join(paths)} if any(paths) else others
