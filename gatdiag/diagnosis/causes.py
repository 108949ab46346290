"""The table of causes, a row for each code: its title, its figure, its remedy, and its place in the ranking.

Findings are ranked by severity; of two with the same severity, the one that is higher in this table comes first. The
order is: certain errors outside of the network, then what is there before the first step, then what training makes of
it, last what is a matter of degree. A finding explains those below it, which are then listed as its symptoms. Nothing
explains an independent finding, and a note explains no warning or error unless that is a symptom by nature.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gatdiag.diagnosis.finding import Action, Remedy, Severity


@dataclass(frozen=True)
class Cause:
    """What all findings of one code have in common.

    Attributes:
        title: A short name, in the field's words.
        why: Why it stands at this place of the table.
        figure: The name of the figure that shows it, or "".
        falsified_by: An observation that would disprove it.
        remedy: Code to paste, if it is the same for all runs.
        severity: Of all its findings; "by loss": follows from how well the training went; "certain": an error, or a
            warning if the network trains nevertheless.
        needs_training: It cannot be seen before the first step.
        is_independent: It is measured directly, whatever else is wrong, so that no other finding explains it.
        is_symptom: An effect, not a cause; as a note it is never reported by itself.
        below_if_late: The code below which it ranks if it arose in training and was not there from the start.
        is_remark: It never keeps a network from training.
        limits: The names of the thresholds that its findings name (`gatdiag.diagnosis.THRESHOLDS`).
    """

    title: str
    why: str
    figure: str = ""
    falsified_by: str = ""
    remedy: Remedy | None = None
    severity: Severity | Literal["by loss", "certain"] = "by loss"
    needs_training: bool = False
    is_independent: bool = False
    is_symptom: bool = False
    below_if_late: str = ""
    is_remark: bool = False
    limits: tuple[str, ...] = ()


GLOROT: Final = Remedy(
    'gatdiag.remedies.initialize_(model, "xavier_uniform")  # before training',
    (Action("initialize", {"scheme": "xavier_uniform"}),),
)
_LEAKY: Final = Remedy(
    f"{GLOROT.code}; this also sets biases to zero\n"
    "gatdiag.remedies.leaky_relu_(model, 0.1)  # or use leaky_relu instead of relu in forward",
    (*GLOROT.actions, Action("leaky_relu", {"slope": 0.1})),
)
_POSITIONS: Final = Remedy(
    "data.x = torch.nn.functional.one_hot(\n"
    "    torch_geometric.utils.degree(data.edge_index[1], data.num_nodes).long().clamp(max=63), 64).float()\n"
    "# or: data = torch_geometric.transforms.AddLaplacianEigenvectorPE(16, attr_name='x')(data)"
)
_TINY_BATCH: Final = Remedy(
    "# train on one batch of a few nodes: if the loss does not go to zero there, model, loss or labels are wrong"
)
_ANOMALY: Final = "torch.autograd.set_detect_anomaly(True) reports no operation, or the inputs contain NaN."
_SHALLOW: Final = "A network of two layers, or one with skip connections, does not train either."

CAUSES: Final[Mapping[str, Cause]] = {
    "input-nonfinite": Cause(
        "NaN or infinity in the inputs", "NaN spreads from the inputs to everything", "training_curves",
        "torch.isfinite(data.x).all() is True for the inputs that the model is called with.", severity="error",
        is_independent=True,
    ),
    "target-nonfinite": Cause(
        "NaN or infinity in the targets", "NaN spreads from the loss to every weight", "training_curves",
        "torch.isfinite(y).all() is True for the targets, and the weights, that the loss is given.",
        Remedy(
            "known = y.isfinite()  # targets that are missing\n"
            "loss = torch.nn.functional.mse_loss(out[known], y[known])  # or your loss, of these alone"
        ),
        severity="error", is_independent=True, needs_training=False,
    ),
    "empty-selection": Cause(
        "The loss is the mean of nothing", "0 / 0 is NaN, and spreads to every weight", "training_curves",
        "mask.sum() is above zero in every step.",
        Remedy("if not mask.any():\n    continue  # skip the batch; or divide by mask.sum().clamp(min=1)"),
        severity="error", is_independent=True,
    ),
    "input-edge-weights": Cause(
        "Edge weights cannot be normalized", "the root of a negative degree is NaN", "overview",
        "torch_geometric.utils.scatter(edge_weight, edge_index[1]).min() is above -1, and no weight is NaN.",
        Remedy(
            "edge_weight = edge_weight.abs()  # or keep the sign in edge_attr, for a layer that takes features of edges"
        ),
        severity="error", is_independent=True,
    ),
    "no-step": Cause(
        "The optimizer never makes a step", "weights that never move learn nothing", "training_curves",
        "optimizer.step() runs after loss.backward(), with an optimizer of model.parameters().",
        Remedy("optimizer.step()  # in every step, after loss.backward()"), severity="error", needs_training=True,
        is_independent=True,
        limits=("passes",),
    ),
    "parameters-not-in-optimizer": Cause(
        "Parameters are not in the optimizer", "parameters that never move cause every symptom below",
        "unchanged_fraction",
        "The id() of every parameter in model.parameters() is among those in optimizer.param_groups.",
        severity="certain",
    ),
    "gradients-not-cleared": Cause(
        "Gradients are not cleared", "steps along sums of old gradients are too long and lag behind",
        "training_curves", "Every p.grad is None or zero when loss.backward() is called.",
        Remedy("optimizer.zero_grad()  # in every step, before loss.backward()", (Action("clear_gradients"),)),
        severity="certain", needs_training=True,
        limits=("stale",),
    ),
    "optimizer-recreated": Cause(
        "The optimizer is created anew in every step", "without moments, steps do not become shorter",
        "training_curves", "The same optimizer object makes all steps.", severity="certain", needs_training=True,
        is_independent=True,
        limits=("new-optimizers",),
    ),
    "loss-broadcast": Cause(
        "Outputs and targets are broadcast in the loss", "the gradient does not depend on a node's own target",
        "training_curves", "out.shape == y.shape is True where the loss compares outputs and targets.",
        Remedy("y = y.view_as(out)  # before the loss: [N, 1] - [N] is [N, N]"), severity="certain",
        is_independent=True,
        limits=("broadcast", "target-moves"),
    ),
    "target-is-output": Cause(
        "The target is an output of the model", "the loss does not know what is right", "training_curves",
        "target.requires_grad is False where the loss is called.",
        Remedy(
            "scores = torch.cat([positive, negative])\n"
            "labels = torch.cat([torch.ones_like(positive), torch.zeros_like(negative)])\n"
            "loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)"
        ),
        severity="certain", is_independent=True,
    ),
    "loss-unbounded": Cause(
        "The loss has no lower bound", "outputs grow instead of becoming right", "training_curves",
        "The loss has a lowest value, and training approaches it.",
        Remedy("print(loss, out.abs().max())  # both grow: look for a flipped sign, or bound the outputs"),
        severity="certain", is_independent=True,
        limits=("bottomless",),
    ),
    "no-training-signal": Cause(
        "No training signal", "without a gradient nothing else can be judged", "gradient_norms",
        "The loss changes when a weight of the last layer changes, and the labels are of more than one class.",
        Remedy("print(mask.sum(), y[mask].unique(return_counts=True), loss.requires_grad)  # what the loss sees"),
        severity="error",
        limits=("labels",),
    ),
    "nonfinite-operation": Cause(
        "An operation returned NaN or infinity", "after the first NaN no measurement means anything", "overview",
        _ANOMALY, severity="error",
        limits=("size",),
    ),
    "non-finite": Cause(
        "NaN or infinite values", "of checkpoints, which do not show where it came from", "overview", _ANOMALY,
        severity="error",
    ),
    "output-softmax-twice": Cause(
        "The loss expects logits but gets probabilities", "the slope of the inner softmax multiplies every gradient",
        "training_curves", "The outputs that are passed to the loss are below 0 or above 1.",
        Remedy("return x  # in forward, instead of x.softmax(-1) or x.sigmoid(): the loss applies it itself"),
        severity="certain", is_independent=True,
    ),
    "output-softmax-over-nodes": Cause(
        "Softmax over the nodes", "this loss stays high for any weights", "training_curves",
        "out.exp().sum(-1) is 1 for each node.",
        Remedy("return torch.log_softmax(x, dim=-1)  # in forward, instead of dim=0"), severity="certain",
        is_independent=True,
    ),
    "evaluation-mode": Cause(
        "Training in evaluation mode", "without normalization of batches, the causes below are another model's",
        "training_curves", "With model.train() before each step the learning curve is the same.",
        Remedy("model.train()  # at the start of each epoch, as evaluation leaves the model in evaluation mode"),
        needs_training=True, is_independent=True,
        limits=("batches",),
    ),
    "input-constant": Cause(
        "All nodes have the same features", "rows that start alike stay alike", "smoothing_by_layer",
        "The rows of the input differ: (data.x != data.x[0]).any() is True.", _POSITIONS, is_independent=True,
        limits=("input-constant",),
    ),
    "input-scale": Cause(
        "Inputs have an unusual scale", "outputs, gradients and curvature scale with the inputs",
        "training_curves", "With standardized features the learning curve is the same.",
        limits=("input-large", "input-huge", "input-small"),
    ),
    "target-scale": Cause(
        "Targets are far from zero", "all steps are spent on the mean of the targets", "training_curves",
        "With standardized targets the loss, over their variance, stays as high.",
        Remedy("y = (y - y.mean(0)) / y.std(0)  # the targets, before training; undo it for predictions"),
        limits=("offset", "above-variance"),
    ),
    "init-too-large": Cause(
        "Initial weights are too large", "outputs grow with the product of the norms", "overview",
        "With Glorot initialization the first loss is just as high.", GLOROT,
        limits=("gain-large", "gain-one", "chance"),
    ),
    "init-unbalanced": Cause(
        "Neurons are out of balance from the start",
        "stiff weights bound the learning rate, and the others cannot move at it", "balance",
        "With a balanced initialization and everything else unchanged, the learning curve is the same.",
        limits=("gain-jump", "imbalance", "shrink", "attention-still", "bound", "stiff"),
    ),
    "init-too-small": Cause(
        "Initial weights are too small", "outputs and gradients shrink with the product of the norms", "overview",
        "With Glorot initialization the gradients of the first layer are just as small.", GLOROT,
        limits=("gain-small",),
    ),
    "depth-exploding-gradient": Cause(
        "Gradients explode with depth", "a usual learning rate is too large for gradients that grow with depth",
        "gradient_norms",
        "With scaled branches, or a normalization after each layer, the first loss is just as high.",
        limits=("explode", "explode-back", "jump"),
    ),
    "dropout-too-large": Cause(
        "The dropout rate is too large", "units that dropout sets to zero are not dead", "training_curves",
        "With a dropout rate of 0.5 the learning curve is the same.", needs_training=True,
        limits=("dropout",),
    ),
    "dead-units": Cause(
        "Dead units", "no gradient passes a dead unit", "overview",
        "(x > 0).any(0) after the activation is True for most units.", _LEAKY, below_if_late="rank-collapse",
        limits=("dead",),
    ),
    "attention-saturated": Cause(
        "Attention is saturated", "the slope of a saturated softmax is zero", "overview",
        "With attention scores divided by 10 the learning curve is the same.", below_if_late="rank-collapse",
        limits=("one-hot", "entropy"),
    ),
    "depth-vanishing-gradient": Cause(
        "Gradients vanish with depth", "without a gradient only weight decay moves weights", "gradient_norms",
        "With skip connections around the hidden layers and everything else unchanged, the learning curve is the same.",
        limits=("vanish", "vanish-alike"),
    ),
    "weight-decay-too-strong": Cause(
        "Weight decay is too strong", "weights near zero shrink outputs and gradients", "training_curves",
        needs_training=True,
        limits=("decay", "shrunk"),
    ),
    "lr-too-large": Cause(
        "The learning rate is too large", "a step that replaces the weights kills units and saturates softmaxes",
        "training_curves",
        limits=("step-large", "step-replaces", "jump", "jump-trained", "overshoot"),
    ),
    "depth-oversmoothing": Cause(
        "Oversmoothing", "gradients of similar rows cancel", "smoothing_by_layer", _SHALLOW,
        limits=("alike", "rank-low", "rank-one", "rank-few", "weights-alike"),
    ),
    "rank-collapse": Cause(
        "Rank collapse", "as for oversmoothing", "smoothing_by_layer", _SHALLOW,
        limits=("rank-one", "rank-few", "weights-alike"),
    ),
    "input-without-messages": Cause(
        "Labeled nodes get no messages", "weights of neighbors get no gradient", "smoothing_by_layer",
        "Most of the labeled nodes are in edge_index[1], with another node in edge_index[0].",
        Remedy("edge_index = edge_index.flip(0)  # or torch_geometric.utils.to_undirected(edge_index)"),
        is_independent=True,
        limits=("reached", "reached-others"),
    ),
    "parameters-without-gradient": Cause(
        "Parameters without a gradient", "what gets no gradient does not move", "gradient_norms",
        "After loss.backward(), p.grad of these parameters is neither None nor zero.",
    ),
    "parameters-not-registered": Cause(
        "A weight is a plain tensor", "what no optimizer can hold does not move", "unchanged_fraction",
        "It is a constant on purpose: then a parameter in its place does not make the loss fall further.",
        needs_training=True,
        limits=("distinct",),
    ),
    "clipping-too-tight": Cause(
        "Gradient clipping is too tight", "the bound, not the learning rate, makes the steps short", "training_curves",
        "Without clipping the loss falls no faster.", needs_training=True, is_independent=True,
        limits=("clip",),
    ),
    "lr-too-small": Cause(
        "The learning rate is too small", "everything above makes steps short, too", "unchanged_fraction",
        needs_training=True,
        limits=("path", "pace", "faded"),
    ),
    "output-relu": Cause(
        "The logits pass a ReLU", "a network trains in spite of it, but not as far", "training_curves",
        "Without the ReLU the learning curve is the same.",
        Remedy("return x  # in forward, instead of x.relu(): logits may be negative"), is_independent=True,
    ),
    "input-without-edges": Cause(
        "No edges", "an MLP trains, too", "smoothing_by_layer",
        "edge_index[:, edge_index[0] != edge_index[1]].unique() holds most of the nodes in the forward pass.",
        Remedy(
            "print(x.shape, edge_index.shape, edge_index.unique().numel())  # in forward: edge_index is [2, edges]\n"
            "data = torch_geometric.data.Batch.from_data_list(graphs)  # joins graphs with the right node numbers"
        ),
        is_independent=True,
        limits=("edges",),
    ),
    "class-imbalance": Cause(
        "One class is predicted for all", "a constant has a low loss where one class is frequent", "training_curves",
        "With weights of classes the rare ones are not predicted either.", needs_training=True,
        limits=("imbalance-share", "as-share", "separates"),
    ),
    "dead-weights": Cause(
        "Dead weights", "of checkpoints: rows of zeros",
        falsified_by="The rows were pruned on purpose, or the inputs are padding.", is_independent=True,
    ),
    "unchanged-checkpoints": Cause(
        "Weights that never moved", "of checkpoints, which do not show why", "unchanged_fraction", severity="warning",
        is_independent=True,
        limits=("unchanged",),
    ),
    "overflow": Cause(
        "Overflow", "a symptom of large values, unless nothing explains them", "overview", _ANOMALY, severity="error",
        is_symptom=True,
        limits=("size",),
    ),
    "loss-not-falling": Cause(
        "The loss does not fall", "a symptom, unless nothing explains it", "training_curves",
        "The loss falls when training goes on.",
        _TINY_BATCH,
        severity="warning", needs_training=True, is_symptom=True,
        limits=("fall", "jump", "steps"),
    ),
    "unchanged-weights": Cause(
        "Weights that never moved", "a symptom", "unchanged_fraction", severity="note", needs_training=True,
        is_symptom=True,
        limits=("unchanged",),
    ),
    "small-steps": Cause(
        "Steps are small", "a symptom", "unchanged_fraction", severity="note", needs_training=True, is_symptom=True,
    ),
    "overfitting": Cause(
        "Overfitting", "the network trains", "training_curves",
        "The gap stays with dropout and weight decay: then training and validation data differ.", severity="note",
        needs_training=True,
        limits=("gap", "fell", "rose"),
    ),
    "law-broken": Cause(
        "Conservation laws do not hold", "a remark on the loss, not on training", "conservation",
        "Without weight penalties and gradient hooks, delta is still not zero.",
        Remedy("print(gatdiag.find_laws(model, x, edge_index).delta())  # after loss.backward(), without penalties"),
        severity="note", is_independent=True,
        limits=("law",),
    ),
    "optimizer-breaks-conservation": Cause(
        "The optimizer does not conserve c", "a remark on the optimizer", "conservation",
        "With plain gradient descent at a tenth of the learning rate c drifts just as far.",
        Remedy("# nothing to do; torch.optim.SGD without momentum and weight decay, at a small rate, conserves c"),
        severity="note", needs_training=True, is_independent=True, is_remark=True,
        limits=("drift",),
    ),
}  # fmt: skip

_RANKS: Final = {code: rank for rank, code in enumerate(CAUSES)}


def rank(code: str, *, is_late: bool = False) -> float:
    """Position in the table; just below `below_if_late` if the finding arose in training."""
    above = CAUSES[code].below_if_late if is_late else ""
    return _RANKS[above] + 0.5 if above else _RANKS[code]
