"""meta.json: its contents, which are validated when they are written and read, and the file."""

import datetime
import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from gatdiag.errors import InputError
from gatdiag.names import quote
from gatdiag.run.files import META, atomic_write
from gatdiag.run.laws import MAX_LAWS
from gatdiag.run.tables import SCHEMA_VERSION, is_valid_unicode

Meta: TypeAlias = dict[str, Any]

MAX_STEP = 2**63 - 1
_MAX_NEURON = 2**31 - 1
_MAX_BYTES = 2**28
_STEP = range(MAX_STEP + 1)
_TEXT, _NUMBER = (str, None), (float, None)

# The shape of meta.json, on which all readers rely. A shape is: a type; None for null; a range of integers; a text for
# itself; (shape, ...) for one of several; [shape] for a list; {key: shape} for an object with at least these keys, of
# which those with a question mark are optional and "*" is any key.
_SIGNALS: dict[str, Any] = {
    "inputs?": [
        {
            "name": str,
            **dict.fromkeys(("rows", "columns", "non_finite", "step?"), _STEP),
            "first?": [_STEP],
            **dict.fromkeys(("largest_column?", "smallest_column?", "row_norm?", "relative_mu?"), _NUMBER),
        }
    ],
    "output?": {
        **dict.fromkeys(("min?", "max?", "row_sum_error?", "criterion_misfit?", "criterion_share?"), _NUMBER),
        **dict.fromkeys(("implied_mse?", "implied_variance?", "first_cross_entropy?"), _NUMBER),
        **dict.fromkeys(("last_operation?", "criterion?"), _TEXT),
        "labels?": ([_STEP], None),
        "implied_step?": (_STEP, None),
        "counted_targets?": (_STEP, None),
        "has_graph?": (bool, None),
        "softmax_over_rows?": bool,
        "common_target?": ({"step": _STEP, **dict.fromkeys(("loss", "low", "high", "spread"), _NUMBER)}, None),
    },
    "zero_inputs?": {"*": {"first": _NUMBER, "since": (_STEP, None), "last": _NUMBER}},
    "edges?": {"*": {"edges": _STEP, "loops": _STEP, "connected": _NUMBER}},
    "after_sigmoid?": [str],
    "evaluation_from?": (_STEP, None),
    "batch_norms?": {"*": _STEP},
    "dropout?": {"*": _NUMBER},
    "unreached?": [str],
    "foreign_leaves?": _STEP,
    "is_rough?": bool,
    "has_scaled_loss?": bool,
}
_SHAPE: dict[str, Any] = {
    "schema": int,
    "sealed": bool,
    "status": ("recording", "finished", "failed", "interrupted"),
    **dict.fromkeys(("error", "created", "ended", "model", "device", "dtype"), _TEXT),
    "name": str,
    "structure": {
        "order?": _TEXT,
        "layers": [
            {
                "name": str,
                "index?": _STEP,
                "kind?": _TEXT,
                "executed?": (bool, None),
                "parameters": [
                    {"name": str, "names?": ([str], None), "role": str, "shape": [_STEP], "trainable?": (bool, None)}
                ],
            }
        ],
    },
    "laws": {
        "found": [
            {
                "name?": str,
                "kind?": str,
                "layer": _TEXT,
                "neuron": (range(_MAX_NEURON + 1), None),
                "count?": range(1, MAX_LAWS + 1),
                "residual?": ([_NUMBER], None),
                "terms?": ([dict], None),
            }
        ],
        "excluded": [{"what": str, "reason": str}],
        "error": _TEXT,
    },
    "quantities": [{"name": str, "table?": _TEXT}],
    "cadence": {"budget?": _NUMBER, "groups?": ({"*": (int, None)}, None)},
    "optimizers": [
        {
            "class": _TEXT,
            "groups": [{"parameters?": ([str], None), "weight_decay?": (float, bool, None)}],
            "from_step?": (_STEP, None),
        }
    ],
    "versions": dict,
    "first_non_finite": ({"step": _STEP, "layer": _TEXT, "where": str, "parameter?": _TEXT, "kind": str}, None),
    "best": ({"name?": _TEXT, "mode?": ("min", "max"), "value?": _NUMBER, "step?": (_STEP, None)}, None),
    "notes": [str],
    "resumed_at": [_STEP],
    "signals?": (_SIGNALS, None),
}
_TYPE_NAMES = {
    str: "text", int: "an integer", float: "a number", bool: "true or false", dict: "an object", list: "a list",
}  # fmt: skip


def now() -> str:
    """The current time in the format of meta.json."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def new(folder: Path, meta: Mapping[str, Any]) -> Meta:
    """The metadata of a new run: the given keys, and defaults for all others."""
    defaults: Meta = {
        **dict.fromkeys(("error", "ended", "model", "device", "dtype", "first_non_finite", "best")),
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
    contents: Meta = to_json({**defaults, **meta})
    check(contents, "the metadata of the run")
    return contents


def to_json(value: Any) -> Any:
    """Convert a value to what strict JSON can hold: tuples become lists, NaN and infinity null, NumPy numbers plain.

    Raises:
        InputError: It contains something that JSON cannot hold.

    Example:
        >>> to_json({"residual": float("nan"), "shape": (64, 1433)})
        {'residual': None, 'shape': [64, 1433]}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    raise InputError(f"Expected text, numbers, lists and mappings of them in metadata, got {type(value).__name__}")


