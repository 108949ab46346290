"""How strongly a gradient, or an optimizer step, pulls at a weight, relative to the weight's own size.

All three are ratios in the sense of IEEE arithmetic: over a zero weight a non-zero numerator gives infinity, and zero
over zero gives NaN, which reads "undefined". So the relative gradient of an attention vector that starts at zero is
infinite or undefined at step 0.
"""

import torch
from torch import Tensor


def relative_gradient_norm(gradient: Tensor, weight: Tensor) -> Tensor:
    """||dLoss/dW||_F / ||W||_F: times the learning rate, the fraction of its size that W moves in one step of SGD.

    Where that product is below 1e-7, float32 weights stay as they are; layers whose values differ by orders of
    magnitude cannot all train at one learning rate.

    Args:
        gradient: dLoss/dW, any shape.
        weight: W.

    Returns:
        0-d, per unit of learning rate. NaN if either holds a NaN.

    Source:
        Mustafa et al., "Are GATs Out of Balance?", NeurIPS 2023, figures 3b, 4b and 5.

    Example:
        >>> relative_gradient_norm(torch.tensor([1.5, 2.0]), torch.tensor([3.0, 4.0])).item()
        0.5
    """
    return _norm(gradient) / _norm(weight)


def elementwise_relative_gradient_norm(gradient: Tensor, weight: Tensor) -> Tensor:
    """sqrt(sum_k (g_k / w_k)^2): the relative gradient norm of the follow-up paper's code, led by the smallest weights.

    Args:
        gradient: dLoss/dW, any shape.
        weight: W, the same shape.

    Returns:
        0-d. One zero weight makes it infinite, or NaN if that weight's gradient is zero too.

    Source:
        Mustafa & Burkholz, "Dynamic Rescaling for Training GNNs", NeurIPS 2024 (its code, quantity relGrad).

    Example:
        >>> elementwise_relative_gradient_norm(torch.tensor([3.0, 8.0]), torch.tensor([1.0, 2.0])).item()
        5.0
    """
    return _norm(gradient.double() / weight.double())


def update_ratio(before: Tensor, after: Tensor) -> Tensor:
    """||W_{t+1} - W_t||_F / ||W_t||_F: how far one optimizer step moved a weight, as a fraction of its size.

    About 1e-3 is a common rule of thumb; near 1 the step overwrites the weight; 0 means that it did not move.

    Args:
        before: W_t, any shape.
        after: W_{t+1}, the same shape.

    Returns:
        0-d. NaN if either holds a NaN or an infinity.

    Example:
        >>> update_ratio(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])).item()
        0.1
    """
    return _norm(after.double() - before.double()) / _norm(before)


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
    return norm
