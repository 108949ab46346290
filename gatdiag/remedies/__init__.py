"""Remedies: what is done to a model so that it trains.

- `initialize`: fresh weights by a named scheme, balanced ones among them
- `draw`: the distributions they are drawn from
- `stack`: which weights lead into a neuron and which out of it, read off a stack of layers
- `balance`: scale fresh weights until every neuron balances, layer after layer
- `gain`: the common factor with which a model passes a signal on
- `rebalance`: rescale a model, also while it trains, so that neurons balance and its function stays
- `rescaling` and `least_norm`: the factors that do so, from laws and tensors; `orbit` and `band`: what they are made of
- `output_difference` and `verification`: how far outputs move, found out on a copy; what moves them is left alone
- `loss_gradients`: the gradients that are to be balanced
- `moments`: what an optimizer remembers, carried along
"""

from gatdiag.remedies.initialize import SCHEMES, Scheme, initialize_
from gatdiag.remedies.rebalance import Rebalanced, rebalance_

__all__ = ["SCHEMES", "Rebalanced", "Scheme", "initialize_", "rebalance_"]
