"""Conservation laws of any model.

- `label`: the scaling exponents of a tensor, in unknowns; `exponents`: the equations between these
- `reserved`: the unknowns of a weight's entries, which take no memory until a rule needs them
- `bindings`: which unknowns are bound to others; `slices`: which rows and slices say the same
- `rules`: the table from aten operations to equations, to which a new operation is added
- `trace`: one forward pass, each operation handed to its rule; `flow`: what the output depends on
- `solver`: a basis of the solutions
- `check`: the numerical check of every law, by gradients at random points (`point`)
- `no_effect`: parameters that cancel out of the output; `zero_factors`: those that multiply only zeros
- `terms`, `assembly` and `find`: laws with names
- `live`: the laws of a training, from its own forward passes as they run (`training_trace`); `mixing`: what
  else is seen of these
- `laws`: the result: delta, c (from `sums`), and c after the next optimizer step (`prediction`)
"""

from gatdiag.law import Exclusion, Law, Term
from gatdiag.laws.find import find_laws
from gatdiag.laws.laws import Laws

__all__ = ["Exclusion", "Law", "Laws", "Term", "find_laws"]
