"""What optimizers hold."""

from torch import Tensor
from torch.optim import Optimizer


def parameters_of(*optimizers: Optimizer) -> dict[int, Tensor]:
    """id -> parameter, for all parameters of optimizers.

    Example:
        >>> import torch
        >>> weight = torch.ones(2)
        >>> id(weight) in parameters_of(torch.optim.SGD([weight]))
        True
    """
    return {id(held): held for optimizer in optimizers for group in optimizer.param_groups for held in group["params"]}
