"""The settings of an experiment, from which the options of `gatdiag train` come. Without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

from gatdiag.errors import InputError

Model: TypeAlias = Literal[
    "gat", "gatv2", "omega-gat", "gcn", "sgc", "sage", "gin", "ggnn", "transformer", "mlp", "deep-gat", "deep-gt"
]
Activation: TypeAlias = Literal["relu", "elu", "none"]
Norm: TypeAlias = Literal["none", "pairnorm", "pairnorm-si", "layernorm", "batchnorm"]
Optimizer: TypeAlias = Literal["SGD", "Adam"]
Device: TypeAlias = Literal["cpu", "cuda"]
Lipschitz: TypeAlias = Literal["none", "paper", "code"]
Schedule: TypeAlias = Literal["constant", "plateau"]

_WITH_HEADS: Final = ("gat", "gatv2", "omega-gat", "transformer", "deep-gat", "deep-gt")
_WITH_TWO_WEIGHTS: Final = ("gatv2", "omega-gat")
_DEEP: Final = ("deep-gat", "deep-gt")
_OF_TREES: Final = ("gcn", "gat", "gin", "ggnn")
_PLANETOID: Final = ("cora", "citeseer", "pubmed")


@dataclass(frozen=True)
class Network:
    """A graph neural network; the defaults are those of "Are GATs Out of Balance?".

    Raises:
        InputError: A value is not one of those that are known, or does not go with the model.
    """

    model: Annotated[
        Model, "Kind of layer. gat is GATv1; deep-gat, deep-gt have two linear layers besides; ggnn is for --trees."
    ] = "gatv2"
    layers: Annotated[int, "Number of convolutions; of sgc, of hops."] = 10
    width: Annotated[int, "Of the hidden layers, for each head."] = 64
    heads: Annotated[int, "Concatenated; the last layer has one."] = 1
    share_weights: Annotated[bool, "One weight for both ends of an edge (gatv2, omega-gat)."] = True
    bias: Annotated[bool, "Biases in the convolutions."] = False
    activation: Annotated[Activation, "After all convolutions but the last."] = "relu"
    dropout: Annotated[float, "Of features, between convolutions."] = 0.0
    attention_dropout: Annotated[float, "Of attention coefficients."] = 0.0
    residual: Annotated[bool, "An identity skip around each convolution between the first and the last."] = False
    norm: Annotated[Norm, "After each convolution but the last; of deep-gat and deep-gt, after each activation."] = (
        "none"
    )

    def __post_init__(self) -> None:
        """Refuses what no network has."""
        check_choices(self)
        for name in ("layers", "width", "heads"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} to be 1 or more, got {getattr(self, name)}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"Expected {name} to be from 0 to less than 1, got {getattr(self, name)}")
        unfit = (
            ("heads", self.heads > 1, _WITH_HEADS),
            ("attention_dropout", self.attention_dropout > 0, _WITH_HEADS),
            ("share_weights", not self.share_weights, _WITH_TWO_WEIGHTS),
            ("residual", self.residual, tuple(one for one in get_args(Model) if one not in (*_DEEP, "sgc"))),
            ("norm", self.norm != "none", tuple(one for one in get_args(Model) if one != "sgc")),
        )
        for name, is_set, models in unfit:
            if is_set and self.model not in models:
                raise InputError(
                    f"{name} is of {', '.join(models)}; got {name}={getattr(self, name)} with {self.model}"
                )


@dataclass(frozen=True)
class Experiment(Network):
    """One training: on which graph, of which network, from which weights, and how.

    The defaults are the protocol of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023): gradient
    descent on all training nodes at a rate for the graph and the depth, at most 5000 epochs, until the loss is below
    1e-4; the result is the test accuracy at the first epoch of the highest validation accuracy. Its heterophilic graphs
    are those called ``.npz`` (`gatdiag.experiments.data`), its CiteSeer is ``CiteSeer:isolated=unmasked``.

    Raises:
        InputError: A value is not one of those that are known, or does not go with the model.
    """

    data: Annotated[str, "Graph to train on."] = "Cora"
    transform: Annotated[
        str, "Of the features: normalize-features, none, or usual: rows of Cora, CiteSeer and PubMed sum to one."
    ] = "usual"
    initialization: Annotated[
        str, "Scheme of gatdiag.remedies.initialize_, as xavier, balanced_orthogonal; default: as PyG's layers begin."
    ] = "xavier"
    lipschitz: Annotated[Lipschitz, "Divide attention scores (LipschitzNorm), as in the paper or in its code."] = "none"
    weight_norm: Annotated[float, "Norm at which each weight matrix is kept (c W / ||W||); 0: none."] = 0.0
    optimizer: Annotated[Optimizer, "SGD is gradient descent without momentum."] = "SGD"
    learning_rate: Annotated[float, "0: the one of the paper for the graph, the optimizer and the depth."] = 0.0
    weight_decay: Annotated[float, "As the optimizer defines it."] = 0.0
    schedule: Annotated[
        Schedule, "Of the rate. plateau: a tenth once the validation loss stalls; of --trees, half, their accuracy."
    ] = "constant"
    trees: Annotated[int, "In a step, with the network of Alon & Yahav (tree:depth=R); 0: one step on all nodes."] = 0
    passes: Annotated[int, "Over the trees in an epoch."] = 1
    epochs: Annotated[int, "At most so many; each is one step on all training nodes."] = 5000
    stop_below: Annotated[float, "Training ends once the loss is less."] = 1e-4
    seed: Annotated[int, "Of the weights and of dropout; from 0 to 2**63 - 1."] = 0
    device: Annotated[Device, "Where to train."] = "cpu"

    def __post_init__(self) -> None:
        """Refuses what cannot be trained."""
        super().__post_init__()
        if self.transform not in ("usual", "normalize-features", "none"):
            raise InputError(f"Expected transform to be usual, normalize-features or none, got {self.transform!r}")
        self._check_trees()
        for name in ("learning_rate", "weight_norm", "weight_decay", "stop_below"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"Expected {name} to be 0 or more and finite, got {getattr(self, name)}")
        if self.epochs < 1:
            raise InputError(f"Expected epochs to be 1 or more, got {self.epochs}")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"Expected seed to be from 0 to 2**63 - 1, got {self.seed}")

    def _check_trees(self) -> None:
        if self.trees < 0 or self.passes < 1 or (self.passes > 1 and not self.trees):
            raise InputError(f"Expected trees, if any, and passes over them, got {self.trees=}, {self.passes=}")
        if self.trees and not (self.data.partition(":")[0].lower() == "tree" and self.model in _OF_TREES):
            known = ", ".join(_OF_TREES)
            raise InputError(f"trees are of the graph tree and of {known}, got {self.data} with {self.model}")

    @property
    def has_modes(self) -> bool:
        """True if the network computes in training what it does not in evaluation."""
        return self.dropout > 0 or self.attention_dropout > 0 or self.norm == "batchnorm"

    @property
    def rate(self) -> float:
        """The learning rate: as given, or the paper's."""
        return self.learning_rate or papers_learning_rate(self.data, self.optimizer, self.layers)

    @property
    def resolved(self) -> "Experiment":
        """The same with its rate as the learning rate: experiments of which this is equal train alike."""
        return replace(self, learning_rate=self.rate)

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings that are not the defaults."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}

    def fits(self, where: Mapping[str, Any]) -> bool:
        """It has these settings; the others may be anything."""
        return all(getattr(self, name) == value for name, value in where.items())


