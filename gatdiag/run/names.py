"""What the positions in the streams stand for."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gatdiag.errors import InputError
from gatdiag.quantities import TableName
from gatdiag.run import meta
from gatdiag.run.schema import ROLES

Positions = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True)
class Names:
    """The names in meta.json, and which belongs to which; -1 where there is none.

    Attributes:
        layers: Names of the layers.
        parameters: Names of the parameters.
        roles: The roles that parameters can have.
        layer_of_parameter: For each parameter, the position of its layer.
        role_of_parameter: For each parameter, the position of its role.
        layer_of_law: For each law, the position of its layer.
        neuron_of_law: For each law, the index of its neuron.
    """

    layers: tuple[str, ...]
    parameters: tuple[str, ...]
    roles: tuple[str, ...]
    layer_of_parameter: Positions
    role_of_parameter: Positions
    layer_of_law: Positions
    neuron_of_law: Positions

    @classmethod
    def of(cls, contents: meta.Meta) -> "Names":
        """The names in checked meta data."""
        layers = meta.layer_names(contents)
        held = [
            (at, p["role"]) for at, layer in enumerate(contents["structure"]["layers"]) for p in layer["parameters"]
        ]
        roles = tuple(dict.fromkeys([*ROLES, *(role for _, role in held)]))
        at: dict[str | None, int] = {name: position for position, name in enumerate(layers)}
        laws = _laws(contents)
        return cls(
            layers=layers,
            parameters=meta.parameter_names(contents),
            roles=roles,
            layer_of_parameter=_positions([layer for layer, _ in held]),
            role_of_parameter=_positions([roles.index(role) for _, role in held]),
            layer_of_law=_positions([at.get(layer, -1) for layer, _ in laws]),
            neuron_of_law=_positions([-1 if neuron is None else neuron for _, neuron in laws]),
        )

    def count(self, table: TableName) -> int:
        """How many positions the rows of a table may name."""
        return {"layers": len(self.layers), "parameters": len(self.parameters)}.get(table, len(self.layer_of_law))


def _positions(values: list[int]) -> Positions:
    return np.array(values, dtype=np.int32)


def check_growth(before: meta.Meta, after: meta.Meta) -> None:
    """Sees to it that positions in rows already recorded keep their meaning.

    Raises:
        InputError: A layer, parameter or law would change its place; more may be added at the end.
    """
    lists = {"layers": meta.layer_names, "parameters": meta.parameter_names, "laws": _laws}
    for what, of in lists.items():
        old, new = of(before), of(after)
        if new[: len(old)] != old:
            raise InputError(f"The {what} of a run cannot change once rows are recorded; more may be added at the end")


def _laws(contents: meta.Meta) -> tuple[tuple[str | None, int | None], ...]:
    return tuple(
        (entry["layer"], None if entry["neuron"] is None else entry["neuron"] + number)
        for entry in contents["laws"]["found"]
        for number in range(entry.get("count", 1))
    )
