"""What stands in meta.json: its shape, checked on the way in and on the way out, and the file itself."""

import datetime
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from gatdiag.errors import InputError
from gatdiag.names import quoted
from gatdiag.run.files import META, atomic_write
from gatdiag.run.laws import MOST_LAWS
from gatdiag.run.tables import SCHEMA_VERSION, is_encodable

Meta: TypeAlias = dict[str, Any]

STATUSES = ("recording", "finished", "failed", "interrupted")
LARGEST_STEP = 2**63 - 1
_LARGEST_NEURON = 2**31 - 1
_LARGEST_FILE = 2**28
_NULL = type(None)

# A shape is: a type or a tuple of types; [shape] for a list; {key: shape} for an object with at least these keys.
_SHAPE: dict[str, Any] = {
    "schema": int,
    "sealed": bool,
    "status": str,
    "error": (str, _NULL),
    "created": (str, _NULL),
    "ended": (str, _NULL),
    "name": str,
    "model": (str, _NULL),
    "device": (str, _NULL),
    "dtype": (str, _NULL),
    "structure": {"layers": [{"name": str, "parameters": [{"name": str, "role": str, "shape": [int]}]}]},
    "laws": {"found": [{"layer": (str, _NULL), "neuron": (int, _NULL)}], "excluded": [dict], "error": (str, _NULL)},
    "quantities": [{"name": str}],
    "cadence": dict,
    "optimizers": [dict],
    "versions": dict,
    "first_non_finite": (dict, _NULL),
    "best": (dict, _NULL),
    "notes": [str],
    "resumed_at": [int],
}
_WORDS = {str: "text", int: "a whole number", bool: "true or false", dict: "an object", list: "a list", _NULL: "null"}


def now() -> str:
    """This moment, as meta.json writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def new(folder: Path, meta: Mapping[str, Any]) -> Meta:
    """The metadata of a run that begins: what was given, and the rest as it is at the start."""
    nothing = dict.fromkeys(("error", "ended", "model", "device", "dtype", "first_non_finite", "best"))
    beginning: Meta = {
        "schema": SCHEMA_VERSION,
        "sealed": False,
        "status": "recording",
        "created": now(),
        "name": folder.absolute().name,
        "structure": {"order": "module", "layers": []},
        "laws": {"found": [], "excluded": [], "error": None},
        "quantities": [],
        "cadence": {},
        "optimizers": [],
        "versions": {},
        "notes": [],
        "resumed_at": [],
    }
    contents: Meta = jsonable({**nothing, **beginning, **meta})
    check(contents, "the metadata of the run")
    return contents


def jsonable(value: Any) -> Any:
    """The value as strict JSON has it: no NaN or infinity (null), no tuples, no numpy numbers.

    Raises:
        InputError: Something in it has no place in JSON.

    Example:
        >>> jsonable({"residual": float("nan"), "shape": (64, 1433)})
        {'residual': None, 'shape': [64, 1433]}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(inner) for inner in value]
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    raise InputError(f"Metadata may hold text, numbers, lists and mappings of them, got {type(value).__name__}")


