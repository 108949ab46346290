"""Entries of a run's meta.json: the model, its laws, its optimizers and the machine."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

import gatdiag
from gatdiag.errors import InputError
from gatdiag.law import Exclusion, Law
from gatdiag.names import escape_surrogates
from gatdiag.quantities import QUANTITIES
from gatdiag.recorder.settings import Selection
from gatdiag.run.laws import pack
from gatdiag.structure import Layer
from gatdiag.structure.modules import named_parameters
from gatdiag.structure.optimizers import plain_setting

_DESCRIBED = ("name", "table", "label", "unit", "equation", "paper", "high", "low")


def describe_model(model: nn.Module) -> dict[str, str]:
    """Class, device and dtype."""
    first = next((parameter for _, parameter in named_parameters(model)), None)
    return {
        "model": type(model).__name__,
        "device": "none" if first is None else str(first.device),
        "dtype": "none" if first is None else str(first.dtype).removeprefix("torch."),
    }


def describe_recording(selection: Selection) -> dict[str, Any]:
    """The recorded quantities, and the versions of the software."""
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
        "torch_geometric": version("torch_geometric"),  # without importing it, which is slow
        "numpy": np.__version__,
        "platform": platform.platform(),
    }
    return {"quantities": quantities, "versions": versions}


def describe_structure(layers: Iterable[Layer], order: str) -> dict[str, Any]:
    """The recorded layers with their parameters."""
    return {"order": order, "layers": [asdict(layer) for layer in layers]}


def check_same_model(recorded: Mapping[str, Any], layers: Sequence[Layer]) -> None:
    """Check that a run can be resumed with these layers, which may be more than before.

    Raises:
        InputError: A recorded layer is missing, or a parameter has another shape.
    """
    names = {escape_surrogates(layer.name) for layer in layers}
    missing = [layer["name"] for layer in recorded["layers"] if layer["name"] not in names]
    if names and missing:
        raise InputError(
            f"The run to resume is of another model, or was recorded with another include= or exclude=: it has the "
            f"layer {missing[0]}, which is not recorded now; use another folder, or overwrite the run"
        )
    infos = [info for layer in recorded["layers"] for info in layer["parameters"]]
    shapes = {info["name"]: tuple(info["shape"]) for info in infos if "shape" in info}
    for layer in layers:
        for info in layer.parameters:
            name = escape_surrogates(info.name)
            if shapes.get(name, info.shape) != info.shape:
                raise InputError(
                    f"The run to resume is of another model: expected {name} of shape {shapes[name]}, got "
                    f"{info.shape}; use another folder"
                )


def describe_laws(found: Iterable[Law], excluded: Iterable[Exclusion], error: str | None) -> dict[str, Any]:
    """The recorded laws, in the order of the table `neurons`."""
    return {
        "found": pack(found),
        "excluded": [asdict(exclusion) for exclusion in excluded],
        "error": error,
    }


def describe_optimizer(optimizer: Optimizer, names: Mapping[int, str], step: int) -> dict[str, Any]:
    """Class and settings of an optimizer, and the names of the parameters in each group.

    Args:
        optimizer: The optimizer.
        names: Id -> name of each parameter of the model.
        step: The first step that it makes.
    """
    groups = [
        {
            **{key: plain_setting(value) for key, value in group.items() if key != "params"},
            "parameters": [names[id(parameter)] for parameter in group["params"] if id(parameter) in names],
        }
        for group in optimizer.param_groups
    ]
    return {"class": type(optimizer).__name__, "groups": groups, "from_step": step}


def merge_optimizer(known: Sequence[Mapping[str, Any]], new: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Add the description of an optimizer to those of others.

    If it differs from one of the same step only in its parameters, the two are merged. If only its first step differs,
    as after resuming or if an optimizer is created at each step, it is left out.
    """
    for at, old in enumerate(known):
        if _without(old, "from_step") == _without(new, "from_step"):
            return list(known)
        if _settings(old) == _settings(new):
            groups = [
                {**mine, "parameters": [*mine["parameters"], *theirs["parameters"]]}
                for mine, theirs in zip(old["groups"], new["groups"], strict=True)
            ]
            return [*known[:at], {**old, "groups": groups}, *known[at + 1 :]]
    return [*known, new]


def extend_optimizer(known: Sequence[Mapping[str, Any]], new: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Replace the description of an optimizer by one with more parameters; the settings of its old groups are kept."""
    for at, old in enumerate(known):
        pairs = [*zip(old["groups"], new["groups"], strict=False)]
        if old["class"] == new["class"] and all(
            mine["parameters"] == theirs["parameters"][: len(mine["parameters"])] for mine, theirs in pairs
        ):
            groups = [{**mine, "parameters": theirs["parameters"]} for mine, theirs in pairs]
            return [*known[:at], {**old, "groups": [*groups, *new["groups"][len(pairs) :]]}, *known[at + 1 :]]
    return [*known, new]


def _settings(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    return {**optimizer, "groups": [_without(group, "parameters") for group in optimizer["groups"]]}


def _without(entries: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if name != key}
