"""Remedies: changes to a model that let it train, all of which can be undone, and to its inputs.

- `applied`: the base class of what remedies return: `changes`, `undo()`
- `initialize`: draw new weights by a named scheme, balanced or not
- `schemes`: the schemes, their options, and how each draws a weight
- `balance`: scale new weights so that each neuron is in balance and a signal keeps its norm
- `rebalance`: rescale the weights of a model until its neurons are in balance, without changing its function
- `schedule`: rebalance every few optimizer steps
- `least_norm`: the rescaling that balances all laws
- `verification`: check on a copy that a rescaling does not change the outputs
- `moments`: rescale the state of an optimizer along with the weights
- `lipschitz_norm`: divide attention scores (LipschitzNorm), with the Lipschitz bound of a layer
- `lipschitz_layers`: the attention layers of PyG with divided scores
- `weight_norm`: fix the Frobenius norm of weight matrices
- `insertion`: insert normalization layers and skip connections
- `leaky`: replace ReLU with leaky ReLU
- `recomputation`: modes that are on again in what activation checkpoints recompute
- `output`: scale and shift the output
- `register`: register layers and tensors in plain attributes
- `standardize`: scale the columns of features to mean 0 and variance 1
"""

from gatdiag.remedies.applied import Applied, Change
from gatdiag.remedies.initialize import initialize_
from gatdiag.remedies.insertion import Skip, insert_after_
from gatdiag.remedies.leaky import leaky_relu_
from gatdiag.remedies.lipschitz_norm import lipschitz_bound, lipschitz_normalize_
from gatdiag.remedies.output import rescale_output_
from gatdiag.remedies.rebalance import Rebalanced, rebalance_
from gatdiag.remedies.register import register_
from gatdiag.remedies.schedule import Rebalance
from gatdiag.remedies.schemes import SCHEMES, Scheme
from gatdiag.remedies.standardize import standardize
from gatdiag.remedies.weight_norm import weight_normalize_

__all__ = [
    "SCHEMES",
    "Applied",
    "Change",
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
    "register_",
    "rescale_output_",
    "standardize",
    "weight_normalize_",
]
