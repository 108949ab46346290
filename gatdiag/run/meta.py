"""What stands in meta.json: its shape, checked on the way in and on the way out, and the file itself."""

import datetime
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from gatdiag.errors import InputError
from gatdiag.run.laws import MOST
from gatdiag.run.layout import META, replacing
from gatdiag.run.schema import SCHEMA_VERSION, TABLES

Meta: TypeAlias = dict[str, Any]

STATUSES = ("recording", "finished", "failed", "interrupted")
LARGEST_STEP = 2**63 - 1
_LARGEST_POSITION = 2**31 - 1
_LARGEST_FILE = 2**28
_NAMED = 8  # runs in a folder that is none itself
_NULL = type(None)
_PLAIN = frozenset({str, int, bool, _NULL})

# A shape is: a type or a tuple of types; [shape] for a list; {key: shape} for an object with at least these keys.
_PARAMETER = {"name": str, "role": str}
_LAYER = {"name": str, "parameters": [_PARAMETER]}
_LAW = {"layer": (str, _NULL), "neuron": (int, _NULL)}
_SHAPE: dict[str, Any] = {
    "schema": int,
    "status": str,
    "error": (str, _NULL),
    "created": (str, _NULL),
    "ended": (str, _NULL),
    "name": str,
    "model": (str, _NULL),
    "device": (str, _NULL),
    "dtype": (str, _NULL),
    "structure": {"layers": [_LAYER]},
    "laws": {"found": [_LAW], "excluded": [dict], "error": (str, _NULL)},
    "quantities": [{"name": str}],
    "cadence": dict,
    "optimizers": [dict],
    "versions": dict,
    "first_non_finite": (dict, _NULL),
    "best": (dict, _NULL),
    "notes": [str],
    "resumed_at": [int],
    "segment_starts": [dict.fromkeys(TABLES, int)],
}
_WORDS = {str: "text", int: "a whole number", dict: "an object", list: "a list", _NULL: "null"}


