"""Replace ReLU with leaky ReLU in an existing model, so that inactive units get a gradient."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gatdiag.errors import ModelError
from gatdiag.remedies.applied import Applied, add_mixin, check_not_generated, check_positive, remove_mixin, unwrap_model
from gatdiag.remedies.recomputation import RecomputedMode, call_operation, keep_modes_in_recomputations

_SLOPE = "_gatdiag_slope"
_IN_PLACE = (torch.relu_, F.relu_, Tensor.relu_)
_RELU = (torch.relu, F.relu, Tensor.relu, *_IN_PLACE)


def leaky_relu_(model: nn.Module, slope: float = 0.1) -> Applied:
    """Replace every ReLU in a model's forward pass with a leaky ReLU, in place.

    Replaces modules (`torch.nn.ReLU`) and calls (``torch.relu``, ``F.relu``, ``x.relu()``). Units that are zero for
    all nodes get a gradient again. The laws of the model stay the same, as leaky ReLU is homogeneous too.

    What `torch.utils.checkpoint` or a reversible layer of PyG runs again in the backward pass is leaky as well; what an
    autograd function of another library runs again is not. `torch.compile` leaves checkpoints to run as they are, and
    `torch.cond` and torch's loops of functions raise an error, as they can only be compiled.

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
        vars(user).pop(_SLOPE, None)

    slope = check_positive("slope", slope)
    with applied.undo_on_error():
        applied.add_change("forward", f"leaky ReLU with slope {slope:g} in place of ReLU", restore)
        setattr(user, _SLOPE, slope)
        add_mixin(user, _LeakyMixin)
        return applied


class _LeakyMixin:
    """Mixin of a model whose forward pass uses leaky ReLU."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Prepare torch for checkpoints in the model, also in a process that only loads it from a file."""
        super().__init_subclass__(**kwargs)
        keep_modes_in_recomputations()

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _LeakyMode(getattr(self, _SLOPE)):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


class _LeakyMode(RecomputedMode):
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
            return call_operation(func, args, kwargs)
        inplace = func in _IN_PLACE or kwargs.get("inplace", args[1] if len(args) > 1 else False)
        return F.leaky_relu(args[0] if args else kwargs["input"], self._slope, inplace)
