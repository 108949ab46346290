"""Remedies: what is done to a model so that it trains.

- `initialize`: fresh weights by a named scheme, balanced ones among them
- `stack`: which weights lead into a neuron and which out of it, read off a stack of layers
- `balance`: how large fresh weights are: every neuron balances, and a signal keeps its size
- `rebalance`: rescale a model, also while it trains, so that neurons balance and its function stays
- `least_norm`: the factors that do so, from laws and tensors, along the `orbit` of the weights
- `verification`: how far outputs move, found out on a copy; layers that move them are skipped
- `moments`: what an optimizer remembers, carried along
"""

from gatdiag.remedies.initialize import SCHEMES, Scheme, initialize_
from gatdiag.remedies.rebalance import Rebalanced, rebalance_

__all__ = ["SCHEMES", "Rebalanced", "Scheme", "initialize_", "rebalance_"]
