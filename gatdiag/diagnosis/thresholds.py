"""The table of all thresholds of the diagnosis, with the reason for each.

Ranges were measured on small seeded trainings that went well ("healthy runs") and on such with one planted fault
("faulty runs").
"""

from typing import Final, NamedTuple


class Threshold(NamedTuple):
    """A limit and the reason for it."""

    value: float
    reason: str


THRESHOLDS: Final = {
    # how a training went
    "trained": Threshold(0.6, "share of the loss of the best constant prediction that is gone: what remains is a note"),
    "failing": Threshold(0.35, "less of it gone: not training; healthy runs 0.17 to 1, median 0.99; between: warnings"),
    "kept": Threshold(0.9, "share of the loss of the best constant prediction that is gone, from the first step on"),
    "same-loss": Threshold(0.5, "relative difference of the loss and the cross-entropy of its rows with a gradient"),
    "steps": Threshold(20, "steps before the loss is judged"),
    "sure": Threshold(50, "steps before a verdict that depends on the loss is an error"),
    "fall": Threshold(0.05, "share of the first loss; healthy runs lost at least 17 %, half of them 99 %"),
    # inputs
    "input-constant": Threshold(1e-6, "relative mu of the inputs; healthy runs 0.64 to 1, faulty runs 0"),
    "input-large": Threshold(
        30, "rms of the largest column; the curvature of the first layer grows with its square; healthy runs 0.65 to "
        "4.5, faulty runs 3e3"
    ),
    "input-huge": Threshold(100, "the same if the network trains: 1e4 times the curvature of standardized inputs"),
    "input-small": Threshold(1e-3, "rms norm of a row: negligible beside a usual bias"),
    "edges": Threshold(0.1, "share of nodes with an edge to another node; healthy runs 0.5 to 1"),
    "reached": Threshold(0.1, "share of labeled nodes that an edge reaches; healthy runs 0.5 to 1, reversed edges 0"),
    "reached-others": Threshold(0.3, "more of all nodes are reached: then edges are not missing, but point elsewhere"),
    "distinct": Threshold(0.5, "share of distinct values: random weights 1, masks and one-hot tables near 0"),
    # targets and loss
    "offset": Threshold(
        3, "mean of the targets over their standard deviation; standardized targets 0, counts and prices about 1"
    ),
    "above-variance": Threshold(1, "times the variance of the targets: the loss of a constant that is their mean"),
    "bottomless": Threshold(100, "times the size of the first loss; log-likelihoods of densities reach a few times it"),
    "imbalance-share": Threshold(0.8, "share of the most frequent class: a constant is right in four of five"),
    "separates": Threshold(0.6, "AUC of the frequent class on a batch: one half is chance, a network that learns 0.7"),
    "as-share": Threshold(0.03, "between the logged accuracy and the share of the most frequent class"),
    # the loop
    "passes": Threshold(3, "backward passes: usual accumulation makes a step after them, and is not over yet"),
    "new-optimizers": Threshold(0.5, "share of the recorded steps; an optimizer for each stage or epoch makes many"),
    # initialization: norm of each first feature weight over that of Glorot's
    "gain-large": Threshold(
        4, "times Glorot's norm, geometric mean over layers; usual initializations are within 0.28 to 2.5"
    ),
    "gain-small": Threshold(0.15, "times Glorot's norm, geometric mean over layers; faulty runs 6e-4 to 0.02"),
    "gain-one": Threshold(12, "times Glorot's norm in one layer, without a small layer to make up for it"),
    "gain-jump": Threshold(20, "factor from layer to layer; healthy runs 1 to 3.5, faulty runs 104; relative gradients "
    "differ by its square"),
    "imbalance": Threshold(
        0.01, "|c| over the squared norms that make it up; random weights 0.3 and more, balanced ones 1e-7"
    ),
    "chance": Threshold(3, "times the loss of the best constant prediction at the first step"),
    "batches": Threshold(20, "batches: until then, initial values are an eighth or more of the running statistics"),
    # depth
    "explode": Threshold(
        30, "growth of the hidden outputs from first to last; healthy runs 0.12 to 10, faulty runs 7.8 to 3e7"
    ),
    "explode-back": Threshold(1e3, "growth of the gradients from the last layer to the first"),
    "vanish": Threshold(
        1e-3, "gradient of the first layer's output over the last's; healthy runs 0.023 to 28, faulty runs 3e-5"
    ),
    "vanish-alike": Threshold(1e-5, "the same if rows are alike, which shrinks it, too"),
    "arrives": Threshold(1, "gradient of the first over that of the last hidden layer, before training: with skips 1.8 "
    "to 21, without them and of low rank up to 0.3"),
    "alike": Threshold(1e-2, "relative mu of the last layers; healthy runs 0.075 to 0.89, faulty runs 7e-8 to 9e-4"),
    "norm-stays": Threshold(0.03, "of the first layer's output norm: below, outputs vanish rather than become alike"),
    "rank-one": Threshold(
        1.25, "effective rank: sigma_2 is 5 % of sigma_1; healthy runs 1.5 to 21, faulty runs 1.00 to 1.05"
    ),
    "rank-few": Threshold(3, "effective rank, and an eighth of the first layer's, over at least eight layers"),
    "rank-low": Threshold(2.5, "effective rank of the first hidden output; usually 10 or more"),
    "weights-alike": Threshold(0.99, "spectral over Frobenius norm of initial weights; usual 0.2 to 0.5, rank one: 1"),
    "shrink": Threshold(1e-2, "norm of the last hidden outputs over the first's, in attention layers with usual "
    "weights"),
    "attention-still": Threshold(
        0.01, "update ratio of attention over that of features, deeper half; balanced 50, usual 0.5, stuck below 1e-3"
    ),
    "stuck": Threshold(1e-3, "norm of a step over norm of the weights; 1,000 such steps would replace the weights"),
    "stiff": Threshold(0.1, "overshoot: the learning rate cannot be raised ten times although nothing moves"),
    "bound": Threshold(
        2.4e-3, "norm of a step with overshoot 2 over norm of the weights; deep attention networks that train 9e-3 and "
        "more, stuck ones 6e-4"
    ),
    "deep": Threshold(4, "layers or more"),
    "adam": Threshold(16, "layers: from here on, balanced weights train in thousands of steps of gradient descent, and "
    "in hundreds of Adam"),
    # units
    "dropout": Threshold(
        0.9, "share of entries that are dropped; healthy runs up to 0.8; at 0.98 32 units did not train"
    ),
    "dead": Threshold(0.9, "share of units that are zero at every node; healthy runs 0 to 0.69, faulty runs 1"),
    "one-hot": Threshold(
        0.5, "share of nodes whose largest coefficient is above 0.99; healthy runs 0 to 0.004, faulty runs 0.68"
    ),
    "entropy": Threshold(0.02, "relative entropy of the attention: the slope of the softmax, 4a(1-a), is nearly zero"),
    # rates
    "jump": Threshold(5, "times the loss of the best constant prediction; 100 if the network trains"),
    "jump-trained": Threshold(
        100,
        "times the loss of the best constant prediction, if it came back and the network trains, or trains partly and "
        "no early step replaced the weights",
    ),
    "step-large": Threshold(
        0.5, "norm of a step over norm of the weights; healthy runs 6e-4 to 0.53, faulty runs 2.1 to 9e6"
    ),
    "step-replaces": Threshold(1, "norm of an early step over norm of the weights: it replaces them"),
    "overshoot": Threshold(2, "gradient descent diverges if learning rate x curvature exceeds 2"),
    "linear": Threshold(0.02, "overshoot: the slope is the same along the whole step"),
    "path": Threshold(
        0.3, "sum of step norms over weight norms; healthy runs 0.086 to 5.3, faulty runs 7e-4 to 0.1"
    ),
    "pace": Threshold(2e-4, "norm of a step over norm of the weights, mean over the run"),
    "slow": Threshold(1e-3, "of the first loss per step: at this pace it takes 1,000 steps"),
    "uneven": Threshold(30, "the fastest layer's step over the median layer's: then the rate is not the cause"),
    "faded": Threshold(1e-2, "of the largest learning rate in most of the run"),
    "decay": Threshold(0.5, "pull of the decay over that of the gradient; they are in equilibrium at 1"),
    "shrunk": Threshold(
        0.5, "norm of the weights at the end over the start; healthy runs 0.36 to 3.6, faulty runs 0.001 to 0.6"
    ),
    "clip": Threshold(
        0.1, "gradient norm after over before clipping, median; healthy runs 1, faulty runs 3e-9 to 2e-3"
    ),
    "adam-eps": Threshold(1e3, "times eps: above it, Adam divides the bound out again"),
    "stale": Threshold(
        0.5, "norm of the old gradient over that of the last step's gradient: 0 if cleared, 1 if not"
    ),
    "size": Threshold(1e6, "values before the first NaN: an overflow has another cause than an invalid operation"),
    # laws and generalization
    "law": Threshold(
        1e-5, "|c - predicted c| over the squared norms that make c up; healthy runs 2e-7, faulty runs 9e-4"
    ),
    "drift": Threshold(0.1, "change of c over the squared norms that make it up"),
    "gap": Threshold(0.33, "training minus validation score"),
    "fell": Threshold(0.08, "of the best validation score: it was better before"),
    "rose": Threshold(0.5, "rise of the validation loss from its lowest value, over the first value"),
    "unchanged": Threshold(0.5, "share of a layer's weights; a ten-layer GAT that trained had 0.26, the same network "
    "stuck 0.69"),
    "labels": Threshold(20, "labels seen: with fewer, they are not judged"),
    "broadcast": Threshold(1e-3, "of the first loss is left if all outputs equal the target that they share"),
    "target-moves": Threshold(10, "times the spread of targets within batches; the mean of usual targets moves less"),
    "criterion": Threshold(0.5, "share of the steps whose dL/dout is that of the criterion"),
}  # fmt: skip


def limit(name: str) -> float:
    """The value of a threshold."""
    return THRESHOLDS[name].value


def threshold_text(*names: str) -> str:
    """Describe thresholds, for `Finding.threshold`."""
    return "; ".join(f"{THRESHOLDS[name].value:g} ({THRESHOLDS[name].reason})" for name in names)
