"""Which cause stands before which, and what it explains: one table to argue with, no nested conditions.

A run is judged by every check. Of two findings the one with the higher severity stands first; of two with the same, the
one that stands higher in this table: what is certain and outside of the network first, then what is there before the
first step, then what training makes of it, last what is a matter of degree. A finding that another one explains is
listed under that one, as its symptom.
"""

from typing import Final, NamedTuple

SYMPTOMS: Final = ("overflow", "loss-not-falling", "unchanged-weights", "small-steps")  # explained by any cause
SILENT: Final = ("unchanged-weights", "small-steps")  # of these, those that are not said by themselves

_FORWARD: Final = (
    "dead-units", "attention-saturated", "depth-vanishing-gradient", "depth-oversmoothing", "rank-collapse",
    "lr-too-large", "depth-exploding-gradient", "optimizer-breaks-conservation",
)  # fmt: skip
_ANY: Final = ("*",)

# They stand where they do if they are there before the first step, and else below rank-collapse.
EARLY: Final = ("dead-units", "attention-saturated")


class Cause(NamedTuple):
    """A row: what the code stands for, what it explains, and why it stands before that.

    Attributes:
        explains: Codes; "*" is every other finding.
        why: The reason for the row.
        shown_by: The experiment that supports it: the planted fault of this code, with its repaired twin, in which the
            explained findings vanish together with the cause.
    """

    explains: tuple[str, ...]
    why: str
    shown_by: str = ""


CAUSES: Final[dict[str, Cause]] = {
    "input-nonfinite": Cause(_ANY, "NaN spreads from the inputs to everything", "NaN in one feature"),
    "parameters-not-in-optimizer": Cause(
        ("*", "-output-softmax-twice", "-input-constant", "-input-nonfinite"),
        "what does not move shows every sign of a network that does not learn",
        "optimizer made before the model was replaced; layers in a plain list",
    ),
    "gradients-not-cleared": Cause(
        (*_FORWARD, "init-unbalanced", "weight-decay-too-strong", "overfitting", "clipping-too-tight", "law-broken"),
        "sums of old gradients are steps in the wrong place, and too long",
        "zero_grad left out",
    ),
    "no-training-signal": Cause(_ANY, "without a gradient nothing else can be judged", "one class; loss times zero"),
    "nonfinite-operation": Cause(
        ("*", "-output-softmax-twice"), "after the first NaN no measurement means anything", "log or root of 0"
    ),
    "output-softmax-twice": Cause(
        ("parameters-without-gradient", "attention-saturated", "overfitting", "depth-vanishing-gradient",
         "lr-too-small"),
        "the slope of the inner softmax multiplies every gradient",
        "softmax before cross-entropy",
    ),
    "input-constant": Cause(
        ("depth-oversmoothing", "rank-collapse", "init-unbalanced", "dead-units", "overfitting", "lr-too-small"),
        "rows that begin alike stay alike",
        "features all one",
    ),
    "input-scale": Cause(
        (*_FORWARD, "init-too-large", "overfitting", "clipping-too-tight", "lr-too-small", "init-unbalanced"),
        "sizes of outputs, gradients and curvature follow those of the inputs",
        "one column times 1e5",
    ),
    "init-too-large": Cause(
        (*_FORWARD, "clipping-too-tight", "lr-too-small", "overfitting", "weight-decay-too-strong"),
        "outputs grow with the product of the norms",
        "weights times 10",
    ),
    "init-unbalanced": Cause(
        (*_FORWARD, "lr-too-small"),
        "stiff weights bound the learning rate, and the others cannot move at it",
        "ten-layer GATv2 with Xavier's weights; norms up and down by 12",
    ),
    "init-too-small": Cause(
        ("depth-vanishing-gradient", "depth-oversmoothing", "rank-collapse", "lr-too-small", "dead-units"),
        "outputs and gradients shrink with the product of the norms",
        "weights times 0.005",
    ),
    "depth-exploding-gradient": Cause(
        ("lr-too-large", "dead-units", "attention-saturated", "clipping-too-tight", "rank-collapse",
         "depth-oversmoothing"),
        "a usual learning rate is too large for gradients that grow with depth",
        "64 residual layers",
    ),
    "dead-units": Cause(
        ("depth-vanishing-gradient", "depth-oversmoothing", "rank-collapse", "lr-too-small",
         "parameters-without-gradient"),
        "no gradient passes a dead unit",
        "biases of -20 before a ReLU",
    ),
    "attention-saturated": Cause(
        ("parameters-without-gradient", "lr-too-small", "lr-too-large"),
        "a saturated softmax has no slope, and huge logits have steep ones",
        "attention times 300",
    ),
    "depth-vanishing-gradient": Cause(
        ("lr-too-small", "weight-decay-too-strong", "depth-oversmoothing", "rank-collapse"),
        "no gradient, no step, but for those of decay",
        "twelve sigmoid layers",
    ),
    "weight-decay-too-strong": Cause(
        (*_FORWARD, "lr-too-small"), "weights near zero shrink outputs and gradients", "weight decay of 0.5"
    ),
    "lr-too-large": Cause(
        ("dead-units", "attention-saturated", "depth-oversmoothing", "rank-collapse", "optimizer-breaks-conservation"),
        "a step that throws the weights away kills units and saturates softmaxes",
        "learning rate of 100",
    ),
    "depth-oversmoothing": Cause(
        ("lr-too-small", "depth-vanishing-gradient", "rank-collapse"), "gradients of alike rows cancel", "GCN of 32"
    ),
    "rank-collapse": Cause(("lr-too-small", "depth-vanishing-gradient"), "as for oversmoothing", "bottleneck of "
    "width 1"),
    "parameters-without-gradient": Cause(("lr-too-small",), "what gets no gradient does not move", "detach() in "
    "forward"),
    "clipping-too-tight": Cause(("lr-too-small",), "the bound, not the rate, makes the steps short", "bound of 1e-4"),
    "lr-too-small": Cause((), "everything else would make steps short, too", "learning rate of 1e-7"),
    "dead-weights": Cause((), "of checkpoints: rows of zeros"),
    "overfitting": Cause((), "it trains", "40 random labels"),
    "law-broken": Cause((), "a remark on the loss, not on the training", "penalty in the loss"),
    "non-finite": Cause(_ANY, "of checkpoints: what made it cannot be told from them"),
    "overflow": Cause((), "a symptom of sizes, unless nothing explains them"),
    "loss-not-falling": Cause(("unchanged-weights", "small-steps"), "a symptom, unless nothing explains it"),
    "optimizer-breaks-conservation": Cause((), "a remark on the optimizer"),
    "unchanged-checkpoints": Cause((), "of checkpoints: nothing tells why"),
    "unchanged-weights": Cause((), "a symptom"),
    "small-steps": Cause((), "a symptom"),
}  # fmt: skip

RANK: Final = {code: place for place, code in enumerate(CAUSES)}


def explains(cause: str, other: str) -> bool:
    """The table's answer: a cause explains every symptom, and what its row names."""
    if cause == other or cause in ("overfitting", "law-broken", "optimizer-breaks-conservation", "dead-weights"):
        return False
    named = CAUSES[cause].explains
    if other in SYMPTOMS:
        return cause not in SYMPTOMS or other in named
    return other in named or ("*" in named and f"-{other}" not in named)
