"""Does a model see what it is to predict? Asked of a copy, before training, where the target is the next token."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gatdiag.recorder.tokens import asked_tokens, find_tokens
from gatdiag.structure.copying import map_tensors
from gatdiag.structure.tensors import first_tensor, named_tensors


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
    tokens = find_tokens([x for _, x in named_tensors((args, kwargs))])
    if tokens is None:
        return None
    with _in_evaluation(model):
        out = model(*args, **kwargs)
        o = first_tensor(out)
        if o is None or o.dim() != 3 or o.shape[:2] != tokens.shape or not o.requires_grad:
            return None
        (gradient,) = torch.autograd.grad(loss(out), o, allow_unused=True)
        if gradient is None or not asked_tokens(o.detach(), gradient, tokens)["is_next_token"]:
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
