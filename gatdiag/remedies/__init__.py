"""Remedies: what is done to a model so that it trains.

- `initialise`: fresh weights by a named scheme, balanced ones among them
- `draw`: the distributions they are drawn from
- `stack`: which weights lead into a neuron and which out of it, read off a stack of layers
- `balance`: scale the weights until every neuron balances
"""

from gatdiag.remedies.initialise import SCHEMES, Scheme, initialise_

__all__ = ["SCHEMES", "Scheme", "initialise_"]
