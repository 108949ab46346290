"""The structure of a model: its layers in order, and the role of every parameter."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from gatdiag.roles import ROOT, Role

Order: TypeAlias = Literal["execution", "module"]


@dataclass(frozen=True)
class ParameterInfo:
    """A parameter of the model.

    Attributes:
        name: Its name in `named_parameters()`.
        names: All its names; more than one if it is shared, or its module is registered twice.
        role: Its role in the layer.
        shape: Its shape.
        trainable: Whether it requires a gradient.
        module: Path of the module that owns it ("convs.0.lin_l"), without parametrizations.
    """

    name: str
    names: tuple[str, ...]
    role: Role
    shape: tuple[int, ...]
    trainable: bool
    module: str


@dataclass(frozen=True, repr=False)
class Layer:
    """A layer: a convolution with its submodules, or any other module that has parameters of its own.

    Attributes:
        index: Position in the structure, from 1.
        name: Path of the module; `Structure.ROOT` for the model itself.
        kind: Name of the library class ("GATv2Conv", also for a user's subclass of it), else of its own class.
        parameters: In module order. Empty if it only propagates (APPNP), or shares all parameters with earlier layers.
        executed: Whether the forward pass used it; None if there was no forward pass.
    """

    index: int
    name: str
    kind: str
    parameters: tuple[ParameterInfo, ...]
    executed: bool | None

    def __repr__(self) -> str:
        """For example ``Layer('convs.0', GATv2Conv, 3 parameters)``."""
        count = len(self.parameters)
        return f"Layer({self.name!r}, {self.kind}, {count} parameter{'s' * (count != 1)})"


@dataclass(frozen=True, repr=False)
class Structure:
    """The layers of a model in order, as a sequence: `structure[0]` is the first.

    Attributes:
        layers: Every layer once. A parameter is in exactly one of them.
        order: "execution" for the order of first use in a forward pass, unused layers last; "module" for the order of
            `named_modules()`, where no inputs were given.
    """

    ROOT: ClassVar[str] = ROOT

    layers: tuple[Layer, ...]
    order: Order

    def __iter__(self) -> Iterator[Layer]:
        """The layers in order."""
        return iter(self.layers)

    def __len__(self) -> int:
        """The number of layers."""
        return len(self.layers)

    def __getitem__(self, position: int) -> Layer:
        """The layer at a position, counted from 0."""
        return self.layers[position]

    def __repr__(self) -> str:
        """For example ``Structure(10 layers in execution order)``."""
        return f"Structure({len(self)} layer{'s' * (len(self) != 1)} in {self.order} order)"

    def __str__(self) -> str:
        """One line per layer, and one per parameter with its role."""
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
