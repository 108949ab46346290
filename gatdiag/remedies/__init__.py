"""Remedies: what is done to a model so that it trains.

- `applied`: what a remedy did, and the way back: `changes`, `undo()`
- `lipschitz_norm`: divide the scores of attention (LipschitzNorm), and what bound that guarantees
- `lipschitz_layers`: how PyG's attention layers then compute their scores
- `weight_norm`: keep the norm of weight matrices at a chosen number
- `insertion`: normalization layers and skip connections, put into a model that exists
- `leaky`: leaky ReLU in place of ReLU
- `initialize`: fresh weights by a named scheme, as they are or balanced
- `fresh`: the schemes with their options, and what each draws
- `balance`: which weights lead into a neuron and which out, and how large fresh ones are: each neuron balances
- `rebalance`: rescale a model so that neurons balance and its function stays
- `schedule`: the same again and again while it trains
- `least_norm`: the factors that do so, from laws and tensors, along the `orbit` of the weights
- `verification`: how far outputs move, found out on a copy; layers that move them are skipped
- `moments`: what an optimizer remembers, carried along
"""

from gatdiag.remedies.applied import Applied, Change
from gatdiag.remedies.fresh import SCHEMES, Scheme
from gatdiag.remedies.initialize import Initialized, initialize_
from gatdiag.remedies.insertion import Skip, insert_after_
from gatdiag.remedies.leaky import leaky_relu_
from gatdiag.remedies.lipschitz_norm import lipschitz_bound, lipschitz_normalize_
from gatdiag.remedies.rebalance import Rebalanced, rebalance_
from gatdiag.remedies.schedule import Rebalance
from gatdiag.remedies.weight_norm import weight_normalize_

__all__ = [
    "SCHEMES",
    "Applied",
    "Change",
    "Initialized",
    "Rebalance",
    "Rebalanced",
    "Scheme",
    "Skip",
    "initialize_",
    "insert_after_",
    "leaky_relu_",
    "lipschitz_bound",
    "lipschitz_normalize_",
    "rebalance_",
    "weight_normalize_",
]
