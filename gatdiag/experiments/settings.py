"""Settings of an experiment, which are also the options of `gatdiag train`. Does not import torch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

from gatdiag.errors import InputError

Model: TypeAlias = Literal[
    "gat", "gatv2", "omega-gat", "gcn", "sgc", "sage", "gin", "transformer", "mlp", "deep-gat", "deep-gt"
]
Activation: TypeAlias = Literal["relu", "elu", "none"]
Norm: TypeAlias = Literal["none", "pairnorm", "pairnorm-si", "layernorm", "batchnorm"]
Optimizer: TypeAlias = Literal["SGD", "Adam"]
Device: TypeAlias = Literal["cpu", "cuda"]
Lipschitz: TypeAlias = Literal["none", "paper"]
Schedule: TypeAlias = Literal["constant", "plateau"]

_ATTENTION_MODELS: Final = ("gat", "gatv2", "omega-gat", "transformer", "deep-gat", "deep-gt")
_SHARING_MODELS: Final = ("gatv2", "omega-gat")
_DEEP_MODELS: Final = ("deep-gat", "deep-gt")
_PLANETOID: Final = ("cora", "citeseer", "pubmed")

OPTIONS: Final[Mapping[str, str]] = {"learning_rate": "lr", "width": "hidden"}
"""Setting -> its option on the command line, if that has another name."""


@dataclass(frozen=True)
class Network:
    """A graph neural network; the defaults are those of "Are GATs Out of Balance?".

    Raises:
        InputError: A value is invalid, or not supported by the model.
    """

    model: Annotated[Model, "Layer type. gat is GATv1; deep-gat and deep-gt have two extra linear layers."] = "gatv2"
    layers: Annotated[int, "Number of convolutions, or of hops for sgc."] = 10
    width: Annotated[int, "Hidden channels, per head."] = 64
    heads: Annotated[int, "Attention heads, which are concatenated; the last layer has one."] = 1
    share_weights: Annotated[bool, "Use one weight for both ends of an edge (gatv2, omega-gat)."] = True
    bias: Annotated[bool, "Add biases to the convolutions."] = False
    activation: Annotated[Activation, "Activation after each convolution but the last."] = "relu"
    dropout: Annotated[float, "Dropout of features between convolutions."] = 0.0
    attention_dropout: Annotated[float, "Dropout of attention coefficients."] = 0.0
    residual: Annotated[bool, "Add an identity skip around each convolution but the first and the last."] = False
    norm: Annotated[
        Norm, "Normalization after each convolution but the last, or after each activation (deep-gat, deep-gt)."
    ] = "none"

    def __post_init__(self) -> None:
        """Check the settings."""
        check_choices(self)
        for words, number in (("layers", self.layers), ("hidden channels", self.width), ("heads", self.heads)):
            if number < 1:
                raise InputError(f"Expected 1 or more {words}, got {number}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"Expected {_words(name)} to be in [0, 1), got {getattr(self, name)}")
        requirements = (
            ("heads", self.heads > 1, _ATTENTION_MODELS),
            ("attention_dropout", self.attention_dropout > 0, _ATTENTION_MODELS),
            ("share_weights", not self.share_weights, _SHARING_MODELS),
            ("residual", self.residual, tuple(one for one in get_args(Model) if one not in (*_DEEP_MODELS, "sgc"))),
            ("norm", self.norm != "none", tuple(one for one in get_args(Model) if one != "sgc")),
        )
        for name, is_set, models in requirements:
            if is_set and self.model not in models:
                given = f"{_words(name)}={getattr(self, name)}"
                raise InputError(f"{given} expects model to be one of {', '.join(models)}, got {self.model}")


@dataclass(frozen=True)
class Experiment(Network):
    """One training: graph, network, initialization, remedies and optimization.

    The defaults are the protocol of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023):
    full-batch gradient descent at a learning rate for the graph and the depth, for at most 5000 epochs, until the loss
    is below 1e-4; the result is the test accuracy at the first epoch with the highest validation accuracy. The paper's
    heterophilic graphs are those called ``.npz`` (`gatdiag.experiments.data`), its CiteSeer is
    ``CiteSeer:isolated=unmasked``.

    Raises:
        InputError: A value is invalid, or not supported by the model.
    """

    data: Annotated[str, "Graph to train on."] = "Cora"
    transform: Annotated[
        str, "Feature transform: normalize-features, none, or usual (normalize-features for Cora, CiteSeer, PubMed)."
    ] = "usual"
    initialization: Annotated[
        str, "Scheme of gatdiag.remedies.initialize_, such as balanced_orthogonal, or default for that of PyG's layers."
    ] = "xavier"
    lipschitz: Annotated[Lipschitz, "paper: apply LipschitzNorm to attention scores."] = "none"
    weight_norm: Annotated[float, "Norm c to which each weight matrix is scaled, c W / ||W||; 0: off."] = 0.0
    optimizer: Annotated[Optimizer, "Optimizer; SGD has no momentum."] = "SGD"
    learning_rate: Annotated[float, "Learning rate; 0: that of the paper for the graph, optimizer and depth."] = 0.0
    weight_decay: Annotated[float, "Weight decay of the optimizer."] = 0.0
    schedule: Annotated[Schedule, "plateau: divide the rate by 10 when validation loss stalls."] = "constant"
    epochs: Annotated[int, "Maximum number of epochs; an epoch is one step on all training nodes."] = 5000
    stop_below: Annotated[float, "Stop once the loss is below this."] = 1e-4
    seed: Annotated[int, "Random seed of weights and dropout, from 0 to 2**63 - 1."] = 0
    device: Annotated[Device, "Device to train on."] = "cpu"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if self.transform not in ("usual", "normalize-features", "none"):
            raise InputError(f"Expected transform to be usual, normalize-features or none, got {self.transform!r}")
        for name in ("learning_rate", "weight_norm", "weight_decay", "stop_below"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"Expected {_words(name)} to be 0 or more and finite, got {getattr(self, name)}")
        if self.epochs < 1:
            raise InputError(f"Expected epochs to be 1 or more, got {self.epochs}")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"Expected seed to be from 0 to 2**63 - 1, got {self.seed}")

    @property
    def has_modes(self) -> bool:
        """True if the forward pass differs between training and evaluation mode."""
        return self.dropout > 0 or self.attention_dropout > 0 or self.norm == "batchnorm"

    @property
    def rate(self) -> float:
        """The learning rate; that of the paper if `learning_rate` is 0."""
        return self.learning_rate or paper_learning_rate(self.data, self.optimizer, self.layers)

    @property
    def resolved(self) -> "Experiment":
        """The experiment with an explicit learning rate; trainings are equal if this is."""
        return replace(self, learning_rate=self.rate)

    @property
    def non_defaults(self) -> dict[str, Any]:
        """The settings that differ from the defaults."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}

    def change_(self, model: Any) -> None:
        """Change the initialized network in place: for subclasses, with settings of their own; nothing here."""