def now() -> str:
    """This moment, as meta.json writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def new(folder: Path, meta: Mapping[str, Any]) -> Meta:
    """The meta data of a run that begins: what was given, and the rest as it is at the start.

    Raises:
        InputError: Something given has the wrong type.
    """
    defaults: Meta = {
        "schema": SCHEMA_VERSION,
        "status": "recording",
        "error": None,
        "created": now(),
        "ended": None,
        "name": folder.absolute().name,
        "model": None,
        "device": None,
        "dtype": None,
        "structure": {"order": "module", "layers": []},
        "laws": {"found": [], "excluded": [], "error": None},
        "quantities": [],
        "cadence": {},
        "optimizers": [],
        "versions": {},
        "first_non_finite": None,
        "best": None,
        "notes": [],
        "resumed_at": [],
        "segment_starts": [],
    }
    contents: Meta = plain({**defaults, **meta})
    check(contents, "the meta data of the run")
    return contents


def plain(value: Any) -> Any:
    """The value as strict JSON has it: no NaN or infinity (null), no tuples, no numpy numbers.

    Raises:
        InputError: Something in it has no place in JSON.

    Example:
        >>> plain({"residual": float("nan"), "shape": (64, 1433)})
        {'residual': None, 'shape': [64, 1433]}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): inner if type(inner) in _PLAIN else plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [inner if type(inner) in _PLAIN else plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise InputError(f"Meta data may hold text, numbers, lists and mappings of them, got {type(value).__name__}")


def read(folder: Path) -> Meta:
    """The checked meta data of a run folder.

    Raises:
        InputError: The folder holds no run, or one of a newer schema, or meta.json is damaged.
    """
    return decode(read_text(folder), folder)


def read_text(folder: Path) -> bytes:
    """The meta.json of a run folder as it stands there.

    Raises:
        InputError: The folder holds no run, or its meta.json is of no plausible size.
    """
    path = folder / META
    if not folder.exists():
        raise InputError(f"Expected the folder of a run, but {folder} does not exist")
    if not folder.is_dir():
        raise InputError(f"Expected the folder of a run, but {folder} is a file; give the folder that holds {META}")
    if not path.is_file():
        inside = [str(path.parent) for path in sorted(folder.glob(f"*/{META}"))]
        hint = (
            f"Did you mean a folder inside it: {' '.join(inside[:_NAMED])}?" if inside else "Give one of gatdiag.watch."
        )
        raise InputError(f"{folder} is not the folder of a run: it has no {META}. {hint}")
    if path.stat().st_size > _LARGEST_FILE:
        raise InputError(f"{path} is larger than {_LARGEST_FILE} bytes, which no run's {META} is")
    return path.read_bytes()


def decode(text: bytes, folder: Path) -> Meta:
    """The checked meta data in the text of a run folder's meta.json.

    Raises:
        InputError: It is of a newer schema, or damaged.
    """
    path = folder / META
    try:
        meta = json.loads(text.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged: it is no JSON that can be read ({str(error) or type(error).__name__}). The tables "
            "beside it cannot be understood without it; restore it from a copy."
        ) from error
    check(meta, str(path))
    return dict(meta)


def is_a_run(folder: Path) -> bool:
    """Whether the meta.json of a folder is one that gatdiag wrote, of whatever schema."""
    try:
        meta = json.loads((folder / META).read_bytes().decode())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(meta, dict) and isinstance(meta.get("schema"), int) and {"status", "structure"} <= meta.keys()


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def write(folder: Path, texts: Mapping[str, str], *, durable: bool = False) -> None:
    """Replaces meta.json by an object of these keys, whose values are JSON already.

    Raises:
        OSError: It cannot be written; the previous one is as it was.
    """
    with replacing(folder / META, durable=durable) as path:
        path.write_text("{\n" + ",\n".join(f"{json.dumps(key)}: {text}" for key, text in texts.items()) + "\n}\n")


def encode(value: Any) -> str:
    """Strict JSON in ASCII, which is UTF-8 too."""
    return json.dumps(value, allow_nan=False)


def check(meta: Any, where: str, keys: Iterable[str] = tuple(_SHAPE)) -> None:
    """Sees to it that meta data have the shape that all readers rely on.

    Args:
        meta: The meta data.
        where: What they are called in the error.
        keys: The keys to check, if the others are known to be right.

    Raises:
        InputError: They have not; with the place, what was expected and what was got.
    """
    if not isinstance(meta, dict) or not isinstance(meta.get("schema"), int) or isinstance(meta["schema"], bool):
        raise InputError(f'{where} is not that of a run: expected an object with "schema": {SCHEMA_VERSION}')
    if meta["schema"] > SCHEMA_VERSION:
        raise InputError(
            f"{where} has schema {_short(meta['schema'])}, and this gatdiag reads schema {SCHEMA_VERSION}. "
            "The run was recorded by a newer gatdiag: upgrade (pip install -U gatdiag) to read it."
        )
    if meta["schema"] < SCHEMA_VERSION:
        raise InputError(
            f"{where} has schema {_short(meta['schema'])}, and this gatdiag reads schema {SCHEMA_VERSION}. "
            "The run was recorded by an earlier gatdiag: record it again, or read it with that version."
        )
    _check(meta, {key: _SHAPE[key] for key in keys if key in _SHAPE}, where, "")
    if {"status", "structure", "laws", "resumed_at", "segment_starts"} & {*keys}:
        _check_values(meta, where)


def _check(value: Any, shape: Any, where: str, path: str) -> None:
    if isinstance(shape, dict):
        _check(value, dict, where, path)
        for key, inner in shape.items():
            if key not in value:
                raise InputError(f'{where} is incomplete: "{path}{key}" is missing')
            _check(value[key], inner, where, f"{path}{key}.")
    elif isinstance(shape, list):
        _check(value, list, where, path)
        if _are_of(value, shape[0]):
            return
        for position, inner in enumerate(value):
            _check(inner, shape[0], where, f"{path}{position}.")
    else:
        types = shape if isinstance(shape, tuple) else (shape,)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            expected = " or ".join(_WORDS[kind] for kind in types)
            raise InputError(f'{where}: "{path.rstrip(".")}" should be {expected}, got {_short(value)}')


def _are_of(values: list[Any], shape: Any) -> bool:
    """Whether all are objects of a flat shape, found out at once: a wide model has tens of thousands of laws."""
    if not isinstance(shape, dict) or not all(isinstance(kinds, type | tuple) for kinds in shape.values()):
        return False
    if not all(type(value) is dict and value.keys() >= shape.keys() for value in values):
        return False
    return all(
        {type(value[key]) for value in values} <= {*(kinds if isinstance(kinds, tuple) else (kinds,))}
        for key, kinds in shape.items()
    )


def _check_values(meta: Meta, where: str) -> None:
    if meta["status"] not in STATUSES:
        raise InputError(f'{where}: "status" should be one of {", ".join(STATUSES)}, got {_short(meta["status"])}')
    if len(meta["resumed_at"]) != len(meta["segment_starts"]):
        raise InputError(f'{where}: "resumed_at" and "segment_starts" should be equally long')
    _check_names("layer", layer_names(meta), where)
    _check_names("parameter", parameter_names(meta), where)
    laws = meta["laws"]["found"]
    counts = [law.get("count", 1) for law in laws]
    for number, count in enumerate(counts):
        _check(count, int, where, f"laws.found.{number}.count.")
    _check_range("number of laws", (*(count - 1 for count in counts), sum(counts)), MOST, where)
    firsts = [law["neuron"] for law in laws if law["neuron"] is not None]
    neurons = (*firsts, *(law["neuron"] + law.get("count", 1) for law in laws if law["neuron"] is not None))
    starts = (start[table] for start in meta["segment_starts"] for table in TABLES)
    _check_range("position", (*neurons, *starts), _LARGEST_POSITION, where)
    _check_range("step", meta["resumed_at"], LARGEST_STEP, where)


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


def is_encodable(text: str) -> bool:
    """Whether a name can be written to a file: it holds no lone surrogates.

    Example:
        >>> is_encodable("convs.0"), is_encodable(chr(0xDC80))
        (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    if isinstance(value, dict | list):
        return f"{_WORDS[type(value)]} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def layer_names(meta: Meta) -> tuple[str, ...]:
    """Names of the recorded layers, in structure order."""
    return tuple(layer["name"] for layer in meta["structure"]["layers"])


def parameter_names(meta: Meta) -> tuple[str, ...]:
    """Names of the recorded parameters, in structure order."""
    return tuple(parameter["name"] for layer in meta["structure"]["layers"] for parameter in layer["parameters"])
