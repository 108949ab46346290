"""Turns exceptions inside the recorder into warnings, so that training continues."""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final

from gatdiag.recorder.hooks.outside import run_as_is

FILES: Final = "files"
_NOT_USER_CODE: Final = ("gatdiag", "torch", "torch_geometric")


class RecordingWarning(UserWarning):
    """Part of a recording failed or is not possible; training continues."""


class TrainingWarning(UserWarning):
    """The training has an error that is already certain."""


class Guard:
    """Calls functions, and warns of each kind of failure once.

    Attributes:
        messages: What failed or is notable -> the message, for the run's notes.
        unwritten: Why files could not be written; "" if all could.
    """

    def __init__(self) -> None:
        self.messages: dict[str, str] = {}
        self.unwritten = ""

    @run_as_is
    def __call__(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The function's result, or None if it raised an Exception; an interrupt propagates.

        Args:
            what: What is recorded by it, for the message.
            function: What to call.
            args: Positional arguments.
            kwargs: Keyword arguments.
        """
        try:
            return function(*args, **kwargs)
        except OSError as error:  # one warning, as on a full disk nothing can be written
            self.warn_of_files(f"not recorded: {what}, and all else that cannot be written ({error})", error)
        except Exception as error:
            message = f"not recorded: {what} ({type(error).__name__}: {error})"
            if isinstance(error.__cause__, OSError):
                self.warn_of_files(message, error.__cause__)
            else:
                self.warn(what, message)
        return None

    def warn_of_files(self, message: str, error: OSError) -> None:
        """Warn that files cannot be written."""
        self.unwritten = self.unwritten or str(error)
        self.warn(FILES, message)

    def note(self, what: str, message: str) -> None:
        """Keep a message for the run's notes without a warning."""
        self.messages.setdefault(what, message)

    def warn(self, what: str, message: str) -> None:
        """Warn, once for each `what`; if warnings are errors, print the message to standard error instead."""
        if what in self.messages:
            return
        self.messages[what] = message
        _show(partial(warnings.warn, category=RecordingWarning, stacklevel=_user_stacklevel()), message)

    def warn_of_training(self, message: str, step: int) -> None:
        """Warn of an error in the training, with the step in place of a line of code."""
        _show(partial(warnings.warn_explicit, category=TrainingWarning, filename="gatdiag", lineno=step), message)


def _show(warn: Callable[[str], Any], message: str) -> None:
    text = f"gatdiag: {message}"
    try:
        warn(text)
    except Exception:  # warnings are errors, or showing them fails
        print(text, file=sys.stderr)  # noqa: T201


def _user_stacklevel() -> int:
    """The stacklevel of the innermost line of the user's code, for a warning that `_show` raises."""
    frame: FrameType | None = sys._getframe(1)  # of `Guard.warn`
    level = 2  # `_show` is 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_USER_CODE:
        frame, level = frame.f_back, level + 1
    return level
