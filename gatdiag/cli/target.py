"""PACKAGE.MODULE:NAME -> the object it names."""

import sys
from difflib import get_close_matches
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from gatdiag.errors import InputError


def load_target(target: str) -> Any:
    """The object that a target names; NAME may be dotted. The current directory is importable.

    Raises:
        InputError: The target has another form, its module cannot be imported, or the module has no such attribute.

    Example:
        >>> load_target("math:pi")
        3.141592653589793
    """
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise InputError(f"expected PACKAGE.MODULE:NAME, such as models:make_model, got {target!r}")
    if module_name.endswith(".py"):
        raise InputError(f"{target!r} names a file: give its module, {_module_of(module_name)}:{path}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:
        raise InputError(f"cannot import {module_name!r} of {target!r}: {described(error)}") from error
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError as error:
        near = get_close_matches(path, dir(module), n=1)
        hint = f". Did you mean {module_name}:{near[0]}?" if near else ""
        raise InputError(f"{target!r} does not exist: {error}{hint}") from error


def _module_of(file: str) -> str:
    """models/gat.py -> models.gat."""
    return ".".join(part for part in Path(file).with_suffix("").parts if part not in (".", "/"))


def described(error: BaseException) -> str:
    """The kind of an error and its message, for use inside another message."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
