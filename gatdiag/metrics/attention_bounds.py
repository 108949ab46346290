"""Bounds on the Lipschitz constant of self-attention, and the divisors of scores that enforce them (LipschitzNorm).

    Att(X) = softmax(g(X)) X,   X (n, d) the tokens or neighbors, g(X) (m, n) the scores of m queries

The paper has tokens as columns; here they are rows, as tensors have them. Its norms, in its notation:

    ||X^T||_(inf,2) = max_j ||x_j||_2                    `token_radius`
    ||G||_(2,inf)   = sqrt( sum_i max_j G_ij^2 )         `score_norm`
    |||Dg|||_{F,(2,inf)}                                 how fast, in that norm, scores can move with X

Without division attention is not Lipschitz: as tokens grow, so do the scores' reaction and what it is multiplied by,
and over layers gradients explode. All functions take heads or graphs as leading axes.

Source of all: Dasoulas, Scaman & Virmaux, "Lipschitz Normalization for Self-Attention Layers with Application to Graph
Neural Networks", ICML 2021.
"""

import math

import torch
from torch import Tensor


def token_radius(tokens: Tensor) -> Tensor:
    """||X^T||_(inf,2) = max_j ||x_j||_2: the length of the longest token.

    Args:
        tokens: (..., n, d).

    Returns:
        (...). 0 without tokens; NaN if a token holds a NaN.

    Example:
        >>> token_radius(torch.tensor([[3.0, 4.0], [1.0, 0.0]])).item()
        5.0
    """
    lengths: Tensor = torch.linalg.vector_norm(tokens, dim=-1, dtype=torch.float64)
    return lengths.amax(-1) if lengths.shape[-1] else lengths.sum(-1)


def score_norm(scores: Tensor) -> Tensor:
    """||G||_(2,inf) = sqrt( sum_i max_j G_ij^2 ): each query's largest score in magnitude, then the root of squares.

    Args:
        scores: (..., m, n).

    Returns:
        (...). 0 without queries or tokens; NaN if a score is NaN.

    Example:
        >>> score_norm(torch.tensor([[1.0, -3.0], [4.0, 0.0]])).item()
        5.0
    """
    magnitudes = scores.double().abs()
    largest = magnitudes.amax(-1) if scores.shape[-1] else magnitudes.sum(-1)
    norm: Tensor = torch.linalg.vector_norm(largest, dim=-1)
    return norm


def jacobian_bound(
    attention: Tensor, radius: Tensor, score_lipschitz: Tensor | float, *, constant: float = math.sqrt(2)
) -> Tensor:
    """The lemma: |||D Att_X|||_F <= ||softmax(g(X))||_F + sqrt(2) ||X^T||_(inf,2) |||Dg_X|||_{F,(2,inf)}.

    The first part is what averaging does, the second what moving attention does. It is local: it bounds the Jacobian
    at one X, hence how much a gradient can grow on its way through this layer.

    Args:
        attention: (..., m, n), softmax over the last axis.
        radius: (...), `token_radius` of what is averaged. The tokens may first be moved by any one vector, such as
            minus their mean, which makes the bound tighter: the second part is a covariance.
        score_lipschitz: (...), |||Dg_X|||_{F,(2,inf)} or a bound: for linear scores X Q^T it is ||Q||_2 <= ||Q||_F.
        constant: The paper's sqrt(2). 1 is enough (by the Cauchy-Schwarz inequality for that covariance).

    Returns:
        (...). NaN if an argument holds a NaN.

    Example:
        >>> jacobian_bound(torch.tensor([[0.0, 1.0]]), torch.tensor(2.0), 0.5, constant=1).item()
        2.0
    """
    averaging: Tensor = torch.linalg.matrix_norm(attention.double())
    return averaging + constant * radius.double() * score_lipschitz


