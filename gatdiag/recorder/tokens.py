"""Tokens: whether the target of a loss at each time is the next token of the input."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from gatdiag.recorder import criterion

_MIN_TOKENS: Final = 20
_SAME: Final = 0.98  # share of the targets that are the next token
_OTHER: Final = 0.9  # share of the next tokens that may be the token itself


def find_tokens(tensors: Sequence[Tensor]) -> Tensor | None:
    """The first of the inputs that holds tokens (sequences, time)."""
    return next((x for x in tensors if _are_tokens(x)), None)


def only_tokens(tensors: Sequence[Tensor], o: Tensor) -> Tensor | None:
    """The tokens (sequences, time), if no other input holds some, and the output is (sequences, time, classes)."""
    found = [x for x in tensors if _are_tokens(x)]
    return found[0] if len(found) == 1 and o.dim() == 3 and o.shape[:2] == found[0].shape else None


def _are_tokens(x: Tensor) -> bool:
    return x.dtype == torch.int64 and x.dim() == 2 and x.shape[1] > 3 and x.numel() >= _MIN_TOKENS


def asked_tokens(o: Tensor, gradient: Tensor, tokens: Tensor) -> dict[str, bool]:
    """Whether the target at each time is the next token of the input, or the token that is there itself.

    Args:
        o: The output (sequences, time, classes).
        gradient: dL/do.
        tokens: The input (sequences, time).

    Returns:
        "is_next_token" and "is_own_token"; both False where most tokens are followed by themselves.

    Example:
        >>> import torch
        >>> tokens = torch.arange(8).repeat(4, 1)
        >>> o = torch.zeros(4, 7, 8, requires_grad=True)
        >>> loss = torch.nn.functional.cross_entropy(o.flatten(0, 1), tokens[:, 1:].flatten())
        >>> (gradient,) = torch.autograd.grad(loss, o)
        >>> asked_tokens(o, gradient, tokens[:, :-1]), asked_tokens(o, gradient, tokens[:, 1:])
        ({'is_next_token': True, 'is_own_token': False}, {'is_next_token': False, 'is_own_token': True})
    """
    is_next = is_own = 0.0
    if criterion.identify(o, gradient)[0] in ("cross-entropy", "nll"):
        live = (gradient != 0).any(2)[:, :-1]
        targets, now, following = gradient.argmin(2)[:, :-1][live], tokens[:, :-1][live], tokens[:, 1:][live]
        if len(targets) >= _MIN_TOKENS and len(targets.unique()) > 1:
            is_next, is_own = (float((targets == each).double().mean()) for each in (following, now))
    return {
        "is_next_token": is_next >= _SAME and is_own < _OTHER,
        "is_own_token": is_own >= _SAME and is_next < _OTHER,
    }
