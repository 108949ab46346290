"""Every threshold of the diagnosis in one table, with the reason for it.

Ranges are of small seeded trainings that went well ("healthy") and of such with one planted fault ("faulty").
"""

from typing import Final, NamedTuple


class Threshold(NamedTuple):
    """A limit and why it stands there."""

    value: float
    reason: str


THRESHOLDS: Final = {
    # how a training went
    "trained": Threshold(0.6, "share of the loss of the best constant prediction that is gone: what remains is a note"),
    "failing": Threshold(0.35, "less of it gone is not training; healthy 0.17 to 1, median 0.99; between: warnings"),
    "steps": Threshold(20, "steps before the loss says anything"),
    "sure": Threshold(50, "steps before a verdict that rests on the loss is an error"),
    "fall": Threshold(0.05, "of the first loss; trainings that went well lost 17 % and more, half of them 99 %"),
    # inputs
    "input-constant": Threshold(1e-6, "relative mu of the inputs; healthy 0.64 to 1, faulty 0"),
    "input-large": Threshold(
        30, "rms of the largest column; the curvature of layer 1 grows with its square; healthy 0.65 to 4.5, faulty 3e3"
    ),
    "input-huge": Threshold(100, "the same where the network trains: 1e4 times the curvature of standardized inputs"),
    "input-small": Threshold(1e-3, "rms norm of a row: nothing of it is left after a usual bias"),
    # initialization: norm of each first feature weight over that of Glorot's
    "gain-large": Threshold(
        4, "times Glorot's norm, geometric mean over layers; usual initializations lie within 0.28 to 2.5"
    ),
    "gain-small": Threshold(0.15, "times Glorot's norm, geometric mean over layers; faulty 6e-4 to 0.02"),
    "gain-one": Threshold(12, "times Glorot's norm in one layer, with no small one to make up for it"),
    "gain-jump": Threshold(20, "factor from layer to layer; healthy 1 to 3.5, faulty 104; relative gradients differ "
    "by its square"),
    "imbalance": Threshold(
        0.01, "|c| over the squared norms that make it up; drawn at random 0.3 and more, balanced 1e-7"
    ),
    "chance": Threshold(3, "times the loss of the best constant prediction at the first step"),
    # depth
    "explode": Threshold(30, "growth of the hidden outputs, first to last; healthy 0.12 to 10, faulty 7.8 to 3e7"),
    "explode-back": Threshold(1e3, "growth of the gradients from the last layer to the first"),
    "vanish": Threshold(1e-3, "gradient of the first layer's output over the last's; healthy 0.023 to 28, faulty 3e-5"),
    "vanish-alike": Threshold(1e-5, "the same where rows are alike, which shrinks it, too"),
    "arrives": Threshold(1, "gradient of the first over that of the last hidden layer, before training: with skips 1.8 "
    "to 21, without them and of low rank up to 0.3"),
    "alike": Threshold(1e-2, "relative mu of the last layers; healthy 0.075 to 0.89, faulty 7e-8 to 9e-4"),
    "norm-stays": Threshold(0.03, "of the first layer's output norm: below, outputs vanish rather than become alike"),
    "rank-one": Threshold(1.25, "effective rank: sigma_2 is 5 % of sigma_1; healthy 1.5 to 21, faulty 1.00 to 1.05"),
    "rank-few": Threshold(3, "effective rank, and an eighth of the first layer's, over eight layers and more"),
    "rank-low": Threshold(2.5, "effective rank of the first hidden output; usual 10 and more"),
    "weights-alike": Threshold(0.99, "spectral over Frobenius norm of initial weights; usual 0.2 to 0.5, rank one: 1"),
    "shrink": Threshold(1e-2, "norm of the last hidden outputs over the first's, in attention layers with usual "
    "weights"),
    "attention-still": Threshold(
        0.01, "update ratio of attention over that of features, deeper half; balanced 50, usual 0.5, stuck below 1e-3"
    ),
    "stuck": Threshold(1e-3, "share of the weights that a step moves; 1,000 such steps would replace them"),
    "stiff": Threshold(0.1, "overshoot: the learning rate cannot be raised ten times although nothing moves"),
    "bound": Threshold(
        2.4e-3, "share of the weights that a step of overshoot 2 would move; deep attention networks that train 9e-3 "
        "and more, stuck 6e-4"
    ),
    "deep": Threshold(4, "layers and more"),
    "adam": Threshold(16, "layers, from which on balanced weights train in thousands of steps of gradient descent, and "
    "in hundreds of Adam"),
    # units
    "dead": Threshold(0.9, "share of units that are zero at every node; healthy 0 to 0.69, faulty 1"),
    "one-hot": Threshold(0.5, "share of nodes whose largest coefficient is above 0.99; healthy 0 to 0.004, faulty "
    "0.68"),
    "entropy": Threshold(0.02, "relative entropy of the attention: the slope of the softmax, 4a(1-a), is next to zero"),
    # rates
    "jump": Threshold(5, "times the loss of the best constant prediction; 100 where the network trains"),
    "jump-trained": Threshold(100, "times that loss where it came back, and the network trains, in whole or in part"),
    "step-large": Threshold(0.5, "share of the weights that a step moves; healthy 6e-4 to 0.53, faulty 2.1 to 9e6"),
    "step-replaces": Threshold(1, "share of the weights that an early step moves: it replaces them"),
    "overshoot": Threshold(2, "gradient descent diverges where learning rate x curvature exceeds 2"),
    "linear": Threshold(0.02, "overshoot: the slope is the same along the whole step"),
    "path": Threshold(0.3, "sum of relative steps; healthy 0.086 to 5.3, faulty 7e-4 to 0.1"),
    "pace": Threshold(2e-4, "relative step, mean over the run"),
    "slow": Threshold(1e-3, "of the first loss a step: at this pace it takes 1,000 steps"),
    "uneven": Threshold(30, "the fastest layer's step over the median layer's: then not the rate is the cause"),
    "faded": Threshold(1e-2, "of the largest learning rate in most of the run"),
    "decay": Threshold(0.5, "pull of the decay over that of the gradient; 1 is their equilibrium"),
    "shrunk": Threshold(0.5, "size of the weights at the end over the start; healthy 0.36 to 3.6, faulty 0.001 to 0.6"),
    "clip": Threshold(0.1, "gradient norm after over before clipping, median; healthy 1, faulty 3e-9 to 2e-3"),
    "adam-eps": Threshold(1e3, "times eps: above it, Adam divides the bound out again"),
    "stale": Threshold(0.5, "norm of the old gradient over what the last step used: 0 where cleared, 1 where not"),
    "size": Threshold(1e6, "values before the first NaN: overflow from size has another cause than an invalid "
    "operation"),
    # laws and generalization
    "law": Threshold(1e-5, "|c - predicted c| over the squared norms that make c up; healthy 2e-7, faulty 9e-4"),
    "drift": Threshold(0.1, "change of c over the squared norms that make it up"),
    "gap": Threshold(0.33, "training minus validation score"),
    "fell": Threshold(0.08, "of the best validation score: it was better before"),
    "rose": Threshold(0.5, "rise of the validation loss over its lowest, in units of the first"),
    "unchanged": Threshold(0.5, "share of a layer's weights; a ten-layer GAT that trained had 0.26, the same one "
    "stuck 0.69"),
    "labels": Threshold(20, "labels seen: below, nothing is said about them"),
    "criterion": Threshold(0.5, "share of the steps whose dL/dout is that of the criterion"),
}  # fmt: skip


def limit(name: str) -> float:
    """The value of a threshold."""
    return THRESHOLDS[name].value


def said(*names: str) -> str:
    """Thresholds in words, for `Finding.threshold`."""
    return "; ".join(f"{THRESHOLDS[name].value:g} ({THRESHOLDS[name].reason})" for name in names)