def read(folder: Path) -> Meta:
    """Read and validate the metadata of a run folder."""
    path = folder / META
    if not folder.exists():
        raise InputError(f"Expected the folder of a run, but {folder} does not exist")
    if not folder.is_dir():
        raise InputError(f"Expected the folder of a run, but {folder} is a file; pass the folder that holds {META}")
    if not path.is_file():
        inside = [str(path.parent) for path in sorted(folder.glob(f"*/{META}"))][:8]
        hint = f"Did you mean a folder inside it: {' '.join(inside)}?" if inside else "Pass one that gatdiag recorded."
        raise InputError(f"{folder} is not the folder of a run: it has no {META}. {hint}")
    if path.stat().st_size > _MAX_BYTES:
        raise InputError(f"{path} is damaged: it is larger than {_MAX_BYTES} bytes")
    try:
        meta = json.loads(path.read_bytes().decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged: it is not valid JSON ({str(error) or type(error).__name__}). The tables beside it "
            "cannot be read without it; restore it from a copy."
        ) from error
    check(meta, str(path))
    return dict(meta)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def write(folder: Path, meta: Meta, *, durable: bool = False) -> None:
    """Replace meta.json."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in meta.items())
    with atomic_write(folder / META, durable=durable) as path:
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def check(meta: Any, where: str) -> None:
    """Raise `InputError` if metadata are not valid; `where` says in the message where they are from."""
    if not isinstance(meta, dict) or not isinstance(meta.get("schema"), int) or isinstance(meta["schema"], bool):
        raise InputError(f'{where} is not that of a run: expected an object with "schema": {SCHEMA_VERSION}')
    if meta["schema"] != SCHEMA_VERSION:
        raise InputError(
            f"{where} has schema {_shown(meta['schema'])}, but this gatdiag reads schema {SCHEMA_VERSION}. The run was "
            + (
                "recorded by a newer gatdiag: upgrade (pip install -U gatdiag) to read it."
                if meta["schema"] > SCHEMA_VERSION
                else "recorded by an earlier gatdiag: record it again, or read it with that version."
            )
        )
    _check_shape(meta, _SHAPE, where, "")
    _check_names("layer", layer_names(meta), where)
    _check_names("parameter", parameter_names(meta), where)
    found = meta["laws"]["found"]
    if sum(law.get("count", 1) for law in found) > MAX_LAWS:
        raise InputError(f"{where}: a run holds at most {MAX_LAWS} laws")
    if any((law["neuron"] or 0) + law.get("count", 1) - 1 > _MAX_NEURON for law in found):
        raise InputError(f"{where}: neurons are numbered from 0 to {_MAX_NEURON}")


def _check_shape(value: Any, shape: Any, where: str, path: str) -> None:
    shapes = shape if isinstance(shape, tuple) else (shape,)
    matching = next((each for each in shapes if _matches(value, each)), ...)
    if matching is ...:
        raise InputError(f'{where}: "{path}" should be {" or ".join(map(_describe, shapes))}, got {_shown(value)}')
    prefix = f"{path}." if path else ""
    if isinstance(matching, list):
        for position, inner in enumerate(value):
            _check_shape(inner, matching[0], where, f"{prefix}{position}")
    elif isinstance(matching, dict):
        for key, inner in matching.items():
            if key[-1] not in "?*" and key not in value:
                raise InputError(f'{where} is incomplete: "{prefix}{key}" is missing')
            for name in value.keys() & {key.rstrip("?")} if key != "*" else value:
                _check_shape(value[name], inner, where, f"{prefix}{name}")


def _matches(value: Any, shape: Any) -> bool:
    if shape is None or isinstance(shape, str):
        return bool(value == shape)
    if isinstance(shape, range):
        return type(value) is int and value in shape
    kind = type(shape) if isinstance(shape, dict | list) else shape
    return isinstance(value, int | float if kind is float else kind) and (kind is bool or not isinstance(value, bool))


def _describe(shape: Any) -> str:
    if shape is None or isinstance(shape, str):
        return shape or "null"
    if isinstance(shape, range):
        return f"an integer from {shape.start} to {shape.stop - 1}"
    return _TYPE_NAMES[type(shape) if isinstance(shape, dict | list) else shape]


def _check_names(what: str, names: tuple[str, ...], where: str) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"{where}: the {what} {_shown(name)} is in the structure {times} times")
        if not is_valid_unicode(name):
            raise InputError(f"{where}: the {what} name {_shown(name)} is not valid Unicode")


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    if isinstance(value, dict | list):
        return f"{_TYPE_NAMES[type(value)]} of length {len(value)}"
    return quote(value) if isinstance(value, str) else str(value)


def layer_names(meta: Meta) -> tuple[str, ...]:
    """Names of the recorded layers, in structure order."""
    return tuple(layer["name"] for layer in meta["structure"]["layers"])


def parameter_names(meta: Meta) -> tuple[str, ...]:
    """Names of the recorded parameters, in structure order."""
    return tuple(parameter["name"] for layer in meta["structure"]["layers"] for parameter in layer["parameters"])
