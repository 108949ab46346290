"""All settings of a training that a fault may change, as data."""

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Recipe:
    """A training. Equal recipes give equal trainings.

    Attributes:
        task: Node classification, graph classification, link prediction or node regression.
        graph: Kind of graph, "blocks" or a key of `tasks.GRAPHS`; not used for graph classification.
        nodes: Number of nodes; graph classification has a fifth as many graphs.
        classes: Number of classes, and of communities of the graph.
        columns: Number of features.
        train_share: Fraction of the examples for training; the others are for validation.
        features: ``dense`` (each column with mean 0 and variance 1) or ``words`` (zeros and ones).
        inputs: How the features are changed: a key of `tasks.INPUTS` and its argument.
        labels: How the training labels are changed: a key of `tasks.LABELS`.
        edges: How the edges are changed: a key of `tasks.EDGES`.
        data: What the loop does to the data: a key of `training.DATA`, or "".

        layer: Kind of layer, a key of `network.LAYERS`.
        depth: Number of layers, including the output layer.
        width: Number of hidden channels.
        residual: Skip connections around the layers between the first and the last.
        norm: A key of `network.NORMS`, or "".
        activation: A key of `network.ACTIVATIONS`.
        dropout: Between layers.
        output: What the model applies to its logits: a key of `network.OUTPUTS`.
        init: Changes of PyG's initial weights, in order: keys of `network.INITS`, each with its argument.
        frozen: Shell pattern of parameters with ``requires_grad=False``.

        precision: Of the parameters and inputs: a key of `training.PRECISIONS`.

        optimizer: SGD, momentum (SGD with 0.9), heavy momentum (0.999), Nesterov (0.9 of Nesterov's), Adam, AdamW or
            RMSprop.
        lr: Learning rate.
        eps: Of Adam; 0: its default.
        decay: Weight decay, as the optimizer defines it.
        schedule: A key of `training.SCHEDULES`.
        clip: Maximum gradient norm; 0: no clipping.
        batch: Number of examples (nodes, graphs, links) per step; 0: all.
        accumulates: Number of backward passes for each step, whose gradients are added up.
        steps: Number of steps.
        optimizes: Which parameters the optimizer gets: a key of `training.OPTIMIZED`.
        clears: Whether gradients are cleared before each backward pass.
        loss: What is minimized: a key of `training.LOSSES`.
        disturb: What happens between backward pass and optimizer step: a key of `training.DISTURBANCES`, or "".
        between: What happens to the weights between steps: a key of `training.BETWEEN`, or "".
        loop: ``usual``, ``no step`` (the optimizer is never called) or ``new optimizer`` (one for each step).
        resumed: Whether recording stops halfway and is resumed.
        seed: Of the graph, the weights, the batches and dropout.
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
    edges: str = "true"
    data: str = ""

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
    precision: str = "single"

    optimizer: Literal["SGD", "momentum", "heavy momentum", "Nesterov", "Adam", "AdamW", "RMSprop"] = "Adam"
    lr: float = 0.01
    eps: float = 0.0
    decay: float = 0.0
    schedule: str = "constant"
    clip: float = 0.0
    batch: int = 0
    accumulates: int = 1
    steps: int = 100
    optimizes: str = "all"
    clears: bool = True
    loss: str = "usual"
    disturb: str = ""
    between: str = ""
    loop: Literal["usual", "no step", "new optimizer"] = "usual"
    resumed: bool = False
    seed: int = 0

    def changes(self, other: "Recipe") -> dict[str, Any]:
        """The settings in which another recipe differs, with its values."""
        own = asdict(self)
        return {name: value for name, value in asdict(other).items() if value != own[name]}