def papers_learning_rate(data: str, optimizer: Optimizer, layers: int) -> float:
    """The learning rate of "Are GATs Out of Balance?" for a graph, an optimizer and a depth.

    Depths between those of the paper (2, 5, 10, 20, 40) have that of the next deeper one. The paper has no Adam on
    heterophilic graphs; there it is that of Cora. On the built-in graphs it is 0.01, as in `gatdiag demo`.

    Example:
        >>> papers_learning_rate("Cora", "SGD", 10), papers_learning_rate("texas.npz", "SGD", 40)
        (0.05, 0.0005)
    """
    name = data.partition(":")[0].lower()
    if name in ("sbm", "csbm", "tree"):
        return 0.01
    if optimizer == "Adam":
        return (0.01 if name == "pubmed" else 0.005) / (1 if layers <= 5 else 10)
    rates = (0.1, 0.05, 0.05, 0.005) if name in _PLANETOID else (0.05, 0.01, 0.005, 0.0005)
    return rates[sum(layers > depth for depth in (5, 10, 20))]


def demonstration(data: str) -> tuple[float, int]:
    """Learning rate of gradient descent and number of steps that tell whether ten layers train on a graph at all.

    The rate is that of the figures of "Are GATs Out of Balance?" on the citation graphs, 0.1, and of its table on the
    heterophilic ones, 0.01. The built-in graph, whose features are larger, has 0.01.

    Example:
        >>> demonstration("Cora"), demonstration("sbm")
        ((0.1, 300), (0.01, 200))
    """
    name = data.partition(":")[0].lower()
    return 0.1 if name in _PLANETOID else 0.01, 200 if name == "sbm" else 300


@cache
def choices(settings: type) -> Mapping[str, tuple[str, ...]]:
    """Name of a field -> the values it may have, if they are counted.

    Example:
        >>> choices(Experiment)["optimizer"]
        ('SGD', 'Adam')
    """
    hints = get_type_hints(settings)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def check_choices(settings: Any) -> None:
    """Raises InputError where a field has none of the values that it may have."""
    known = choices(settings.__class__)
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.name in known and value not in known[one.name]:
            raise InputError(f"Expected {one.name} to be one of {', '.join(known[one.name])}, got {value!r}")
