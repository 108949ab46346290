"""Metrics: tensors at one step -> numbers. Pure functions, one concept per file; no file depends on another.

The exports are what recorders, checkpoints and remedies compute with.

- `norm`: Frobenius and spectral norms of weights, gradients, updates; NaN and infinities
- `smoothing`: mu, norm and dead units of a layer's output X and of dLoss/dX
- `dirichlet`: Dirichlet energy over edges
- `cosine_distance`: mean cosine distance (MAD)
- `rank`: effective and numerical rank
- `attention`: entropy of attention
- `lipschitz`: bounds on how far gradients can grow through attention with LipschitzNorm

A metric of a layer's output, or of its gradient, is a function of X, or of X and the edges; one of a parameter's
weight, gradient or update is a function of that tensor. A function with several results returns a NamedTuple, whose
fields are columns of a run. `gatdiag.quantities` says how to record a new one; `gatdiag.weight_change` compares weights
with their initial values.

Conventions:
- Results are float64 on the device of the inputs. Arithmetic is float64, too, because squares of small float32
  gradients would underflow, and the differences of nearly equal rows are the signal; where `norm` and `smoothing`
  compute in float32 on the CPU, at least five digits are correct. Functions do not synchronize with the device unless
  documented.
- NaN in, NaN out. 0 / 0 is NaN, documented as "undefined". Sums and norms of no elements are 0; means, fractions and
  ratios are NaN.
- `edge_index` is (2, E), (source, target), with undirected edges in both directions, as in torch-geometric.
- For one graph of a batch, or for some nodes, pass their rows. Signals on one graph, (time, nodes, channels), are rows
  of that many copies of it; `smoothing.as_rows` makes X of a tensor with more axes.
"""

from gatdiag.metrics.attention import *
from gatdiag.metrics.cosine_distance import *
from gatdiag.metrics.dirichlet import *
from gatdiag.metrics.lipschitz import *
from gatdiag.metrics.norm import *
from gatdiag.metrics.rank import *
from gatdiag.metrics.smoothing import *
