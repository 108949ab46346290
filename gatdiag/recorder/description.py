"""What a run's meta.json says of the model, its laws, its optimisers and the machine."""

import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch import nn
from torch.optim import Optimizer

from gatdiag.errors import InputError
from gatdiag.recorder.groups import Selection
from gatdiag.recorder.plan import Plan
from gatdiag.recorder.quantities import described
from gatdiag.structure import Layer


def of_model(model: nn.Module) -> dict[str, str]:
    """Class, device and number type."""
    first = next(iter(model.parameters()), None)
    return {
        "model": type(model).__name__,
        "device": "none" if first is None else str(first.device),
        "dtype": "none" if first is None else str(first.dtype).removeprefix("torch."),
    }


def fixed(selection: Selection) -> dict[str, Any]:
    """What does not depend on the model: the quantities that are recorded, and the versions of what records them."""
    try:
        own = version("gatdiag")
    except PackageNotFoundError:
        own = "unknown"
    return {"quantities": described(selection.columns), "versions": _versions(own)}


def of_structure(layers: Iterable[Layer], order: str) -> dict[str, Any]:
    """The layers that are recorded, with their parameters."""
    return {"order": order, "layers": [asdict(layer) for layer in layers]}


def refuse_other_shapes(recorded: Mapping[str, Any], layers: Iterable[Layer]) -> None:
    """A run that is resumed is of one model.

    Raises:
        InputError: A parameter had another shape when the run began.
    """
    shapes = {
        info["name"]: tuple(info["shape"])
        for layer in recorded["layers"]
        for info in layer["parameters"]
        if "shape" in info
    }
    for layer in layers:
        for info in layer.parameters:
            if shapes.get(info.name, info.shape) != info.shape:
                raise InputError(
                    f"The run that is resumed is of another model: {info.name} had shape {shapes[info.name]} and has "
                    f"{info.shape}; give another folder"
                )


def of_laws(plan: Plan) -> dict[str, Any]:
    """The laws that are recorded, in the order of their positions in the table `neurons`."""
    found = [] if plan.balance is None or plan.laws is None else [plan.laws[n] for n in plan.balance.wanted.tolist()]
    return {
        "found": [
            {
                "name": law.name,
                "kind": law.kind,
                "layer": law.layer,
                "neuron": law.neuron,
                "exact": law.exact,
                "residual": law.residual if math.isfinite(law.residual) else None,
            }
            for law in found
        ],
        "excluded": [] if plan.laws is None else [asdict(exclusion) for exclusion in plan.laws.excluded],
        "error": plan.error,
    }


def of_optimizers(optimizers: Iterable[Optimizer], names: Mapping[int, str]) -> list[dict[str, Any]]:
    """Class and settings of each optimiser, and the parameters of the model that each of its groups holds.

    Args:
        optimizers: The optimisers.
        names: id of parameter -> name.
    """
    return [{"class": type(optimizer).__name__, "groups": _groups(optimizer, names)} for optimizer in optimizers]


def _groups(optimizer: Optimizer, names: Mapping[int, str]) -> list[dict[str, Any]]:
    return [
        {
            **{key: _plain(value) for key, value in group.items() if key != "params"},
            "parameters": [names[id(parameter)] for parameter in group["params"] if id(parameter) in names],
        }
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)


def _versions(gatdiag: str) -> dict[str, str]:
    return {
        "gatdiag": gatdiag,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
    }
