"""Sums over rows, columns and entries of parameters: all that delta and c need of them.

A weight's exponents are (row) - (column), so sum_k e_k T_k over its entries needs only the row sums and the column
sums of T. Parameters of one shape are stacked and summed together: the number of kernels depends on how many shapes
there are, not on how many layers or neurons.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Marginal:
    """The sums of one parameter over all axes but some.

    Attributes:
        parameter: Name of the parameter.
        shape: Its shape.
        axes: The axes that are kept: (0,) gives row sums, (1,) column sums, all axes the entries themselves.
    """

    parameter: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """Lengths of the kept axes."""
        return tuple(self.shape[axis] for axis in self.axes)

    @property
    def size(self) -> int:
        """How many sums there are."""
        return math.prod(self.kept)

    def position(self, index: tuple[int, ...]) -> int:
        """Where the sum at an index along the kept axes stands among them."""
        place = 0
        for along, length in zip(index, self.kept, strict=True):
            place = place * length + along
        return place


@dataclass(frozen=True)
class _Group:
    names: tuple[str, ...]
    shape: tuple[int, ...]
    patterns: tuple[tuple[int, ...], ...]


class Sums:
    """The vector of all sums that a set of laws needs, laid out once, computed in a few kernels.

    A complex entry counts as two real ones, as it does for torch's gradients and optimizers.

    Args:
        marginals: The sums wanted.
        templates: The parameters, for shape, device and type.
    """

    def __init__(self, marginals: Iterable[Marginal], templates: Mapping[str, Tensor]) -> None:
        """Lay out the sums."""
        patterns: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        for marginal in marginals:
            patterns[marginal.parameter].add(marginal.axes)
        alike: dict[tuple[object, ...], list[str]] = defaultdict(list)
        for name in patterns:
            tensor = templates[name]
            alike[tuple(tensor.shape), tensor.dtype, tensor.device].append(name)
        self._groups = [_group(names, templates, patterns) for names in alike.values()]
        self._templates = {name: templates[name] for name in patterns}
        self._starts: dict[tuple[str, tuple[int, ...]], int] = {}
        position = 0
        for group in self._groups:
            for axes in group.patterns:
                for name in group.names:
                    self._starts[name, axes] = position
                    position += math.prod(group.shape[axis] for axis in axes)

    def start(self, marginal: Marginal) -> int:
        """Where the sums of a marginal start in the vector."""
        return self._starts[marginal.parameter, marginal.axes]

    def __call__(self, *factors: Mapping[str, Tensor], absolute: bool = False) -> Tensor:
        """The vector of sums of the elementwise product of the factors, in float64.

        Args:
            factors: One or more tensors a parameter, by name; a name that is missing counts as zeros.
            absolute: Sum absolute values.
        """
        distinct = list({id(factor): factor for factor in factors}.values())
        places = [next(at for at, known in enumerate(distinct) if known is factor) for factor in factors]
        return self.products(distinct, [places], absolute=absolute)[0]

    def products(
        self, factors: Sequence[Mapping[str, Tensor]], wanted: Sequence[Sequence[int]], *, absolute: bool = False
    ) -> list[Tensor]:
        """Several such vectors, sharing what they have in common.

        Args:
            factors: Tensors by name, as above.
            wanted: For each vector, the positions of its factors.
            absolute: Sum absolute values.
        """
        pieces: list[list[Tensor]] = [[] for _ in wanted]
        for group in self._groups:
            stacked = [self._stacked(group, factor) for factor in factors]
            for number, positions in enumerate(wanted):
                product = stacked[positions[0]]
                for position in positions[1:]:
                    product = product * stacked[position]
                product = product.abs() if absolute else product
                for axes in group.patterns:
                    gone = [axis + 1 for axis in range(product.ndim - 1) if axis not in axes]
                    pieces[number].append((product.sum(gone) if gone else product).flatten())
        return [_joined(found) for found in pieces]

    def _stacked(self, group: _Group, factor: Mapping[str, Tensor]) -> Tensor:
        tensors: Sequence[Tensor] = [
            factor[name].detach() if name in factor else torch.zeros_like(self._templates[name]) for name in group.names
        ]
        tensors = [tensor.to_dense() if tensor.is_sparse else tensor for tensor in tensors]
        stacked = tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))
        return (torch.view_as_real(stacked) if stacked.is_complex() else stacked).to(torch.float64)


def _joined(pieces: list[Tensor]) -> Tensor:
    if not pieces:
        return torch.zeros(0, dtype=torch.float64)
    device = pieces[0].device
    return torch.cat([piece if piece.device == device else piece.to(device) for piece in pieces])


def _group(
    names: Sequence[str], templates: Mapping[str, Tensor], patterns: Mapping[str, set[tuple[int, ...]]]
) -> _Group:
    wanted = {axes for name in names for axes in patterns[name]}
    return _Group(tuple(names), tuple(templates[names[0]].shape), tuple(sorted(wanted)))
