"""Upper bounds L on how much a layer, and a network, can stretch: ||f(X) - f(Y)||_F <= L ||X - Y||_F.

L also bounds how much a gradient can grow on its way back. Bounds of layers multiply over a network; above 1 a layer,
the product grows without limit with depth, which is gradient expansion (Park & Kim, arXiv 2410.04824). The functions
take norms, not modules; `norm.spectral_norm` and `norm.frobenius_norm` give those of weights. Of the two only the
Frobenius norm is sure not to fall below the true one, but for rounding.

Self-attention, Att(X) = softmax(g(X)) X with tokens or neighbors X (n, d) and the scores g(X) (m, n) of m queries, is
not Lipschitz unless its scores are divided (LipschitzNorm): as tokens grow, so do the scores' reaction and what it is
multiplied by, and over layers gradients explode. From `token_radius` on, functions are of Dasoulas, Scaman & Virmaux,
"Lipschitz Normalization for Self-Attention Layers with Application to Graph Neural Networks", ICML 2021, and take heads
or graphs as leading axes. The paper has tokens as columns; here they are rows, as tensors have them. In its notation:

    ||X^T||_(inf,2) = max_j ||x_j||_2                    `token_radius`
    ||G||_(2,inf)   = sqrt( sum_i max_j G_ij^2 )         `score_norm`
    |||Dg|||_{F,(2,inf)}                                 how fast, in that norm, scores can move with X
"""

import math

import torch
from torch import Tensor

from gatdiag.errors import InputError

__all__ = [
    "aggregation_norm_bound",
    "attention_alpha",
    "attention_bound",
    "gat_layer_bound",
    "gcn_layer_bound",
    "heads_bound",
    "jacobian_bound",
    "largest_received",
    "linear_score_divisor",
    "network_log_bound",
    "quadratic_score_divisor",
    "residual_layer_bound",
    "score_norm",
    "token_radius",
]


def aggregation_norm_bound(
    edge_index: Tensor, num_nodes: int, *, edge_weight: Tensor | None = None, iterations: int = 50
) -> Tensor:
    """Upper bound on ||A||_2 for the aggregation with entries A[target, source] = weight, and nearly equal to it.

        ||A||_2^2 <= max_j (|A|^T |A| p)_j / p_j     for every positive vector p (Collatz, Wielandt)

    p is improved by power iteration; whatever the number of iterations, the value is an upper bound. For the
    symmetric-normalized aggregation of GCN the norm is 1 at most; for D^-1 A it is not (on a star sqrt(N - 1)).

    Args:
        edge_index: (2, E) with every edge the layer uses, self loops included.
        num_nodes: N.
        edge_weight: (E,); None: all 1. Of negative weights the absolute value counts, so the bound is looser.
        iterations: How many products with |A|^T |A|.

    Returns:
        0-d. 0 without edges; NaN if a weight is NaN or infinite.

    Source:
        The Collatz-Wielandt inequality for non-negative matrices: Horn & Johnson, "Matrix Analysis", chapter 8.

    Example:
        >>> star = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]])  # one node receives from four
        >>> aggregation_norm_bound(star, 5).item()
        2.0
    """
    source, target = edge_index
    weight = torch.ones_like(source, dtype=torch.float64) if edge_weight is None else edge_weight.double().abs()
    zeros = torch.zeros(num_nodes, dtype=torch.float64, device=edge_index.device)
    if num_nodes == 0:
        return zeros.sum()
    positive, ratio = zeros + 1, zeros
    for _ in range(iterations + 1):
        moved = zeros.index_add(0, target, weight * positive[source])
        back = zeros.index_add(0, source, weight * moved[target])
        ratio = back / positive
        largest = ratio.amax()
        positive = positive + back / torch.where(largest == 0, 1.0, largest)  # at most doubles, so none reaches zero
        positive = positive / positive.amax()
    return torch.where(weight.isfinite().all(), ratio.amax().sqrt(), torch.nan)


def largest_received(alpha: Tensor, source: Tensor, num_nodes: int) -> Tensor:
    """max_j sum_i alpha_ij: the most attention that one source node receives from all targets together.

    Args:
        alpha: (E,) or (E, H), attention coefficients.
        source: (E,), `edge_index[0]`.
        num_nodes: N.

    Returns:
        0-d, or (H,) with heads. Never more than the largest number of outgoing edges, and at least 1 where every node
        has a neighbor. 0 without edges; NaN if alpha holds a NaN.

    Example:
        >>> largest_received(torch.tensor([1.0, 0.5, 0.5]), torch.tensor([0, 0, 1]), 2).item()
        1.5
    """
    received = alpha.new_zeros(num_nodes, *alpha.shape[1:], dtype=torch.float64).index_add(0, source, alpha.double())
    return received.amax(0) if num_nodes else received.sum(0)


