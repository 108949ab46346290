"""Contains what fails inside recording, so that training goes on."""

import sys
import warnings
from collections.abc import Callable
from typing import Any


class RecordingWarning(UserWarning):
    """Part of a recording failed or is not possible; training goes on."""


class Guard:
    """Runs functions, and warns of each kind of failure once.

    Attributes:
        failures: What failed, or is to be known -> the message, for the run's notes.
    """

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def __call__(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The function's result, or None if it raised. What the user raises (an interrupt) passes."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            self.warn(what, f"not recorded: {what} ({type(error).__name__}: {_text(error)})")
            return None

    def note(self, what: str, message: str) -> None:
        """Keep a message for the run's notes, once for each `what`, without a warning."""
        self.failures.setdefault(what, message)

    def warn(self, what: str, message: str) -> None:
        """Warn, once for each `what`. Where warnings are errors, standard error has to do."""
        if what in self.failures:
            return
        self.failures[what] = message
        text = f"gatdiag: {message}"
        try:
            warnings.warn(text, RecordingWarning, stacklevel=2)
        except Exception:  # warnings are errors, or whoever shows them fails
            print(text, file=sys.stderr)  # noqa: T201


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # the user's own exception
        return "it has no message that can be read"
