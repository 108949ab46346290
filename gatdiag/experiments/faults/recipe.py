"""A training, described as data: everything about it that a fault may change."""

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Recipe:
    """A training. Equal recipes give equal trainings.

    Attributes:
        task: Classify nodes, classify graphs, predict links, or predict a number at each node.
        graph: What links the nodes, where no graphs are classified: a key of `tasks.GRAPHS`.
        nodes: Size of the graph; a fifth of that many graphs where graphs are classified.
        classes: Number of classes; of blocks of the graph in any case.
        columns: Number of features.
        train_share: Share of the examples that is for training; the others are for validation.
        features: ``dense`` (each column with mean 0 and variance 1) or ``words`` (zeros and ones).
        inputs: What is done to the features: a key of `tasks.INPUTS`, and its number.
        labels: What is done to the labels of training: a key of `tasks.LABELS`.

        layer: Kind of layer, a key of `network.LAYERS`.
        depth: Number of layers, the one that gives the output included.
        width: Of what is between layers.
        residual: Each layer between the first and the last adds to its input.
        norm: A key of `network.NORMS`, or "".
        activation: A key of `network.ACTIVATIONS`.
        dropout: Between layers.
        output: What the model does to its logits: a key of `network.OUTPUTS`.
        init: What is done to the weights that the layers were made with, in turn: keys of `network.INITS`, each with
            its number.
        frozen: Shell pattern of parameters that have no gradient.

        optimizer: SGD, momentum (SGD with 0.9), Nesterov (the same, looking ahead), Adam, AdamW or RMSprop.
        lr: Learning rate.
        decay: Weight decay, as the optimizer defines it.
        schedule: ``constant``, ``warm-up`` (over a fifth of the steps), ``cosine`` (to zero), ``drop`` (a tenth from
            the middle on) or ``collapse`` (by 0.7 each step).
        clip: Largest norm of the gradient; 0: it is not clipped.
        batch: Number of examples (nodes, graphs, links) of a step; 0: all.
        steps: How many are made.
        optimizes: Which parameters the optimizer is given: a key of `training.PARTS`.
        clears: Gradients are cleared before each backward pass.
        loss: What the training minimizes: a key of `training.LOSSES`.
        disturb: What happens after a backward pass: a key of `training.DISTURBANCES`, or "".
        resumed: Recording ends in the middle, and goes on.
        seed: Of graph, weights, batches and dropout.
    """

    task: Literal["nodes", "graphs", "links", "regression"] = "nodes"
    graph: str = "blocks"
    nodes: int = 200
    classes: int = 4
    columns: int = 32
    train_share: float = 0.5
    features: Literal["dense", "words"] = "dense"
    inputs: tuple[str, float] = ("as they are", 1.0)
    labels: str = "true"

    layer: str = "gcn"
    depth: int = 2
    width: int = 32
    residual: bool = False
    norm: str = ""
    activation: str = "relu"
    dropout: float = 0.0
    output: str = "logits"
    init: tuple[tuple[str, float], ...] = ()
    frozen: str = ""

    optimizer: Literal["SGD", "momentum", "Nesterov", "Adam", "AdamW", "RMSprop"] = "Adam"
    lr: float = 0.01
    decay: float = 0.0
    schedule: Literal["constant", "warm-up", "cosine", "drop", "collapse"] = "constant"
    clip: float = 0.0
    batch: int = 0
    steps: int = 100
    optimizes: str = "all"
    clears: bool = True
    loss: str = "usual"
    disturb: str = ""
    resumed: bool = False
    seed: int = 0

    def changes(self, other: "Recipe") -> dict[str, Any]:
        """Attributes in which another recipe differs, with its values."""
        own = asdict(self)
        return {name: value for name, value in asdict(other).items() if value != own[name]}