def attention_bound(alpha: Tensor, num_queries: int, num_tokens: int) -> Tensor:
    """The theorem: L_F(Att) <= e^alpha sqrt(m / n) + alpha sqrt(8), where scores keep the conditions with this alpha.

    It holds everywhere for the scores of LipschitzNorm, alpha g~ / divisor with either divisor below; and at one X for
    the alpha that `attention_alpha` measures there. A layer that is to pass gradients on without growth needs it small.

    Args:
        alpha: (...), non-negative.
        num_queries: m.
        num_tokens: n.

    Returns:
        (...). Infinity with queries but no tokens; without queries only the second term; NaN for a NaN.

    Example:
        >>> attention_bound(torch.tensor(0.0), 4, 16).item()
        0.5
    """
    ratio = math.sqrt(num_queries / num_tokens) if num_tokens else math.inf if num_queries else 0.0
    return alpha.double().exp() * ratio + math.sqrt(8) * alpha.double()


def attention_alpha(
    scores: Tensor,
    radius: Tensor,
    score_lipschitz: Tensor | float,
    *,
    divisor: Tensor | float = 1.0,
    divisor_lipschitz: Tensor | float = 0.0,
) -> Tensor:
    """The smallest alpha that satisfies the three conditions of the theorem at one X; large: gradients may explode.

        (1) ||g~(X)||_inf <= alpha c(X)
        (2) ||X^T||_(inf,2) |||Dg~_X|||_{F,(2,inf)} <= alpha c(X)
        (3) ||X^T||_(inf,2) |||Dc_X||| ||g~(X)||_(2,inf) <= alpha c(X)^2

    Args:
        scores: (..., m, n), g~(X) before the division. Scores that are not divided are the case c = 1.
        radius: (...), `token_radius`.
        score_lipschitz: (...), |||Dg~_X|||_{F,(2,inf)} or a bound.
        divisor: (...), c(X) > 0.
        divisor_lipschitz: (...), the length of c's gradient at X, or a bound; 0 for a constant.

    Returns:
        (...). 0 for scores without entries that cannot move; NaN if an argument holds a NaN.

    Example:
        >>> attention_alpha(torch.tensor([[1.0, -3.0]]), torch.tensor(2.0), 2.5).item()
        5.0
    """
    divisor = torch.ones((), dtype=torch.float64, device=scores.device) * divisor
    largest = scores.double().abs().flatten(-2)
    size = (largest.amax(-1) if largest.shape[-1] else largest.sum(-1)) / divisor
    reaction = radius.double() * score_lipschitz / divisor
    division = radius.double() * divisor_lipschitz * score_norm(scores) / divisor.square()
    return torch.maximum(torch.maximum(size, reaction), division)


def linear_score_divisor(query: Tensor, tokens: Tensor) -> Tensor:
    """Divisor of linear scores g~ = Q X^T: ||Q||_F ||X^T||_(inf,2).

    Scores alpha g~ / divisor keep all three conditions with this alpha for every X, so `attention_bound(alpha, m, n)`
    bounds the layer. GAT's scores are of this form in the neighbors of one target (m = 1).

    Args:
        query: (..., m, d), Q, constant.
        tokens: (..., n, d), X.

    Returns:
        (...). 0 if the query or all tokens are zero, in which case the scores are zero too and need no division.

    Example:
        >>> linear_score_divisor(torch.tensor([[0.0, 2.0]]), torch.tensor([[3.0, 4.0]])).item()
        10.0
    """
    size: Tensor = torch.linalg.matrix_norm(query.double())
    return size * token_radius(tokens)


def quadratic_score_divisor(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Divisor of dot-product scores g~ = Q K^T: max{u v, u w, v w} with u = ||Q||_F, v, w the radii of K and V.

    Scores alpha g~ / divisor make softmax(.) V Lipschitz in (Q, K, V) together, with the same bound
    e^alpha sqrt(m / n) + alpha sqrt(8). (Conditions (2) and (3) then hold with sqrt(2) alpha, and the constant 1 in
    place of the lemma's sqrt(2) makes up for it.)

    Args:
        query: (..., m, d).
        key: (..., n, d).
        value: (..., n, c).

    Returns:
        (...). 0 if two of the three are zero; the scores or the values are then zero too.

    Example:
        >>> one = torch.ones(1, 1)
        >>> quadratic_score_divisor(2 * one, 3 * one, 5 * one).item()
        15.0
    """
    u, v, w = torch.linalg.matrix_norm(query.double()), token_radius(key), token_radius(value)
    return torch.maximum(torch.maximum(u * v, u * w), v * w)
