"""Runs that figures must survive: broken numbers, one step, one layer, 512 layers, hostile names, hardly anything."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gatdiag.run import Run, Store, load
from gatdiag.run.writer import Ending
from tests.run.synthetic import synthetic_meta, synthetic_run

PAUSED = (*range(20), *range(1000, 1020), 3500, *range(6000, 6020))  # recorded in three parts, and a step between
HOSTILE = (
    "$x_1^2$",
    "<script>alert('&')</script>",
    "line\nbreak\tand \x00 control",
    "emoji \U0001f600 and \u202eright to left",
    "_leading.underscore",
    "n" * 300,
    r"\frac{1}{0} $ %s {}",
    "",
)


def recorded_run(
    folder: Path,
    meta: dict[str, Any],
    rows: Callable[[int], dict[str, Any]],
    steps: int,
    ending: Ending | None = "finished",
) -> Run:
    """A run whose rows of each step are given as {table: columns}; without an ending it is left open."""
    store = Store.create(folder, meta)
    for step in range(steps):
        for table, columns in rows(step).items():
            store.append(table, {"step": step, **columns})
    if ending is None:
        store.close()
    else:
        store.seal(ending, meta.get("error"))
    return load(folder)


def broken_run(folder: Path, steps: int = 40, layers: int = 6, neurons: int = 3, start: int = 15) -> Run:
    """NaN from step `start` on, an infinity in layer 2 before that, zeros in layer 1, and early spikes."""

    def rows(step: int) -> dict[str, Any]:
        values = np.full(layers, 1.0 / (1 + step))
        values[0] *= 1e12 if step == 1 else 1
        values[1] = 0.0
        values[2] = np.inf if step == start - 3 else values[2]
        values[:] = np.nan if step >= start else values
        weights = np.repeat(values, 3)
        laws = np.repeat(values[: layers - 1], neurons)
        return {
            "steps": {"loss": np.nan if step >= start else 2.0 - 0.01 * step, "gradient_norm": float(values.sum())},
            "layers": {
                "layer": np.arange(layers),
                **{f"{of}mu": values for of in ("", "relative_", "gradient_", "relative_gradient_")},
                "output_norm": values,
                "output_gradient_norm": values,
                "non_finite": np.where(np.isfinite(values), 0.0, 5.0),
            },
            "parameters": {
                "parameter": np.arange(3 * layers),
                **dict.fromkeys(("gradient_norm", "relative_gradient_norm"), weights),
                "norm": np.where(np.isnan(weights), np.nan, 1.0),
            },
            "neurons": {"law": np.arange(len(laws)), "delta": laws, "c": laws - 0.2, "predicted_c": laws},
        }

    run = recorded_run(folder, synthetic_meta(layers, neurons), rows, steps)
    store = Store.resume(folder)
    names = [(p["name"], p["shape"]) for layer in run.meta["structure"]["layers"] for p in layer["parameters"]]
    store.save_snapshot("initial", {name: np.ones(shape, np.float32) for name, shape in names})
    store.save_snapshot("final", {name: np.full(shape, np.nan, np.float32) for name, shape in names})
    store.seal("failed")
    return load(folder)


def bare_run(folder: Path, logged: tuple[str, ...] = ("loss",)) -> Run:
    """Nothing but logged scalars: no layers, no laws."""
    meta = synthetic_meta(0, 0)
    return recorded_run(folder, meta, lambda step: {"steps": dict.fromkeys(logged, 1.0 / (1 + step))}, 20)


def hostile_run(folder: Path) -> Run:
    """Every name that the user chooses is one to break mathtext, legends or layouts."""
    meta = synthetic_meta(len(HOSTILE), 2)
    for layer, name in zip(meta["structure"]["layers"], HOSTILE, strict=True):
        layer["name"] = name
    for law in meta["laws"]["found"]:
        law["layer"] = HOSTILE[int(law["layer"].removeprefix("convs."))]
    values = np.linspace(0.1, 1.0, len(HOSTILE))

    def rows(step: int) -> dict[str, Any]:
        now = values / (1 + step)
        weights = np.repeat(now, 3)
        laws = np.repeat(now[:-1], 2)
        return {
            "steps": {"loss $": 1.0, "val loss_{": 2.0, "val accuracy\n$": 0.5, "train_accuracy " + "n" * 300: 0.4},
            "layers": {"layer": np.arange(len(now)), "mu": now, "relative_mu": now, "gradient_mu": now},
            "parameters": {
                "parameter": np.arange(3 * len(now)),
                **dict.fromkeys(("norm", "gradient_norm", "relative_gradient_norm", "unchanged_fraction"), weights),
                **{
                    f"{kind}_change_q{q}": weights
                    for kind in ("relative", "absolute")
                    for q in (0, 5, 25, 50, 75, 95, 100)
                },
            },
            "neurons": {"law": np.arange(len(laws)), "delta": laws, "c": laws, "predicted_c": laws},
        }

    return recorded_run(folder, {**meta, "name": HOSTILE[0] + HOSTILE[3]}, rows, 12)


def odd_runs(folder: Path) -> dict[str, Run]:
    """One of each, and an ordinary one."""
    made = {
        "ordinary": {"steps": 200, "layers": 6, "neurons": 4},
        "stuck": {"steps": 60, "layers": 10, "neurons": 4, "collapse": True},
        "one step": {"steps": 1, "layers": 5, "neurons": 3},
        "one layer": {"steps": 30, "layers": 1, "neurons": 3},
        "paused": {"steps": PAUSED, "layers": 4, "neurons": 2},
        "512 layers": {"steps": 4, "layers": 512, "neurons": 1, "collapse": True},
    }
    runs = {name: load(synthetic_run(folder / name, **options)) for name, options in made.items()}
    return runs | {
        "broken": broken_run(folder / "broken"),
        "loss only": bare_run(folder / "bare"),
        "nothing": bare_run(folder / "nothing", logged=()),
        "hostile": hostile_run(folder / "hostile"),
    }
