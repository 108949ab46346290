"""Does a model see what it is to predict? Asked of a copy, before training, where the target is the next token."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from gatdiag.recorder import criterion
from gatdiag.structure.copying import map_tensors
from gatdiag.structure.tensors import first_tensor, named_tensors

_MIN_TOKENS: Final = 20
_SAME: Final = 0.98  # share of the targets that are the next token
_OTHER: Final = 0.9  # share of the next tokens that may be the token itself


def dependence_on_future(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], loss: Callable[[Any], Tensor]
) -> float | None:
    """How far outputs change if later tokens are replaced, over their standard deviation: 0 with a causal mask.

    Args:
        model: A copy that may be run, and whose gradients nobody needs.
        args: Positional inputs.
        kwargs: Keyword inputs.
        loss: Function from the model's output to the loss.

    Returns:
        None unless the input is tokens (sequences, time), the output (sequences, time, classes), and the loss
        cross-entropy whose target at each time is the next token of the input.
    """
    tokens = next((x for _, x in named_tensors((args, kwargs)) if _are_tokens(x)), None)
    if tokens is None:
        return None
    with _in_evaluation(model):
        out = model(*args, **kwargs)
        o = first_tensor(out)
        if o is None or o.dim() != 3 or o.shape[:2] != tokens.shape or not o.requires_grad:
            return None
        (gradient,) = torch.autograd.grad(loss(out), o, allow_unused=True)
        if gradient is None or not _is_next_token(o.detach(), gradient, tokens):
            return None
        middle = tokens.shape[1] // 2
        others = _replace_after(tokens, middle)
        changed_args, changed_kwargs = map_tensors((args, kwargs), lambda x: others if x is tokens else x)
        with torch.no_grad():
            changed = first_tensor(model(*changed_args, **changed_kwargs))
    if changed is None or changed.shape != o.shape or torch.equal(others, tokens):
        return None
    before, after = (x.detach()[:, : middle + 1].double() for x in (o, changed))
    return float((after - before).abs().max() / before.std().clamp(min=1e-12))


def _are_tokens(x: Tensor) -> bool:
    return x.dtype == torch.int64 and x.dim() == 2 and x.shape[1] > 3 and x.numel() >= _MIN_TOKENS


def _is_next_token(o: Tensor, gradient: Tensor, tokens: Tensor) -> bool:
    """Whether the target at each time is the next token of the input, and that is not mostly the same token."""
    if criterion.identify(o, gradient)[0] not in ("cross-entropy", "nll"):
        return False
    live = (gradient != 0).any(2)[:, :-1]
    targets, now, following = gradient.argmin(2)[:, :-1][live], tokens[:, :-1][live], tokens[:, 1:][live]
    if len(targets) < _MIN_TOKENS or len(targets.unique()) < 2:
        return False
    is_next, is_same = (float((targets == each).double().mean()) for each in (following, now))
    return is_next >= _SAME and is_same < _OTHER


def _replace_after(tokens: Tensor, time: int) -> Tensor:
    """The tokens with those after a time replaced by those of the next sequence, or in reverse if there is one."""
    tail = tokens[:, time + 1 :]
    others = tail.roll(1, 0) if len(tokens) > 1 else tail.flip(1)
    return torch.cat([tokens[:, : time + 1], others], 1)


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """Dropout and running statistics are the same in both passes."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
