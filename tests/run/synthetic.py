"""A synthetic run, for tests of everything that reads runs.

    from tests.run.synthetic import synthetic_run
    run = gatdiag.load(synthetic_run(tmp_path / "run", collapse=True))

It is written with `Store`, like a real one. Its numbers look like the papers' figures: with `collapse`, gradients
vanish towards the middle layers, mu falls with depth, and nothing trains.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gatdiag.quantities import QUANTITIES
from gatdiag.quantities import columns as catalogue
from gatdiag.run import Store

LOGGED = ("loss", "train_accuracy", "val_accuracy", "test_accuracy")
COARSE = 50  # the expensive columns are measured every 50 steps
_CLASSES = 7


def synthetic_run(
    folder: Path | str,
    *,
    steps: int | Sequence[int] = 200,
    layers: int = 10,
    neurons: int = 8,
    seed: int = 0,
    collapse: bool = False,
    logged: Sequence[str] = LOGGED,
    name: str | None = None,
    seal: bool = True,
) -> Path:
    """Write the run and return its folder.

    Args:
        folder: A new or empty folder.
        steps: The recorded steps, or their number.
        layers: Number of GATv2 convolutions, each with a weight, an attention vector and a bias.
        neurons: Width of each layer; every layer but the last has one law per neuron.
        seed: Seed of all random numbers.
        collapse: Whether the network does not train.
        logged: Names of logged scalars; those with "loss" in their name decrease, the others increase.
        name: Name of the run.
        seal: Whether to seal it as "finished"; otherwise it is left as a kill would leave it.
    """
    random = np.random.default_rng(seed)
    meta = synthetic_meta(layers, neurons)
    store = Store.create(folder, meta if name is None else {**meta, "name": name})
    store.save_snapshot("initial", _tensors(random, layers, neurons))
    model = _Model(random, layers, neurons, collapse)
    best = (-1.0, 0)
    for step in range(steps) if isinstance(steps, int) else steps:
        scalars = {key: model.scalar(key, step) for key in logged}
        best = max(best, (scalars.get("val_accuracy", -1.0), -step))
        store.append("steps", model.steps(step, scalars))
        store.append("layers", model.layers(step))
        store.append("parameters", model.parameters(step))
        store.append("neurons", model.neurons(step))
    store.save_snapshot("best", _tensors(random, layers, neurons))
    store.save_snapshot("final", _tensors(random, layers, neurons))
    if best[0] >= 0:
        store.update_meta(best={"name": "val_accuracy", "mode": "max", "value": best[0], "step": -best[1]})
    if seal:
        store.seal("finished")
    else:
        store.close()
    return Path(folder)


def synthetic_meta(layers: int, neurons: int) -> dict[str, Any]:
    """The metadata of such a run."""
    structure = [_layer(position, neurons) for position in range(layers)]
    laws = [
        {
            "name": f"layer {position + 1} (convs.{position}), neuron {neuron}",
            "kind": "neuron",
            "layer": f"convs.{position}",
            "neuron": neuron,
            "exact": True,
            "residual": [3e-16],
        }
        for position in range(layers - 1)
        for neuron in range(neurons)
    ]
    weights = [parameter["name"] for layer in structure for parameter in layer["parameters"]]
    return {
        "model": "GATv2",
        "device": "cpu",
        "dtype": "float32",
        "structure": {"order": "execution", "layers": structure},
        "laws": {"found": laws, "excluded": [], "error": None},
        "quantities": [asdict(quantity) for quantity in QUANTITIES],
        "cadence": {"every": "1", "budget": None, "metrics": "standard", "groups": {"outputs": 1, "ranks": COARSE}},
        "optimizers": [{"class": "SGD", "groups": [{"lr": 0.1, "weight_decay": 0.0, "parameters": weights}]}],
        "versions": {"gatdiag": "0.1.0", "python": "3.11", "torch": "2.13.0", "platform": "made up"},
        "notes": ["made up by tests/run/synthetic.py"],
    }


def _layer(position: int, neurons: int) -> dict[str, Any]:
    module = f"convs.{position}"
    shapes = {"lin_l.weight": [neurons, neurons], "att": [1, 1, neurons], "bias": [neurons]}
    roles = {"lin_l.weight": "feature weight", "att": "attention vector", "bias": "bias"}
    parameters = [
        {
            "name": f"{module}.{key}",
            "names": [f"{module}.{key}"],
            "role": roles[key],
            "shape": shape,
            "trainable": True,
            "module": f"{module}.lin_l" if "." in key else module,
        }
        for key, shape in shapes.items()
    ]
    return {"index": position + 1, "name": module, "kind": "GATv2Conv", "executed": True, "parameters": parameters}


def _tensors(random: np.random.Generator, layers: int, neurons: int) -> dict[str, np.ndarray]:
    return {
        parameter["name"]: random.normal(size=parameter["shape"]).astype(np.float32)
        for layer in (_layer(position, neurons) for position in range(layers))
        for parameter in layer["parameters"]
    }


class _Model:
    """Made-up measurements. `middle` is 0 at the ends of the network and 1 half-way."""

    def __init__(self, random: np.random.Generator, layers: int, neurons: int, collapse: bool) -> None:
        self.random, self.collapse = random, collapse
        self.depth = np.arange(layers) / max(layers - 1, 1)
        self.middle = 1 - np.abs(2 * self.depth - 1)
        self.c = random.normal(-1.0 if collapse else 0.0, 0.3, size=max(layers - 1, 0) * neurons)
        self.neurons_a_layer = neurons

    def noise(self, *shape: int) -> np.ndarray:
        return np.exp(self.random.normal(0, 0.1, size=shape))

    def progress(self, step: int) -> float:
        """Progress of the training, from 0 towards 1."""
        return 0.05 if self.collapse else 1 - float(np.exp(-step / 60))

    def scalar(self, name: str, step: int) -> float:
        done = self.progress(step) + self.random.normal(0, 0.01)
        return float(np.log(_CLASSES) * max(1 - done, 0.01) if "loss" in name else min(max(0.15 + 0.7 * done, 0), 1))

    def gradient_scale(self, step: int) -> np.ndarray:
        """Relative gradient norm of each layer."""
        power = -1.5 - (7 if self.collapse else 0.5) * self.middle
        return 10**power * (1.05 - self.progress(step)) * self.noise(len(self.depth))

    def steps(self, step: int, scalars: dict[str, float]) -> dict[str, Any]:
        norm = float(np.sqrt((self.gradient_scale(step) ** 2).sum()))
        own = {"step": step, "time": 0.05 * step, "gradient_norm": norm, "learning_rate": 0.1}
        return {**own, **scalars}

    def layers(self, step: int) -> dict[str, Any]:
        count = len(self.depth)
        norm = 30 * 10 ** (-(3 if self.collapse else 0.3) * self.depth) * self.noise(count)
        small = np.minimum(10 ** (-(5 if self.collapse else 0.4) * self.depth) * self.noise(count), 1)
        gradient = self.gradient_scale(step) * 3
        relative_gradient = np.minimum(0.9 * self.noise(count), 1)
        columns = {
            "step": step,
            "layer": np.arange(count),
            "output_norm": norm,
            "mu": norm * small,
            "relative_mu": small,
            "dead_fraction": 0.3 * self.middle * self.collapse,
            "non_finite": 0.0,
            "output_gradient_norm": gradient,
            "gradient_mu": gradient * relative_gradient,
            "relative_gradient_mu": relative_gradient,
            "gradient_dead_fraction": 0.3 * self.middle * self.collapse,
            "gradient_non_finite": 0.0,
            "attention_entropy": 1.2 * self.noise(count),
            "relative_attention_entropy": np.minimum(0.9 * self.noise(count), 1),
            "attention_peak": np.minimum(0.02 * self.noise(count), 1),
        }
        if step % COARSE == 0:
            coarse = [
                each
                for each in catalogue("layers")
                if each.function and each.group != "attention" and each.name not in columns
            ]
            for each in sorted(coarse, key=lambda each: each.of == "output gradient"):
                share = relative_gradient if each.of == "output gradient" else small
                columns[each.name] = share * self.noise(count)
                if each.group == "ranks":  # from 1 to the width
                    columns[each.name] = 1 + self.neurons_a_layer / 2 * share
        return columns

    def parameters(self, step: int) -> dict[str, Any]:
        count = 3 * len(self.depth)
        middle = np.repeat(self.middle, 3)
        relative = np.repeat(self.gradient_scale(step), 3) * self.noise(count)
        norm = np.tile([8.0, 1.0, 0.1], len(self.depth)) * self.noise(count)
        reach = self.progress(step) * (1 - middle if self.collapse else 1 - 0.2 * middle)
        columns = {
            "step": step,
            "parameter": np.arange(count),
            "norm": norm,
            "gradient_norm": norm * relative,
            "relative_gradient_norm": relative,
            "update_ratio": 0.1 * relative,
            "unchanged_fraction": np.where(step == 0, 1.0, 0.9 * middle if self.collapse else 0.0),
            "changed_fraction_005": 0.8 * reach,
            "changed_fraction_050": 0.4 * reach,
            "non_finite": 0.0,
            "gradient_non_finite": 0.0,
        }
        if step % COARSE == 0:
            quantiles = dict(zip((0, 5, 25, 50, 75, 95, 100), (0.0, 0.01, 0.1, 0.3, 0.6, 1.5, 5.0), strict=True))
            columns |= {f"relative_change_q{q}": reach * value for q, value in quantiles.items()}
            columns |= {f"absolute_change_q{q}": 0.2 * reach * value for q, value in quantiles.items()}
            columns |= {each.name: 0.5 * norm for each in catalogue("parameters") if each.function}
        return columns

    def neurons(self, step: int) -> dict[str, Any]:
        count = len(self.c)
        predicted = None if step == 0 else self.c + 1e-4 * self.progress(step)
        if step:
            self.c = self.c + 1e-4 * self.progress(step) + self.random.normal(0, 1e-7, size=count)
        return {
            "step": step,
            "law": np.arange(count),
            "delta": self.random.normal(0, 1e-9, size=count),
            "c": self.c,
            "predicted_c": predicted,
        }
