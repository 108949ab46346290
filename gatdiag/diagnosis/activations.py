"""Vanishing and exploding activations: the size of the outputs changes from the first layer to the last."""

import math
from typing import Final

from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.diagnosis.values import last_whole
from gatdiag.diagnosis.wording import number
from gatdiag.names import short
from gatdiag.run import Run
from gatdiag.summary import layer_series

# Either way: in trainings that went well the ratio lay between 0.12 and 10, a decade away.
THRESHOLD: Final = 1e2


def activations(run: Run) -> Finding | None:
    """The norm of the last layer's output over that of the first. None if it was not recorded, or of one layer."""
    found = last_whole(layer_series(run, "output_norm"))
    if found is None or len(found[1]) < 2:
        return None
    step, norms = found
    layers, values = list(norms), list(norms.values())
    ratio = values[-1] / values[0] if values[0] else math.nan
    start, end = (f"{number(values[place])} at layer {short(layers[place])}" for place in (0, -1))
    code, title = "activations", "Activations keep their size"
    if not any(values) or ratio < 1 / THRESHOLD:
        code, title = "vanishing-activations", "Vanishing activations"
    elif ratio > THRESHOLD:
        code, title = "exploding-activations", "Exploding activations"
    return Finding(
        code,
        "info" if code == "activations" else "warning",
        title,
        f"The norm of the outputs, ‖X‖, goes from {start} to {end}: a factor of {number(ratio)}.",
        f"At step {step:,}; flagged where the last layer's norm is less than {1 / THRESHOLD:g} times the first layer's "
        f"or more than {THRESHOLD:.0f} times.",
        (Evidence("norm of the last layer's output over that of the first", ratio),),
        tuple(layers),
        steps=(step,),
        figure="overview",
    )
