"""Entries of a run's meta.json: the model, its laws, its optimizers and the machine."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

import gatdiag
from gatdiag.errors import InputError
from gatdiag.law import Exclusion, Law
from gatdiag.quantities import QUANTITIES
from gatdiag.recorder.settings import Selection
from gatdiag.run.laws import pack
from gatdiag.structure import Layer

_DESCRIBED = ("name", "table", "label", "unit", "equation", "paper", "high", "low")


def of_model(model: nn.Module) -> dict[str, str]:
    """Class, device and number type."""
    first = next(iter(model.parameters()), None)
    return {
        "model": type(model).__name__,
        "device": "none" if first is None else str(first.device),
        "dtype": "none" if first is None else str(first.dtype).removeprefix("torch."),
    }


def fixed(selection: Selection) -> dict[str, Any]:
    """Entries that do not depend on the model: the recorded quantities, and the versions of what records them."""
    recorded = (quantity for quantity in QUANTITIES if quantity.group in selection.every)
    quantities = [
        {key: text for key, text in asdict(quantity).items() if key in _DESCRIBED}
        for quantity in recorded
        if quantity.name in selection.columns
    ]
    versions = {
        "gatdiag": gatdiag.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": _installed("torch_geometric"),
        "numpy": np.__version__,
        "platform": platform.platform(),
    }
    return {"quantities": quantities, "versions": versions}


def of_structure(layers: Iterable[Layer], order: str) -> dict[str, Any]:
    """The layers that are recorded, with their parameters."""
    return {"order": order, "layers": [asdict(layer) for layer in layers]}


def check_same_model(recorded: Mapping[str, Any], layers: Sequence[Layer]) -> None:
    """A run that is resumed is of one model; more layers may be recorded than before."""
    names = {layer.name for layer in layers}
    missing = [layer["name"] for layer in recorded["layers"] if layer["name"] not in names]
    if names and missing:
        raise InputError(
            f"The run that is resumed is of another model, or include= and exclude= were others: it has the layer "
            f"{missing[0]}, and this one has not; give another folder, or overwrite=True"
        )
    infos = [info for layer in recorded["layers"] for info in layer["parameters"]]
    shapes = {info["name"]: tuple(info["shape"]) for info in infos if "shape" in info}
    for layer in layers:
        for info in layer.parameters:
            if shapes.get(info.name, info.shape) != info.shape:
                raise InputError(
                    f"The run that is resumed is of another model: {info.name} had shape {shapes[info.name]} and has "
                    f"{info.shape}; give another folder"
                )


def of_laws(found: Iterable[Law], excluded: Iterable[Exclusion], error: str | None) -> dict[str, Any]:
    """The laws that are recorded, in the order of their positions in the table `neurons`."""
    return {
        "found": pack(found),
        "excluded": [asdict(exclusion) for exclusion in excluded],
        "error": error,
    }


def of_optimizer(optimizer: Optimizer, names: Mapping[int, str], step: int) -> dict[str, Any]:
    """Class and settings of an optimizer, and the parameters of the model that each of its groups holds."""
    groups = [
        {
            **{key: _plain(value) for key, value in group.items() if key != "params"},
            "parameters": [names[id(parameter)] for parameter in group["params"] if id(parameter) in names],
        }
        for group in optimizer.param_groups
    ]
    return {"class": type(optimizer).__name__, "groups": groups, "from_step": step}


def joined(known: Sequence[Mapping[str, Any]], new: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The optimizers with a new one; one that differs from another of that step in its parameters alone adds those.

    One that says nothing new, as after resuming or where one is made at every step, is left out.
    """
    for at, old in enumerate(known):
        if _but(old, "from_step") == _but(new, "from_step"):
            return list(known)
        if _settings(old) == _settings(new):
            groups = [
                {**mine, "parameters": [*mine["parameters"], *theirs["parameters"]]}
                for mine, theirs in zip(old["groups"], new["groups"], strict=True)
            ]
            return [*known[:at], {**old, "groups": groups}, *known[at + 1 :]]
    return [*known, new]


def _settings(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    return {**optimizer, "groups": [_but(group, "parameters") for group in optimizer["groups"]]}


def _but(entries: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if name != key}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)


def _installed(distribution: str) -> str:
    """Its version, without importing it: PyG takes as long as torch, and a model may do without."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
