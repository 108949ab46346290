"""Vanishing gradients: some layers get gradients orders of magnitude below those of the strongest layer."""

from typing import Final

from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.diagnosis.values import SHARE, early_median, ends, late_median
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
    low, high = ends(late)
    figure = "gradient_norms"
    if late[high] == 0:
        text = "The gradient of every feature weight is 0 at the end of the run."
        return Finding("zero-gradients", "warning", "Zero gradients", text, layers=tuple(late), figure=figure)
    if len(late) == 1:
        text = f"Relative gradient norm of the feature weights at the end of the run: {number(late[high])}."
        return Finding("vanishing-gradients", "info", "Gradients", text, figure=figure)
    text = (
        "Relative gradient norm of the feature weights, ‖∇W‖ / ‖W‖, at the end of the run: "
        f"from {number(late[low])} in layer {short(low)} to {number(late[high])} in layer {short(high)}."
    )
    threshold = (
        f"Median over the last {percent(SHARE)} of the recorded steps; flagged where a layer lies below "
        f"{THRESHOLD:g} times the largest."
    )
    weak = tuple(layer for layer in late if late[layer] < THRESHOLD * late[high])
    if weak:
        text = f"{len(weak)} of {len(late)} layers hardly get a gradient: {listed(map(short, weak))}. {text}"
    return Finding(
        "vanishing-gradients",
        "warning" if weak else "info",
        "Vanishing gradients" if weak else "Gradients of similar size in every layer",
        text,
        threshold,
        (
            Evidence("smallest over largest relative gradient norm of a layer", late[low] / late[high]),
            Evidence(f"smallest relative gradient norm, in layer {short(low)}", late[low]),
            Evidence(f"largest relative gradient norm, in layer {short(high)}", late[high]),
        ),
        weak,
        figure=figure,
    )


def weakest_gradient(run: Run) -> float | None:
    """The smallest relative gradient norm of a layer early in the run; None if it was not recorded.

    Late in the run that of a network that has learned is small because its loss is.
    """
    return min(early_median(role_series(run, "relative_gradient_norm", FEATURES)).values(), default=None)
