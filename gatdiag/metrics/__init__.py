"""Metrics: tensors at one step -> numbers. Pure functions, one concept a file; no file needs another.

What is exported is what a recorder, a series of checkpoints and remedies compute with.

- `norm`: Frobenius and spectral norms of weights, gradients, updates; NaN and infinities
- `change`: trained against initial weights
- `smoothing`: mu of a layer's output X and of dLoss/dX, with their norm and dead units
- `dirichlet`: energy across edges
- `cosine_distance`: MAD
- `rank`: effective and numerical rank
- `attention`: entropy of attention
- `lipschitz`: bounds on how far gradients can grow through attention with LipschitzNorm

A metric of a layer's output that is not in the pass that `smoothing` makes is a function of X, or of X and the edges;
one of a weight matrix is a function of W. Its name stands in its file's ``__all__``; what else it takes to be recorded
is listed in `gatdiag.quantities`.

The same everywhere:
- Results are float64 on the inputs' device. Arithmetic is float64 too, whatever the inputs' type, because squares of
  small float32 gradients would vanish, and the differences of nearly equal rows are the signal; where `norm` and
  `smoothing` take float32 on the CPU as it is, at least five digits are right. Nothing waits for the device, unless the
  function says so.
- NaN in, NaN out, never dropped. Zero over zero is NaN too: it reads "undefined". Sums and norms of nothing are 0,
  means, fractions and ratios of nothing NaN.
- `edge_index` is (2, E), (source, target), an undirected edge stored in both directions, as in torch-geometric.
- Of several graphs in one batch, or of some nodes only, give the rows of each.
"""

from gatdiag.metrics import attention, change, cosine_distance, dirichlet, lipschitz, norm, rank, smoothing
from gatdiag.metrics.attention import *
from gatdiag.metrics.change import *
from gatdiag.metrics.cosine_distance import *
from gatdiag.metrics.dirichlet import *
from gatdiag.metrics.lipschitz import *
from gatdiag.metrics.norm import *
from gatdiag.metrics.rank import *
from gatdiag.metrics.smoothing import *

__all__: list[str] = []
__all__ += norm.__all__
__all__ += change.__all__
__all__ += smoothing.__all__
__all__ += dirichlet.__all__
__all__ += cosine_distance.__all__
__all__ += rank.__all__
__all__ += attention.__all__
__all__ += lipschitz.__all__
