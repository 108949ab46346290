"""A small run with known values, and a check of what is read against what was recorded."""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from gatdiag.run import Run, Store

LAYERS = ("second", "first")  # not in alphabetical order
PARAMETERS = (
    ("second", "second.w", "bias"),
    ("first", "first.w", "feature weight"),
    ("first", "first.z", "a new role"),
)
LAWS = (("first", 7), ("second", None), ("elsewhere", 0))
META = {
    "model": "Net",
    "structure": {
        "order": "execution",
        "layers": [
            {
                "name": layer,
                "parameters": [
                    {"name": name, "role": role, "shape": [2]} for owner, name, role in PARAMETERS if owner == layer
                ],
            }
            for layer in LAYERS
        ],
    },
    "laws": {"found": [{"layer": layer, "neuron": neuron} for layer, neuron in LAWS], "excluded": [], "error": None},
}
ROWS = {"steps": 1, "layers": 2, "parameters": 3, "neurons": 3}  # per step
SEALED = ["layers.parquet", "meta.json", "neurons.parquet", "parameters.parquet", "steps.parquet"]
STREAMS = ["layers.arrows", "meta.json", "neurons.arrows", "parameters.arrows", "steps.jsonl"]


def value(step: int, position: int, shift: float) -> float:
    """A value that needs all digits of a float64; at some steps a special one."""
    odd = {3: math.nan, 5: math.inf, 6: -0.0, 7: 5e-324}
    return odd.get(step % 16, (step + 1) / 3 + position * 1e-9 + shift)


def step_rows(step: int, shift: float = 0.0) -> list[tuple[str, dict]]:
    """The rows of a step, table by table, as the recorder appends them. `shift` changes the values."""
    c = None if step % 2 else _values(step, 3, shift)
    return [
        ("steps", {"step": step, "loss": value(step, 0, shift)}),
        ("layers", {"step": step, "layer": np.arange(2), "mu": _values(step, 2, shift)}),
        ("parameters", {"step": step, "parameter": np.arange(3), "norm": _values(step, 3, shift)}),
        ("neurons", {"step": step, "law": [0, 1, 2], "delta": _values(step, 3, shift), "c": c}),
    ]


def append_step(store: Store, step: int, shift: float = 0.0) -> None:
    """Append the rows of a step."""
    for table, columns in step_rows(step, shift):
        store.append(table, columns)


def record(folder: Path, steps: Iterable[int], shift: float = 0.0, **more: bool) -> Store:
    """Create a store, and write these steps."""
    store = Store.create(folder, META, **more)
    for step in steps:
        append_step(store, step, shift)
    return store


def _values(step: int, count: int, shift: float) -> np.ndarray:
    return np.array([value(step, position, shift) for position in range(count)])


def same(a: float | None, b: float | None) -> bool:
    """Whether two numbers are bitwise equal, or both null or NaN."""
    if a is None or b is None:
        return a is b
    return np.float64(a).tobytes() == np.float64(b).tobytes() or (math.isnan(a) and math.isnan(b))


def check(run: Run, recorded: Iterable[int | tuple[int, float]]) -> None:
    """Assert that every table has exactly the rows of these steps, or (step, shift), in this order."""
    recorded = [each if isinstance(each, tuple) else (each, 0.0) for each in recorded]
    got = {name: run.arrow(name).to_pylist() for name in ROWS}
    for name, rows in ROWS.items():
        assert [row["step"] for row in got[name]] == [s for s, _ in recorded for _ in range(rows)], name
    for number, (step, shift) in enumerate(recorded):
        assert same(got["steps"][number].get("loss"), value(step, 0, shift))
        for position, layer in enumerate(LAYERS):
            row = got["layers"][2 * number + position]
            assert row["layer"] == layer
            assert same(row["mu"], value(step, position, shift))
            assert row["relative_mu"] is None
        for position, names in enumerate(PARAMETERS):
            row = got["parameters"][3 * number + position]
            assert (row["layer"], row["parameter"], row["role"]) == names
            assert same(row["norm"], value(step, position, shift))
        for position, (layer, neuron) in enumerate(LAWS):
            row = got["neurons"][3 * number + position]
            assert (row["law"], row["neuron"]) == (position, neuron)
            assert row["layer"] == (layer if layer in LAYERS else None)
            assert same(row["delta"], value(step, position, shift))
            assert same(row["c"], None if step % 2 else value(step, position, shift))


def files(folder: Path) -> list[str]:
    """Names of the files in a folder, without the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")
