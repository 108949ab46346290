"""What goes to standard output: documents for programs, and arguments as the command line has them."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

_OPTIONS: Final[Mapping[str, str]] = {
    "overwrite=True": "--overwrite",
    "in_place=True": "--in-place",
    "include_approximate=True": "--include-approximate",
    'moments="drop"': "--moments drop",
}


def print_document(document: Any) -> None:
    """Print one strict JSON document on a line; numbers that are not finite become null."""
    print(json.dumps(_finite(document), allow_nan=False))  # noqa: T201


def as_options(text: str) -> str:
    """The text, with arguments as one gives them on the command line, and not in Python.

    Example:
        >>> as_options("give another folder, or overwrite=True")
        'give another folder, or --overwrite'
    """
    for argument, option in _OPTIONS.items():
        text = text.replace(argument, option)
    return text


def _finite(value: Any) -> Any:
    """Strict JSON has no token for NaN and infinity."""
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value