def gcn_layer_bound(weight_norm: Tensor, aggregation_norm: Tensor | float = 1.0, slope: Tensor | float = 1.0) -> Tensor:
    """L <= slope ||A||_2 ||W||_2 for X -> phi(A X W^T + b), the bias being without effect.

    Args:
        weight_norm: ||W||_2 or a bound on it, 0-d or one a layer.
        aggregation_norm: ||A||_2 or a bound on it; 1 for GCN's symmetric normalization.
        slope: Largest |phi'|: 1 for ReLU, LeakyReLU, ELU and the identity, about 1.13 for GELU.

    Returns:
        The shape of `weight_norm`.

    Source:
        Park & Kim, arXiv 2410.04824.

    Example:
        >>> gcn_layer_bound(torch.tensor(4.0), 0.5).item()
        2.0
    """
    return weight_norm.double() * aggregation_norm * slope


def gat_layer_bound(
    source_norm: Tensor,
    target_norm: Tensor,
    source_attention: Tensor,
    target_attention: Tensor,
    radius: Tensor,
    received: Tensor,
) -> Tensor:
    """L <= s sqrt(c) + r (a_s s sqrt(c) + a_t t) for one head of GAT or GATv2, attention differentiated through.

    With z_j = W_s x_j, h_i = sum_j alpha_ij z_j and score e_ij, dh_i = sum_j alpha_ij dz_j + Cov_alpha(z, de_i). The
    first part gives s sqrt(c), because a row-stochastic matrix has ||alpha||_2 <= sqrt(c). The covariance is at most r
    times the root of sum_j alpha_ij de_ij^2, and |de_ij| <= a_s ||dz_j|| + a_t ||W_t dx_i||, as LeakyReLU has slope 1
    at most. Biases and edge features change nothing.

    It is local: it bounds the Jacobian at the X where radius and received were measured. With received = the largest
    number of outgoing edges it bounds every X whose z stays within the radius; without a radius no bound exists,
    because attention is not Lipschitz.

    Args:
        source_norm: s = ||W_s||_2 (or a bound on it) of the weight that makes what is aggregated, a head's own rows.
        target_norm: t = ||W_t||_2 of the target's weight; the same as s for GAT, and for GATv2 with shared weights.
        source_attention: a_s = ||a|| of GATv2's attention vector, or that of GAT's source part.
        target_attention: a_t = the same ||a|| for GATv2; that of GAT's target part.
        radius: r = max_j ||z_j||; or, tighter, the largest distance of the z_j from any one point, such as their mean.
        received: c = max_j sum_i alpha_ij, from `largest_received`.

    Returns:
        The common shape of the arguments: 0-d for one head, (H,) for all; see `heads_bound`.

    Source:
        Derived here; of the form of the lemma in Dasoulas et al., ICML 2021 (see `jacobian_bound`).

    Example:
        >>> one, zero = torch.tensor(1.0), torch.tensor(0.0)
        >>> gat_layer_bound(2 * one, 2 * one, zero, zero, radius=one, received=4 * one).item()  # no attention: mean
        4.0
    """
    spread = received.double().sqrt()
    averaging = source_norm.double() * spread
    return averaging + radius.double() * (source_attention * averaging + target_attention * target_norm.double())


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


def residual_layer_bound(branch_bound: Tensor, skip_norm: Tensor | float = 1.0) -> Tensor:
    """L <= ||R||_2 + L_branch for X -> X R^T + branch(X), R the identity for a plain skip.

    Even a harmless branch leaves a bound above 1: over many layers it can only grow, whence gradient expansion.

    Args:
        branch_bound: Bound of the branch, 0-d or one a layer.
        skip_norm: ||R||_2 or a bound on it; 1 for the identity.

    Returns:
        The shape of `branch_bound`.

    Source:
        Park & Kim, arXiv 2410.04824.

    Example:
        >>> residual_layer_bound(torch.tensor(0.25)).item()
        1.25
    """
    return branch_bound.double() + skip_norm


def network_log_bound(layer_bounds: Tensor) -> Tensor:
    """Natural logarithm of the network's bound, sum_l log L_l: the bound itself overflows for deep networks.

    Above 0, gradients can grow with depth, by this many powers of e at most; below 0 they must shrink.

    Args:
        layer_bounds: (L,), one a layer, of layers one after the other.

    Returns:
        0-d. -infinity if a layer's bound is 0 (nothing passes); 0 for no layer; NaN for a NaN or a
        negative bound.

    Raises:
        InputError: `layer_bounds` does not have one axis.

    Source:
        L composed layers: Dasoulas et al., ICML 2021; Park & Kim, arXiv 2410.04824.

    Example:
        >>> round(network_log_bound(torch.full((512,), 5.0)).item(), 3)
        824.032
    """
    if layer_bounds.dim() != 1:
        raise InputError(f"one bound a layer, of shape (layers,), was expected, got {tuple(layer_bounds.shape)}")
    return layer_bounds.double().log().sum()


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
