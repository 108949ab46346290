"""Upper bounds L on the Lipschitz constant of an attention layer: ||f(X) - f(Y)||_F <= L ||X - Y||_F.

L also bounds the growth of gradients in the backward pass. Self-attention, Att(X) = softmax(g(X)) X with tokens or
neighbors X (n, d) and scores g(X) (m, n) of m queries, is not Lipschitz continuous unless its scores are normalized
(`gatdiag.remedies.lipschitz_normalize_`): the larger the tokens, the larger its derivative, and over many layers
gradients explode.
"""

import math

import torch
from torch import Tensor

__all__ = ["attention_bound", "heads_bound"]


def heads_bound(head_bounds: Tensor, *, concat: bool = True) -> Tensor:
    """Bound of a layer from those of its heads: root of the sum of squares if concatenated, mean if averaged.

    Args:
        head_bounds: (H,).
        concat: Whether the heads are concatenated.

    Returns:
        0-d.

    Example:
        >>> heads_bound(torch.tensor([3.0, 4.0])).item(), heads_bound(torch.tensor([3.0, 4.0]), concat=False).item()
        (5.0, 3.5)
    """
    return torch.linalg.vector_norm(head_bounds.double()) if concat else head_bounds.double().mean()


def attention_bound(alpha: Tensor, num_queries: int, num_tokens: int) -> Tensor:
    """The bound L_F(Att) <= e^alpha sqrt(m / n) + alpha sqrt(8), for scores that satisfy the conditions with alpha.

    The scores of LipschitzNorm, alpha g~ / divisor, always do. With a small bound, gradients cannot explode.

    Args:
        alpha: (...), non-negative.
        num_queries: m.
        num_tokens: n.

    Returns:
        (...). Infinity if there are queries but no tokens; only the second term if there are no queries; NaN for NaN.

    Source:
        Dasoulas, Scaman & Virmaux, "Lipschitz Normalization for Self-Attention Layers with Application to Graph Neural
        Networks", ICML 2021. Heads or graphs are leading axes; the paper has tokens as columns, here they are rows.

    Example:
        >>> attention_bound(torch.tensor(0.0), 4, 16).item()
        0.5
    """
    ratio = math.sqrt(num_queries / num_tokens) if num_tokens else math.inf if num_queries else 0.0
    return alpha.double().exp() * ratio + math.sqrt(8) * alpha.double()
