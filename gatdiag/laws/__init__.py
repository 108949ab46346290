"""Laws: from any model to its conservation laws.

- `label` and `exponents`: the unknowns, and the equations between them
- `rules`: the table from aten operations to equations
- `trace`: one forward pass, each operation handed to its rule
- `repetition`: whether each call computes the same function; `outputs`: all that it returns
- `solver`: the equations' solutions, as a local basis
- `check`: gradients at random points (`point`), which every law must pass, and large steps along it where in doubt
- `no_effect`: what cancels out of the output, told from what is dead or saturated by chance
- `assembly` and `find`: laws with names
- `laws`: what the user holds: delta, c, and c after the next optimizer step (`prediction`)
"""

from gatdiag.law import Exclusion, Law, Term
from gatdiag.laws.find import find_laws
from gatdiag.laws.laws import Laws

__all__ = ["Exclusion", "Law", "Laws", "Term", "find_laws"]
