"""Contains what fails inside recording, so that training goes on."""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final

_INSIDE: Final = ("gatdiag", "torch", "torch_geometric")  # packages whose lines are not the user's


class RecordingWarning(UserWarning):
    """Part of a recording failed or is not possible; training goes on."""


class TrainingWarning(UserWarning):
    """The training is broken, as far as can be told while it goes on."""


class Guard:
    """Runs functions, and warns of each kind of failure once.

    Attributes:
        failures: What failed, or is to be known -> the message, for the run's notes.
    """

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def __call__(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The function's result, or None if it raised. What the user raises (an interrupt) passes.

        Args:
            what: What it does, for the message.
            function: What may fail.
            args: Its arguments.
            kwargs: Its arguments by name.
        """
        try:
            return function(*args, **kwargs)
        except Exception as error:
            self.warn(what, f"not recorded: {what} ({type(error).__name__}: {_text(error)})")
            return None

    def warn(self, what: str, message: str) -> None:
        """Warn, once for each `what`. Where warnings are errors, standard error has to do."""
        if what in self.failures:
            return
        self.failures[what] = message
        _show(partial(warnings.warn, category=RecordingWarning, stacklevel=_level_of_user()), message)

    def say(self, message: str, step: int) -> None:
        """Warn of the training itself, in one line: it is about a step, and not about a line of code."""
        _show(partial(warnings.warn_explicit, category=TrainingWarning, filename="gatdiag", lineno=step), message)


def _show(warn: Callable[[str], Any], message: str) -> None:
    text = f"gatdiag: {message}"
    try:
        warn(text)
    except Exception:  # warnings are errors, or whoever shows them fails
        print(text, file=sys.stderr)  # noqa: T201


def _level_of_user() -> int:
    """The stacklevel for `_show`, called by `Guard.warn`, at which the innermost line of the user's own code is."""
    frame: FrameType | None = sys._getframe(1)  # of `Guard.warn`
    level = 2  # where `_show` is 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    return level


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # the user's own exception
        return "it has no message that can be read"
