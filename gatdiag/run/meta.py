"""meta.json: its contents, and the file."""

import datetime
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from gatdiag.errors import InputError
from gatdiag.names import escape_surrogates
from gatdiag.run.files import META, atomic_write, check_regular, has_tables, runs_inside
from gatdiag.run.shape import META_SHAPE, find_flaw
from gatdiag.run.tables import SCHEMA_VERSION

Meta: TypeAlias = dict[str, Any]
_MOST_NAMED = 8  # runs in an error


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
    return contents


def to_json(value: Any) -> Any:
    """Convert a value to what strict JSON can hold: tuples become lists, NaN and infinity null, NumPy numbers plain.

    Lone surrogates in texts are escaped.

    Raises:
        InputError: It contains something that JSON cannot hold.

    Example:
        >>> to_json({"residual": float("nan"), "shape": (64, 1433)})
        {'residual': None, 'shape': [64, 1433]}
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return escape_surrogates(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {escape_surrogates(str(key)): to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    raise InputError(f"Expected text, numbers, lists and mappings of them in metadata, got {type(value).__name__}")


def read(folder: Path) -> Meta:
    """Read the metadata of a run folder.

    Raises:
        InputError: It is not the folder of a run, its meta.json is damaged, or its schema is that of another gatdiag.
    """
    path = folder / META
    _check_there(folder, path)
    try:
        meta = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: it is not valid JSON ({error}); restore it from a copy") from error
    schema = meta.get("schema") if isinstance(meta, dict) else None
    if type(schema) is not int:
        raise InputError(f'{path} is not that of a run: expected an object with "schema": {SCHEMA_VERSION}')
    if schema != SCHEMA_VERSION:
        is_newer = schema > SCHEMA_VERSION
        raise InputError(
            f"{path} has schema {schema}, but this gatdiag reads schema {SCHEMA_VERSION}. The run was recorded by "
            + ("a newer gatdiag: upgrade (pip install -U gatdiag)." if is_newer else "an earlier one: record it again.")
        )
    if (flaw := find_flaw(meta, META_SHAPE)) is not None:
        raise InputError(f'{path} is damaged: "{flaw}" is missing or of another type; restore it from a copy')
    return dict(meta)


def _check_there(folder: Path, path: Path) -> None:
    """Raise `InputError` if the folder has no meta.json."""
    if not folder.exists():
        raise InputError(f"Expected the folder of a run, but {folder} does not exist")
    if not folder.is_dir():
        raise InputError(f"Expected the folder of a run, but {folder} is a file; pass the folder that holds {META}")
    check_regular(path)
    if not path.exists():
        if has_tables(folder):
            raise InputError(
                f"{path} is missing, and the tables beside it cannot be read without it: restore it from a copy"
            )
        inside = [*map(str, runs_inside(folder))]
        first = f"{' '.join(inside[:_MOST_NAMED])}{' ...' if len(inside) > _MOST_NAMED else ''}"
        hint = f"Pass one of the {len(inside)} inside it: {first}" if inside else "Pass one that gatdiag recorded."
        raise InputError(f"{folder} is not the folder of a run: it has no {META}. {hint}")


def write(folder: Path, meta: Meta, *, durable: bool = False) -> None:
    """Replace meta.json."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in meta.items())
    with atomic_write(folder / META, durable=durable) as path:
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def layer_names(meta: Meta) -> tuple[str, ...]:
    """Names of the recorded layers, in structure order."""
    return tuple(layer["name"] for layer in meta["structure"]["layers"])


def parameter_names(meta: Meta) -> tuple[str, ...]:
    """Names of the recorded parameters, in structure order."""
    return tuple(parameter["name"] for layer in meta["structure"]["layers"] for parameter in layer["parameters"])
