"""Metrics: tensors at one step -> numbers. Pure functions, one concept a file; no file needs another.

How large, how fast
- `norm`: Frobenius and spectral norms
- `gradient`: gradients and updates relative to weights
- `change`: trained against initial weights

How alike the nodes are: for a layer's output X and for dLoss/dX
- `smoothing`: mu, distance from constant rows or from a direction; `direction`: those directions
- `dirichlet`: energy across edges
- `cosine_distance`: MAD and MADGap; `hop_distance`: which pairs of nodes are near and which remote
- `rank`: effective and numerical rank

How far gradients can grow
- `lipschitz`: bounds for GCN, GAT and residual layers, and for networks
- `attention_bounds`: the bounds of LipschitzNorm for self-attention
- `attention`: entropy of attention, its largest coefficient and score

And
- `health`: dead units, NaN and infinity

The same everywhere:
- Arithmetic and results are float64 on the inputs' device, whatever the inputs' type: squares of small float32
  gradients would vanish, and the differences of nearly equal rows are the signal. Nothing waits for the device, unless
  the function says so. On tensors that need gradients the results are differentiable; call under `torch.no_grad()`.
- NaN in, NaN out, never dropped. Zero over zero is NaN too: it reads "undefined". Sums and norms of nothing are 0,
  means, fractions and ratios of nothing NaN.
- `edge_index` is (2, E), (source, target), an undirected edge stored in both directions, as in torch-geometric.
- `batch` gives each node its graph, and the result one value a graph; `mask` keeps only some nodes.
"""

from gatdiag.metrics.attention import (
    attention_entropy,
    largest_attention,
    largest_score,
    relative_attention_entropy,
)
from gatdiag.metrics.attention_bounds import (
    attention_alpha,
    attention_bound,
    jacobian_bound,
    linear_score_divisor,
    quadratic_score_divisor,
    score_norm,
    token_radius,
)
from gatdiag.metrics.change import (
    absolute_change,
    absolutely_changed_fraction,
    changed_fraction,
    quantiles,
    relative_change,
    unchanged_fraction,
)
from gatdiag.metrics.cosine_distance import mad, mad_gap
from gatdiag.metrics.direction import (
    constant_direction,
    dominant_direction,
    sqrt_degree_direction,
    stationary_direction,
)
from gatdiag.metrics.dirichlet import dirichlet_energy, neighbor_distance, rayleigh_quotient
from gatdiag.metrics.gradient import elementwise_relative_gradient_norm, relative_gradient_norm, update_ratio
from gatdiag.metrics.health import dead_fraction, non_finite_counts
from gatdiag.metrics.hop_distance import pairs_by_distance
from gatdiag.metrics.lipschitz import (
    aggregation_norm_bound,
    gat_layer_bound,
    gcn_layer_bound,
    heads_bound,
    largest_received,
    network_log_bound,
    residual_layer_bound,
)
from gatdiag.metrics.norm import frobenius_norm, norms, spectral_norm
from gatdiag.metrics.rank import effective_rank, numerical_rank
from gatdiag.metrics.smoothing import mu, mu_against, relative_mu, relative_mu_against

__all__ = [  # noqa: RUF022 (reading order)
    "frobenius_norm",
    "norms",
    "spectral_norm",
    "relative_gradient_norm",
    "elementwise_relative_gradient_norm",
    "update_ratio",
    "relative_change",
    "absolute_change",
    "changed_fraction",
    "absolutely_changed_fraction",
    "unchanged_fraction",
    "quantiles",
    "mu",
    "relative_mu",
    "mu_against",
    "relative_mu_against",
    "constant_direction",
    "sqrt_degree_direction",
    "stationary_direction",
    "dominant_direction",
    "dirichlet_energy",
    "rayleigh_quotient",
    "neighbor_distance",
    "mad",
    "mad_gap",
    "pairs_by_distance",
    "effective_rank",
    "numerical_rank",
    "gcn_layer_bound",
    "gat_layer_bound",
    "heads_bound",
    "residual_layer_bound",
    "network_log_bound",
    "aggregation_norm_bound",
    "largest_received",
    "jacobian_bound",
    "attention_bound",
    "attention_alpha",
    "token_radius",
    "score_norm",
    "linear_score_divisor",
    "quadratic_score_divisor",
    "attention_entropy",
    "relative_attention_entropy",
    "largest_attention",
    "largest_score",
    "dead_fraction",
    "non_finite_counts",
]
