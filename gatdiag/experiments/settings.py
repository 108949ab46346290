"""The settings of an experiment, without torch."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

from gatdiag.errors import InputError

Model: TypeAlias = Literal[
    "gat", "gatv2", "omega-gat", "gcn", "sgc", "sage", "gin", "transformer", "mlp", "deep-gat", "deep-gt"
]
Activation: TypeAlias = Literal["relu", "elu"]
Norm: TypeAlias = Literal["none", "pairnorm", "pairnorm-si", "layernorm", "batchnorm"]

_WITH_HEADS: Final = ("gat", "gatv2", "omega-gat", "transformer", "deep-gat", "deep-gt")
_WITH_TWO_WEIGHTS: Final = ("gatv2", "omega-gat")
_DEEP: Final = ("deep-gat", "deep-gt")


@dataclass(frozen=True)
class Network:
    """A graph neural network; the defaults are those of "Are GATs Out of Balance?".

    Raises:
        InputError: A value is not one of those that are known, or does not go with the model.
    """

    model: Annotated[Model, "Kind of layer. gat is GATv1; deep-gat and deep-gt have two linear layers besides."] = (
        "gatv2"
    )
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
        _check_choices(self)
        for name, least in (("layers", 1), ("width", 1), ("heads", 1)):
            if getattr(self, name) < least:
                raise InputError(f"Expected {name} to be {least} or more, got {getattr(self, name)}")
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


def choices(settings: type) -> dict[str, tuple[str, ...]]:
    """Name of a field -> the values it may have, if they are counted.

    Example:
        >>> choices(Network)["activation"]
        ('relu', 'elu')
    """
    hints = get_type_hints(settings)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def _check_choices(settings: Any) -> None:
    known = choices(type(settings))
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.name in known and value not in known[one.name]:
            raise InputError(f"Expected {one.name} to be one of {', '.join(known[one.name])}, got {value!r}")
