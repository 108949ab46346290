"""The laws of a model, one row a layer."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from gatdiag.laws import Exclusion, Law, Laws


@dataclass(frozen=True)
class Row:
    """What there is to say about one layer.

    Attributes:
        layer: Its module path.
        laws: How many laws are counted under it.
        approximate: How many of them hold only up to an epsilon in the model.
        normalized_c: Largest |normalized c|, in [0, 1]; 0 where every neuron is balanced. None without laws.
        residual: Largest residual of the numerical check. None without laws.
        missing: What of the layer has no law, and why.
        elsewhere: The layers whose laws its own parameters enter, if it has no law itself.
    """

    layer: str
    laws: int
    approximate: int
    normalized_c: float | None
    residual: float | None
    missing: tuple[Exclusion, ...]
    elsewhere: tuple[str, ...] = ()


def rows(laws: Laws, layers: Sequence[tuple[str, Sequence[str]]]) -> list[Row]:
    """One row for each layer, in order; then those that laws are counted under and that are no layers (a stream).

    Args:
        laws: The laws of a model.
        layers: Name of each layer with the names of its parameters.
    """
    numbers = laws.by_layer()
    names = [*dict.fromkeys([*(name for name, _ in layers), *numbers])]
    parameters = dict(layers)
    magnitude = laws.normalized_c().abs()
    return [_row(name, laws, numbers.get(name, []), magnitude, parameters.get(name, ())) for name in names]


def _row(name: str, laws: Laws, numbers: Sequence[int], magnitude: Tensor, parameters: Iterable[str]) -> Row:
    own = [laws[number] for number in numbers]
    return Row(
        layer=name,
        laws=len(own),
        approximate=sum(not law.exact for law in own),
        normalized_c=float(magnitude[list(numbers)].max()) if own else None,
        residual=max((law.residual for law in own), default=None),
        missing=tuple(exclusion for exclusion in laws.excluded if _mentions(exclusion, name)),
        elsewhere=() if own else _users(laws, set(parameters)),
    )


def _mentions(exclusion: Exclusion, layer: str) -> bool:
    """Whether the layer, or something inside it, is named as a word."""
    words = re.split(r"[\s(),\[\]]+", exclusion.what)
    return any(word == layer or word.startswith(f"{layer}.") for word in words)


def _users(laws: Iterable[Law], parameters: set[str]) -> tuple[str, ...]:
    using = [law.layer for law in laws if any(term.parameter in parameters for term in law.terms)]
    return tuple(dict.fromkeys(using))
