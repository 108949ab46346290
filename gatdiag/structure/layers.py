"""Structure of a model: layers in order, and the role of every parameter."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar, Literal, TypeAlias, TypeVar

from gatdiag.errors import InputError
from gatdiag.roles import Role

T = TypeVar("T")
Order: TypeAlias = Literal["execution", "module"]


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter tensor of the model.

    Attributes:
        name: As `named_parameters()` gives it: the first of its names.
        names: All its names; more than one where it is tied or its module is used twice.
        role: What it does in its layer.
        shape: Its shape.
        trainable: Whether it asks for a gradient.
        module: Path of the module that holds it ("convs.0.lin_l"), parametrizations looked through.
    """

    name: str
    names: tuple[str, ...]
    role: Role
    shape: tuple[int, ...]
    trainable: bool
    module: str


@dataclass(frozen=True)
class Layer:
    """One layer: a convolution with all that is inside it, or any other module that has parameters of its own.

    Attributes:
        index: Position in the structure, from 1.
        name: Path of the module, `Structure.ROOT` for the model itself.
        kind: Class it was recognized as ("GATv2Conv", also for a subclass of the user's), or else its own class.
        parameters: In module order. Empty for a layer that only propagates (APPNP), and for one all of whose
            parameters are tied to an earlier layer's.
        executed: Whether the forward pass used it; None if none was run.
    """

    index: int
    name: str
    kind: str
    parameters: tuple[ParameterInfo, ...]
    executed: bool | None


@dataclass(frozen=True)
class Structure:
    """The layers of a model. Iterating gives them in order, `structure[0]` is the first.

    Attributes:
        layers: Every layer once. A parameter is in exactly one of them.
        order: "execution": by first use in a forward pass, what was never used last; "module": as the model lists its
            modules, because no inputs were given.
    """

    ROOT: ClassVar[str] = "(root)"

    layers: tuple[Layer, ...]
    order: Order

    def __iter__(self) -> Iterator[Layer]:
        """Yields the layers in order."""
        return iter(self.layers)

    def __len__(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    def __getitem__(self, position: int) -> Layer:
        """The layer at a position counted from 0, as in a tuple."""
        return self.layers[position]

    def __str__(self) -> str:
        """One line a layer and one a parameter, with its role."""
        lines = [f"{len(self)} layers in {self.order} order"]
        for layer in self:
            unused = "" if layer.executed in (True, None) else ", never executed"
            lines.append(f"{layer.index} {layer.name}: {layer.kind}{unused}")
            lines += [f"    {' = '.join(info.names)} {list(info.shape)}: {info.role}" for info in layer.parameters]
        return "\n".join(lines)

    @property
    def parameters(self) -> tuple[ParameterInfo, ...]:
        """Every parameter once, layer by layer."""
        return tuple(info for layer in self.layers for info in layer.parameters)

    def layer(self, name: str) -> Layer:
        """The layer of that name.

        Raises:
            InputError: There is none.
        """
        return _find({layer.name: layer for layer in self.layers}, name, "layer")

    def parameter(self, name: str) -> ParameterInfo:
        """The parameter that goes by that name, be it the first or another of its names.

        Raises:
            InputError: There is none.
        """
        return _find({known: info for info in self.parameters for known in info.names}, name, "parameter")

    def layer_of(self, name: str) -> Layer:
        """The layer that a parameter, given by any of its names, belongs to.

        Raises:
            InputError: There is no such parameter.
        """
        held = ((layer, info) for layer in self.layers for info in layer.parameters)
        return _find({known: layer for layer, info in held for known in info.names}, name, "parameter")


def _find(known: dict[str, T], name: str, what: str) -> T:
    if name in known:
        return known[name]
    similar = get_close_matches(name, known, n=3) or list(known)[:3]
    raise InputError(f"Expected the name of a {what}, got {name!r}. Names of this model are, among others: {similar}.")
