"""Leaky ReLU in place of ReLU, in a model as it stands: a unit that is left of zero still learns."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gatdiag.remedies.applied import Applied, module_of, positive, put_on, refuse_scripted, take_off

_SLOPE = "_gatdiag_slope"
_IN_PLACE = (torch.relu_, F.relu_, Tensor.relu_)
_RELU = (torch.relu, F.relu, Tensor.relu, *_IN_PLACE)


def leaky_relu_(model: nn.Module, slope: float = 0.1) -> Applied:
    """Let x < 0 pass as slope x wherever the model's forward pass has a ReLU, in place.

    Modules (`torch.nn.ReLU`) and calls (``torch.relu``, ``F.relu``, ``x.relu()``) alike. Units that a ReLU keeps at
    zero at every node get a gradient again. The laws of the model are the same ones: a leaky ReLU is homogeneous, too.

    Args:
        model: Any module whose forward pass is called itself.
        slope: Left of zero; positive.

    Returns:
        What was changed, and the way back.

    Raises:
        InputError: The model is no module, or the slope is not a positive number.
        ModelError: The model is a scripted one.

    Source:
        Maas, Hannun, Ng, "Rectifier nonlinearities improve neural network acoustic models", ICML 2013.

    Example:
        >>> model = nn.Sequential(nn.ReLU())
        >>> applied = leaky_relu_(model, 0.25)
        >>> model(torch.tensor([-1.0, 2.0]))
        tensor([-0.2500,  2.0000])
        >>> applied.undo()
        >>> model(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    user = module_of(model)
    refuse_scripted("", user)
    setting = positive(slope, "slope")
    applied, before = Applied("leaky_relu"), getattr(user, _SLOPE, None)

    def put_back() -> None:
        if before is None:
            take_off(user, _Leaky)
            delattr(user, _SLOPE)
        else:
            setattr(user, _SLOPE, before)

    with applied.changing():
        setattr(user, _SLOPE, setting)
        put_on(user, _Leaky)
        applied.record("forward", f"leaky ReLU of slope {setting:g} in place of ReLU", put_back)
    return applied


class _Leaky:
    """A model whose forward pass has another activation."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _LeakyMode(getattr(self, _SLOPE)):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


class _LeakyMode(TorchFunctionMode):
    def __init__(self, slope: float) -> None:
        super().__init__()
        self._slope = slope

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func not in _RELU:
            return func(*args, **given)
        inplace = func in _IN_PLACE or given.get("inplace", args[1] if len(args) > 1 else False)
        return F.leaky_relu(args[0] if args else given["input"], self._slope, inplace)
