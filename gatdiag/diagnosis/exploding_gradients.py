"""Exploding gradients: a gradient is so much larger than its weights that any usual step overwrites them."""

from typing import Final

from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.diagnosis.values import SHARE, ends, late_median
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import short
from gatdiag.run import Run
from gatdiag.summary import FEATURES, role_series

# A gradient this many times the weights: at a learning rate of 0.01 one step of gradient descent replaces them.
THRESHOLD: Final = 1e2


def exploding_gradients(run: Run) -> Finding | None:
    """The largest relative gradient norm of a layer's feature weights at the end of the run. None unless flagged."""
    late = late_median(role_series(run, "relative_gradient_norm", FEATURES))
    large = tuple(layer for layer in late if late[layer] > THRESHOLD)
    if not large:
        return None
    _, high = ends(late)
    return Finding(
        "exploding-gradients",
        "warning",
        "Exploding gradients",
        f"The gradient of layer {short(high)} is {number(late[high])} times its weights.",
        f"Median over the last {percent(SHARE)} of the recorded steps; flagged above {THRESHOLD:.0f} times.",
        (Evidence(f"largest relative gradient norm, in layer {short(high)}", late[high]),),
        large,
        figure="gradient_norms",
    )