def _words(name: str) -> str:
    """The name of a setting in words, which fit `Experiment`, the options of a command and the file of a sweep."""
    return name.replace("_", " ")


def paper_learning_rate(data: str, optimizer: Optimizer, layers: int) -> float:
    """The learning rate of "Are GATs Out of Balance?" for a graph, an optimizer and a depth.

    Depths between those of the paper (2, 5, 10, 20, 40) have the rate of the next deeper one. For Adam on heterophilic
    graphs, which the paper does not train, it is that of Cora; for the built-in graphs 0.01, as in `gatdiag demo`.

    Example:
        >>> paper_learning_rate("Cora", "SGD", 10), paper_learning_rate("texas.npz", "SGD", 40)
        (0.05, 0.0005)
    """
    name = data.partition(":")[0].lower()
    if name in ("sbm", "csbm", "tree"):
        return 0.01
    if optimizer == "Adam":
        return (0.01 if name == "pubmed" else 0.005) / (1 if layers <= 5 else 10)
    rates = (0.1, 0.05, 0.05, 0.005) if name in _PLANETOID else (0.05, 0.01, 0.005, 0.0005)
    return rates[sum(layers > depth for depth in (5, 10, 20))]


def demo_settings(data: str) -> tuple[float, int]:
    """Learning rate of SGD and number of steps that show whether a network of ten layers trains on a graph.

    The rates of "Are GATs Out of Balance?": for citation graphs that of its figures, 0.1; for heterophilic ones that of
    its table, 0.01. The built-in graph, whose features are larger, has 0.01.

    Example:
        >>> demo_settings("Cora"), demo_settings("sbm")
        ((0.1, 300), (0.01, 200))
    """
    name = data.partition(":")[0].lower()
    return 0.1 if name in _PLANETOID else 0.01, 200 if name == "sbm" else 300


@cache
def choices(settings: type) -> Mapping[str, tuple[str, ...]]:
    """The possible values of each field that is a Literal.

    Example:
        >>> choices(Experiment)["optimizer"]
        ('SGD', 'Adam')
    """
    hints = get_type_hints(settings)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def check_choices(settings: Any) -> None:
    """Raise InputError if a Literal field has another value."""
    known = choices(settings.__class__)
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.name in known and value not in known[one.name]:
            raise InputError(f"Expected {one.name} to be one of {', '.join(known[one.name])}, got {value!r}")
