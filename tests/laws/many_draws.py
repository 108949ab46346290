"""Many random draws of a model at once, where torch can vectorize its forward and backward pass."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

Loss = Callable[[Any, Tensor], Tensor]


def gradients(
    model: nn.Module, weights: Mapping[str, Tensor], inputs: Sequence[Any], random: Tensor, loss: Loss
) -> dict[str, Tensor]:
    """dLoss/dw of each draw; buffers stay as they are.

    Args:
        model: The model.
        weights: Name -> (draws, ...), values of the trainable parameters.
        inputs: For each draw `(args, kwargs)`, nests of tuples, lists and dicts.
        random: (draws, ...), what the loss is drawn from.
        loss: The model's output, and the random numbers of one draw -> a scalar.

    Raises:
        RuntimeError: torch cannot vectorize the model.
    """
    flat = [tree_flatten(item) for item in inputs]
    kept, structure = flat[0]
    varies = [isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in kept]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    stacked = [torch.stack(leaves) for leaves, moves in zip(columns, varies, strict=True) if moves]
    buffers = {name: buffer.expand(len(random), *buffer.shape).clone() for name, buffer in model.named_buffers()}

    def one(of: dict[str, Tensor], state: dict[str, Tensor], drawn: list[Tensor], numbers: Tensor) -> Tensor:
        fresh = iter(drawn)
        leaves = [next(fresh) if moves else leaf for leaf, moves in zip(kept, varies, strict=True)]
        args, kwargs = tree_unflatten(leaves, structure)
        # With tie_weights torch would leave what it puts into a module that has two names there for ever.
        return loss(functional_call(model, {**of, **state}, args, kwargs, tie_weights=False), numbers)

    return vmap(grad(one), randomness="different")(dict(weights), buffers, stacked, random)
