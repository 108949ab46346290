"""What can be wrong, a row for each code: what it is called, how it is told and repaired, and what stands before what.

A run is judged by every check. Of two findings the one with the higher severity stands first; of two with the same, the
one that stands higher in this table: what is certain and outside of the network first, then what is there before the
first step, then what training makes of it, last what is a matter of degree. A finding explains what stands below it,
which is then listed as its symptom; but nothing explains what stands by itself, and a note about a network that trains
explains no error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from gatdiag.diagnosis.finding import Action, Remedy, Severity


@dataclass(frozen=True)
class Cause:
    """A row: what all findings of a code have in common.

    Attributes:
        title: What it is, in the field's words.
        why: Why it stands where it stands.
        figure: The name of the figure that shows it, or "".
        falsified_by: An observation that would show that it is wrong.
        remedy: Code to paste, where that is the same for all runs.
        severity: That of all its findings; "by loss": as bad as the training went; "certain": an error, and a warning
            where the network trains all the same.
        takes_training: Nothing of it shows before the first step.
        is_alone: It is read off inputs, outputs, weights, laws or the bound that clips, whatever else there is: nothing
            explains it.
        is_symptom: It says what is seen and not why; as a note it is never said by itself.
        if_late: It stands below the row of this code where training made it, and it was not there from the start.
        is_remark: It is never why a network does not train.
    """

    title: str
    why: str
    figure: str = ""
    falsified_by: str = ""
    remedy: Remedy | None = None
    severity: Severity | Literal["by loss", "certain"] = "by loss"
    takes_training: bool = False
    is_alone: bool = False
    is_symptom: bool = False
    if_late: str = ""
    is_remark: bool = False


GLOROT: Final = Remedy(
    'gatdiag.remedies.initialize_(model, "xavier_uniform")  # before training',
    (Action("initialize", {"scheme": "xavier_uniform"}),),
)
_LEAKY: Final = Remedy(
    f"{GLOROT.code}; biases are zero then\n"
    "gatdiag.remedies.leaky_relu_(model, 0.1)  # or leaky_relu in place of relu in forward",
    (*GLOROT.actions, Action("leaky_relu", {"slope": 0.1})),
)
_POSITIONS: Final = Remedy(
    "data.x = torch.nn.functional.one_hot(\n"
    "    torch_geometric.utils.degree(data.edge_index[1], data.num_nodes).long().clamp(max=63), 64).float()\n"
    "# or data = torch_geometric.transforms.AddLaplacianEigenvectorPE(16, attr_name='x')(data)"
)
_TINY_BATCH: Final = Remedy(
    "# try one batch of a few nodes: a network that cannot overfit it has an error in model, loss or labels"
)
_ANOMALY: Final = "With torch.autograd.set_detect_anomaly(True) no operation is reported, or the inputs hold NaN."
_SHALLOW: Final = "A network of two layers, or one with skips, does not train either."

_ROWS: Final = {
    "input-nonfinite": Cause(
        "NaN or infinity in the inputs", "NaN spreads from the inputs to everything", "training_curves",
        "torch.isfinite(data.x).all() is True for what the model is called with.", severity="error", is_alone=True,
    ),
    "parameters-not-in-optimizer": Cause(
        "Parameters are not in the optimizer", "what does not move shows every sign of a network that does not learn",
        "unchanged_fraction", "Every id(p) of model.parameters() is among those of optimizer.param_groups.",
        severity="certain",
    ),
    "gradients-not-cleared": Cause(
        "Gradients are not cleared", "sums of old gradients are steps in the wrong place, and too long",
        "training_curves", "All p.grad are None or zero when loss.backward() is called.",
        Remedy("optimizer.zero_grad()  # in each step, before loss.backward()", (Action("clear_gradients"),)),
        severity="certain", takes_training=True,
    ),
    "no-training-signal": Cause(
        "No training signal", "without a gradient nothing else can be judged", "gradient_norms",
        "The loss changes when a weight of the last layer does, and its labels are of several classes.",
        Remedy("print(mask.sum(), y[mask].unique(return_counts=True), loss.requires_grad)  # what the loss sees"),
        severity="error",
    ),
    "nonfinite-operation": Cause(
        "An operation returned NaN or infinity", "after the first NaN no measurement means anything", "overview",
        _ANOMALY, severity="error",
    ),
    "non-finite": Cause(
        "NaN or infinite values", "of checkpoints: what made it cannot be told from them", "overview", _ANOMALY,
        severity="error",
    ),
    "output-softmax-twice": Cause(
        "Probabilities are given to a loss on logits", "the slope of the inner softmax multiplies every gradient",
        "training_curves", "The outputs that the loss gets are below 0 or above 1.",
        Remedy("return x  # in forward, in place of x.softmax(-1) or x.sigmoid(): the loss does it itself"),
        severity="certain", is_alone=True,
    ),
    "input-constant": Cause(
        "All nodes have the same features", "rows that begin alike stay alike", "smoothing_by_layer",
        "The rows of the input differ: (data.x != data.x[0]).any() is True.", _POSITIONS, is_alone=True,
    ),
    "input-scale": Cause(
        "Inputs of unusual scale", "sizes of outputs, gradients and curvature follow those of the inputs",
        "training_curves", "After standardizing the features the loss takes the same course.",
    ),
    "init-too-large": Cause(
        "Initial weights are too large", "outputs grow with the product of the norms", "overview",
        "With Glorot's weights the first loss is as high.", GLOROT,
    ),
    "init-unbalanced": Cause(
        "Neurons are out of balance from the start",
        "stiff weights bound the learning rate, and the others cannot move at it", "balance",
        "From a balanced initialization, all else the same, the loss takes the same course.",
    ),
    "init-too-small": Cause(
        "Initial weights are too small", "outputs and gradients shrink with the product of the norms", "overview",
        "With Glorot's weights the gradients of the first layer are as small.", GLOROT,
    ),
    "depth-exploding-gradient": Cause(
        "Gradients explode with depth", "a usual learning rate is too large for gradients that grow with depth",
        "gradient_norms",
        "With branches scaled like this, or a normalization in each layer, the first loss is as high.",
    ),
    "dead-units": Cause(
        "Dead units", "no gradient passes a dead unit", "overview",
        "(x > 0).any(0).sum() behind the activation counts live units.", _LEAKY, if_late="rank-collapse",
    ),
    "attention-saturated": Cause(
        "Attention is saturated", "a saturated softmax has no slope, and huge logits have steep ones", "overview",
        "With scores divided by ten the loss takes the same course.", if_late="rank-collapse",
    ),
    "depth-vanishing-gradient": Cause(
        "Gradients vanish with depth", "no gradient, no step, but for those of decay", "gradient_norms",
        "With skips around the hidden layers, all else the same, the loss takes the same course.",
    ),
    "weight-decay-too-strong": Cause(
        "Weight decay is too strong", "weights near zero shrink outputs and gradients", "training_curves",
        takes_training=True,
    ),
    "lr-too-large": Cause(
        "The learning rate is too large", "a step that throws the weights away kills units and saturates softmaxes",
        "training_curves",
    ),
    "depth-oversmoothing": Cause(
        "Oversmoothing", "gradients of alike rows cancel", "smoothing_by_layer", _SHALLOW,
    ),
    "rank-collapse": Cause("Rank collapse", "as for oversmoothing", "smoothing_by_layer", _SHALLOW),
    "parameters-without-gradient": Cause(
        "Parameters without a gradient", "what gets no gradient does not move", "gradient_norms",
        "p.grad of these parameters is not None and not zero after loss.backward().",
    ),
    "clipping-too-tight": Cause(
        "Gradient clipping is too tight", "the bound, not the rate, makes the steps short", "training_curves",
        "Without clipping the loss falls no faster.", takes_training=True, is_alone=True,
    ),
    "lr-too-small": Cause(
        "The learning rate is too small", "everything else would make steps short, too", "unchanged_fraction",
        takes_training=True,
    ),
    "dead-weights": Cause(
        "Dead weights", "of checkpoints: rows of zeros",
        falsified_by="The rows were pruned, or the inputs are padding, on purpose.", is_alone=True,
    ),
    "unchanged-checkpoints": Cause(
        "Weights that never moved", "of checkpoints: nothing tells why", "unchanged_fraction", severity="warning",
        is_alone=True,
    ),
    "overflow": Cause(
        "Overflow", "a symptom of sizes, unless nothing explains them", "overview", _ANOMALY, severity="error",
        is_symptom=True,
    ),
    "loss-not-falling": Cause(
        "The loss does not fall", "a symptom, unless nothing explains it", "training_curves",
        "The loss falls if training goes on.",
        _TINY_BATCH,
        severity="warning", takes_training=True, is_symptom=True,
    ),
    "unchanged-weights": Cause(
        "Weights that never moved", "a symptom", "unchanged_fraction", severity="note", takes_training=True,
        is_symptom=True,
    ),
    "small-steps": Cause(
        "Steps are small", "a symptom", "unchanged_fraction", severity="note", takes_training=True, is_symptom=True,
    ),
    "overfitting": Cause(
        "Overfitting", "it trains", "training_curves",
        "With dropout and decay the gap stays: then training and validation nodes differ.", severity="note",
        takes_training=True,
    ),
    "law-broken": Cause(
        "Conservation laws do not hold", "a remark on the loss, not on the training", "conservation",
        "Without penalties on weights and hooks on gradients delta is still not zero.",
        Remedy("print(gatdiag.find_laws(model, x, edge_index).delta())  # after loss.backward(), penalties left out"),
        severity="note", is_alone=True,
    ),
    "optimizer-breaks-conservation": Cause(
        "The optimizer does not conserve c", "a remark on the optimizer", "conservation",
        "With plain gradient descent at a tenth of the learning rate c drifts as far.",
        Remedy("# nothing has to be done; torch.optim.SGD without momentum and decay, at a small rate, conserves c"),
        severity="note", takes_training=True, is_alone=True, is_remark=True,
    ),
}  # fmt: skip
CAUSES: Final[Mapping[str, Cause]] = MappingProxyType(_ROWS)

_PLACES: Final = {code: place for place, code in enumerate(CAUSES)}


def place(code: str, *, is_late: bool = False) -> float:
    """Where it stands in the table; below the row that it names if training made it."""
    later = CAUSES[code].if_late if is_late else ""
    return _PLACES[later] + 0.5 if later else _PLACES[code]
