"""A model without its epsilons: what an approximate law is exact for."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from gatdiag.laws.rules.call import EPSILON

_GUARDED = frozenset(
    [
        "add",
        "sub",
        "rsub",
        "radd",
        "iadd",
        "isub",
        "clamp",
        "clamp_min",
        "clip",
        "batch_norm",
        "layer_norm",
        "group_norm",
        "instance_norm",
        "rms_norm",
        "normalize",
        "local_response_norm",
        "cosine_similarity",
    ]
)
# By how much epsilons are shrunk: far below rounding, yet not zero, so that 0 / 0 stays guarded.
_SHRINK = 1e-12


class WithoutEpsilon(TorchFunctionMode):
    """While active, small constants that are added, or given to a normalization, are made negligible."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Shrink the constants of the operations that guard against division by zero."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "").strip("_") in _GUARDED:
            args = tuple(map(_shrunk, args))
            kwargs = {name: _shrunk(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _shrunk(value: Any) -> Any:
    return value * _SHRINK if isinstance(value, float) and 0 < abs(value) <= EPSILON else value
