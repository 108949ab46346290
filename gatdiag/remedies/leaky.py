"""Replace ReLU with leaky ReLU in an existing model, so that inactive units get a gradient."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gatdiag.errors import ModelError
from gatdiag.remedies.applied import Applied, add_mixin, check_not_generated, check_positive, remove_mixin, unwrap_model

_SLOPE = "_gatdiag_slope"
_IN_PLACE = (torch.relu_, F.relu_, Tensor.relu_)
_RELU = (torch.relu, F.relu, Tensor.relu, *_IN_PLACE)


def leaky_relu_(model: nn.Module, slope: float = 0.1) -> Applied:
    """Replace every ReLU in a model's forward pass with a leaky ReLU, in place.

    Replaces modules (`torch.nn.ReLU`) and calls (``torch.relu``, ``F.relu``, ``x.relu()``). Units that are zero for
    all nodes get a gradient again. The laws of the model stay the same, as leaky ReLU is homogeneous too.

    Args:
        model: Any module; only calls of its own ``forward`` are affected.
        slope: Slope for negative inputs; positive.

    Returns:
        The change, which can be undone.

    Raises:
        InputError: An argument is invalid.
        ModelError: The model has leaky ReLU already, or is scripted or traced by torch.fx.

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
    user = unwrap_model(model)
    check_not_generated("", user)
    if isinstance(user, _LeakyMixin):
        raise ModelError(f"The model has leaky ReLU with slope {getattr(user, _SLOPE):g} already: undo that first")
    applied = Applied("leaky_relu")

    def restore() -> None:
        remove_mixin(user, _LeakyMixin)
        delattr(user, _SLOPE)

    setattr(user, _SLOPE, check_positive("slope", slope))
    add_mixin(user, _LeakyMixin)
    applied.add_change("forward", f"leaky ReLU with slope {slope:g} in place of ReLU", restore)
    return applied


class _LeakyMixin:
    """Mixin of a model whose forward pass uses leaky ReLU."""

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
        kwargs = kwargs or {}
        if func not in _RELU:
            return func(*args, **kwargs)
        inplace = func in _IN_PLACE or kwargs.get("inplace", args[1] if len(args) > 1 else False)
        return F.leaky_relu(args[0] if args else kwargs["input"], self._slope, inplace)
