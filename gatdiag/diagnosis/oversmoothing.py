"""Oversmoothing: the outputs of all nodes become the same."""

from typing import Final

from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.diagnosis.values import ends, last_whole
from gatdiag.diagnosis.wording import number
from gatdiag.names import listed, short
from gatdiag.run import Run
from gatdiag.summary import layer_series

# Relative mu was 0.075 at the least in trainings that went well and 9e-4 at the most where nodes are alike: this is the
# middle between them.
THRESHOLD: Final = 1e-2
_LAST = 3  # layers, of which the smallest counts: the very last may tell nodes apart by rounding alone


def oversmoothing(run: Run) -> Finding | None:
    """Relative mu, mu(X) / ||X||, of the last three layers ("Taming Gradient Oversmoothing and Expansion in GNNs").

    Relative, because outputs that vanish as a whole have a small mu and nodes that differ. None if it was not recorded.
    """
    found = last_whole(layer_series(run, "relative_mu"))
    if found is None:
        return None
    step, mu = found
    last = dict(list(mu.items())[-_LAST:])
    low, _ = ends(last)
    first = next(iter(mu))
    start = "" if first == low else f"{number(mu[first])} at layer {short(first)}, "
    text = f"Relative mu, μ(X) / ‖X‖, of the outputs: {start}{number(mu[low])} at layer {short(low)}."
    flagged = mu[low] < THRESHOLD
    alike = tuple(layer for layer in mu if mu[layer] < THRESHOLD) if flagged else ()
    if flagged:
        where = f"layer{'s' * (len(alike) > 1)} {listed(map(short, alike))}"
        text = f"The outputs of all nodes are nearly the same in {where}. {text}"
    return Finding(
        "oversmoothing",
        "warning" if flagged else "info",
        "Oversmoothing" if flagged else "Nodes stay distinct",
        text,
        f"At step {step:,}; flagged below {THRESHOLD:g} in one of the last {_LAST} layers.",
        (Evidence("smallest relative mu of the last layers", mu[low]),),
        alike,
        steps=(step,),
        figure="smoothing_by_layer",
    )
