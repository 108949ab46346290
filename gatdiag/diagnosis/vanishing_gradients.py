"""Vanishing gradients: some layers get gradients orders of magnitude below those of the strongest layer."""

from typing import Final

from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.diagnosis.values import SHARE, early_median, ends, late_median, span
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import listed, short
from gatdiag.run import Run
from gatdiag.summary import FEATURES, role_series

# Of the largest layer. From the last layer to the first gradients shrank to 0.023 at the least in trainings that went
# well, and to 3e-5 at the most where they vanish: this is the middle between them.
THRESHOLD: Final = 1e-3


def vanishing_gradients(run: Run) -> Finding | None:
    """Relative gradient norms of the feature weights, ||dL/dW|| / ||W||, layer against layer, at the end of the run.

    Relative to the weights, because it is the share of itself by which a step of gradient descent changes a weight
    ("Are GATs Out of Balance?", section 2). None if they were not recorded.
    """
    late = late_median(role_series(run, "relative_gradient_norm", FEATURES))
    if not late:
        return None
    low, high = (late[layer] for layer in ends(late))
    if high == 0:
        text = "The gradient of every feature weight is 0 at the end of the run."
        return Finding("zero-gradients", "warning", "Zero gradients", text, layers=tuple(late), figure="gradient_norms")
    text = f"Relative gradient norm of the feature weights, ‖∇W‖ / ‖W‖, at the end of the run: {span(late, number)}."
    weak = tuple(layer for layer in late if late[layer] < THRESHOLD * high)
    if weak:
        text = f"{len(weak)} of {len(late)} layers hardly get a gradient: {listed(map(short, weak))}. {text}"
    return Finding(
        "vanishing-gradients",
        "warning" if weak else "info",
        "Vanishing gradients" if weak else "Gradients of similar size in every layer",
        text,
        f"Median over the last {percent(SHARE)} of the recorded steps; flagged where a layer lies below {THRESHOLD:g} "
        "times the largest.",
        (Evidence("smallest over largest relative gradient norm of a layer", low / high),),
        weak,
        figure="gradient_norms",
    )


def weakest_gradient(run: Run) -> float | None:
    """The smallest relative gradient norm of a layer early in the run; None if it was not recorded.

    Late in the run that of a network that has learned is small because its loss is.
    """
    return min(early_median(role_series(run, "relative_gradient_norm", FEATURES)).values(), default=None)
