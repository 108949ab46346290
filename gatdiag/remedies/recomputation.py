"""Modes that are on again when a part of the forward pass runs a second time, in the backward pass.

Activation checkpoints and reversible layers keep a function of the forward pass, and call it again in the backward
pass, when the modes of the forward pass are off: torch restores autocast and the random state there, but no modes. The
function may be a closure that calls no module, so that the only place to turn a mode on is around the function itself.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial, wraps
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.checkpoint import CheckpointFunction, _CheckpointFrame

_CALLERS: Final = tuple(
    getattr(torch.ops.higher_order, name)
    for name in ("tag_activation_checkpoint", "cond", "while_loop", "map_impl", "scan", "associative_scan")
)


class RecomputedMode(TorchFunctionMode):
    """A mode that is on again wherever a function that was called in it is called in the backward pass.

    Example:
        >>> from torch.utils.checkpoint import checkpoint
        >>> class Doubled(RecomputedMode):
        ...     def __torch_function__(self, func, types, args=(), kwargs=None):
        ...         out = call_operation(func, args, kwargs or {})
        ...         return 2 * out if func is torch.sin else out
        >>> keep_modes_in_recomputations()
        >>> x = torch.zeros((), requires_grad=True)
        >>> with Doubled():
        ...     y = checkpoint(lambda x: x.cos() * torch.sin(x).exp(), x, use_reentrant=False)
        >>> torch.autograd.grad(y, x)
        (tensor(2.),)
    """


def call_operation(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an operation that a `RecomputedMode` was given, outside the mode.

    torch.compile gives it checkpoints as well, and would trace the functions that they call outside the mode. As it
    cannot turn modes on in such a function, checkpoints are not compiled, and other such operations raise an error.
    """
    if torch.compiler.is_dynamo_compiling() and func in _CALLERS:
        torch._dynamo.graph_break(
            msg="leaky_relu_: a function that a checkpoint, torch.cond or a loop calls cannot be compiled"
        )
    return func(*args, **kwargs)


@cache
def keep_modes_in_recomputations() -> None:
    """Let functions that are kept for the backward pass from now on run in the modes in which they are kept.

    It changes the checkpoints of torch and the reversible layers of PyG, without effect outside a `RecomputedMode`.
    """
    from torch_geometric.nn.models.rev_gnn import InvertibleFunction

    _keep_modes(CheckpointFunction, "forward", "run_function")  # use_reentrant=True
    _keep_modes(_CheckpointFrame, "__init__", "recompute_fn")  # use_reentrant=False
    _keep_modes(InvertibleFunction, "forward", "fn", "fn_inverse")


def _keep_modes(owner: type, method: str, *functions: str) -> None:
    """Let the functions that a method keeps as attributes of its first argument run in the modes that are on now."""
    original = getattr(owner, method)

    @wraps(original)
    def keep(keeper: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(keeper, *args, **kwargs)
        modes = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, RecomputedMode)]
        if modes:
            for name in functions:
                setattr(keeper, name, partial(_call_in, modes, getattr(keeper, name)))
        return result

    is_static = isinstance(vars(owner)[method], staticmethod)
    setattr(owner, method, staticmethod(keep) if is_static else keep)


def _call_in(modes: Sequence[RecomputedMode], function: Callable[..., Any], *args: Any) -> Any:
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        return function(*args)