def read(folder: Path) -> Meta:
    """The checked metadata of a run folder."""
    path = folder / META
    if not folder.exists():
        raise InputError(f"Expected the folder of a run, but {folder} does not exist")
    if not folder.is_dir():
        raise InputError(f"Expected the folder of a run, but {folder} is a file; give the folder that holds {META}")
    if not path.is_file():
        inside = [str(path.parent) for path in sorted(folder.glob(f"*/{META}"))][:8]
        hint = f"Did you mean a folder inside it: {' '.join(inside)}?" if inside else "Give one of gatdiag.watch."
        raise InputError(f"{folder} is not the folder of a run: it has no {META}. {hint}")
    if path.stat().st_size > _LARGEST_FILE:
        raise InputError(f"{path} is larger than {_LARGEST_FILE} bytes, which no run's {META} is")
    try:
        meta = json.loads(path.read_bytes().decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged: it is no JSON that can be read ({str(error) or type(error).__name__}). The tables "
            "beside it cannot be understood without it; restore it from a copy."
        ) from error
    check(meta, str(path))
    return dict(meta)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def write(folder: Path, meta: Meta, *, durable: bool = False) -> None:
    """Replaces meta.json."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in meta.items())
    with atomic_write(folder / META, durable=durable) as path:
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def check(meta: Any, where: str) -> None:
    """Validates the shape of metadata, on which all readers rely."""
    if not isinstance(meta, dict) or not isinstance(meta.get("schema"), int) or isinstance(meta["schema"], bool):
        raise InputError(f'{where} is not that of a run: expected an object with "schema": {SCHEMA_VERSION}')
    if meta["schema"] != SCHEMA_VERSION:
        raise InputError(
            f"{where} has schema {_short(meta['schema'])}, and this gatdiag reads schema {SCHEMA_VERSION}. The run was "
            + (
                "recorded by a newer gatdiag: upgrade (pip install -U gatdiag) to read it."
                if meta["schema"] > SCHEMA_VERSION
                else "recorded by an earlier gatdiag: record it again, or read it with that version."
            )
        )
    _check_shape(meta, _SHAPE, where, "")
    if meta["status"] not in STATUSES:
        raise InputError(f'{where}: "status" should be one of {", ".join(STATUSES)}, got {_short(meta["status"])}')
    _check_range("step", meta["resumed_at"], LARGEST_STEP, where)
    _check_names("layer", layer_names(meta), where)
    _check_names("parameter", parameter_names(meta), where)
    found = meta["laws"]["found"]
    for number, law in enumerate(found):
        _check_shape(law.get("count", 1), int, where, f"laws.found.{number}.count.")
    counts = [law.get("count", 1) for law in found]
    _check_range("number of laws", (*(count - 1 for count in counts), sum(counts)), MOST_LAWS, where)
    neurons = [(law["neuron"], count) for law, count in zip(found, counts, strict=True) if law["neuron"] is not None]
    _check_range("neuron", (at for first, count in neurons for at in (first, first + count)), _LARGEST_NEURON, where)


def _check_shape(value: Any, shape: Any, where: str, path: str) -> None:
    if isinstance(shape, dict):
        _check_shape(value, dict, where, path)
        for key, inner in shape.items():
            if key not in value:
                raise InputError(f'{where} is incomplete: "{path}{key}" is missing')
            _check_shape(value[key], inner, where, f"{path}{key}.")
    elif isinstance(shape, list):
        _check_shape(value, list, where, path)
        for position, inner in enumerate(value):
            _check_shape(inner, shape[0], where, f"{path}{position}.")
    else:
        types = shape if isinstance(shape, tuple) else (shape,)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            expected = " or ".join(_WORDS[kind] for kind in types)
            raise InputError(f'{where}: "{path.rstrip(".")}" should be {expected}, got {_short(value)}')


def _check_range(what: str, numbers: Iterable[int], largest: int, where: str) -> None:
    for number in numbers:
        if not 0 <= number <= largest:
            raise InputError(f"{where}: {_short(number)} is no {what}; they are from 0 to {largest}")


def _check_names(what: str, names: tuple[str, ...], where: str) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"{where}: the {what} {_short(name)} is in the structure {times} times")
        if not is_encodable(name):
            raise InputError(f"{where}: the {what} name {_short(name)} is not valid Unicode")


def _short(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    if isinstance(value, dict | list):
        return f"{_WORDS[type(value)]} of {len(value)}"
    return quoted(value) if isinstance(value, str) else str(value)


def layer_names(meta: Meta) -> tuple[str, ...]:
    """Names of the recorded layers, in structure order."""
    return tuple(layer["name"] for layer in meta["structure"]["layers"])


def parameter_names(meta: Meta) -> tuple[str, ...]:
    """Names of the recorded parameters, in structure order."""
    return tuple(parameter["name"] for layer in meta["structure"]["layers"] for parameter in layer["parameters"])
