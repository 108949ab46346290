"""A glance at a training, for whoever shows it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from gatdiag.recorder.backlog import Backlog
from gatdiag.recorder.non_finite import FirstNonFinite
from gatdiag.recorder.writer import Writer
from gatdiag.structure import Layer

SHOWN: Final = 0.1  # seconds after which an observer sees a step


@dataclass(frozen=True)
class Status:
    """A glance at a training, for whoever shows it.

    Attributes:
        step: The last recorded step.
        scalars: What was logged last.
        layers: Names of the recorded layers.
        relative_gradient_norms: Largest among each layer's feature weights, or of all it has; NaN where there is none.
        first_non_finite: Where the first NaN or infinity was, if there was one.
    """

    step: int
    scalars: Mapping[str, float]
    layers: tuple[str, ...]
    relative_gradient_norms: tuple[float, ...]
    first_non_finite: FirstNonFinite | None


Observer: TypeAlias = Callable[[Status | None], None]  # None: the recording has ended


def statuses(backlog: Backlog, writer: Writer) -> Iterator[Status]:
    """One of each step that was measured last."""
    layers = backlog.plan.layers
    names = tuple(layer.name for layer in layers)
    for step, gradients in backlog.latest.items():
        largest = _largest_of_layers(gradients, layers)
        yield Status(step, writer.latest, names, largest, writer.first_non_finite)


def _largest_of_layers(values: Sequence[float], layers: Sequence[Layer]) -> tuple[float, ...]:
    """The largest among each layer's feature weights, or else of all it has; NaN where there is none."""
    each, found = iter(values), []
    for layer in layers:
        of = [(info.role == "feature weight", next(each)) for info in layer.parameters]
        known = [(math.isfinite(value), is_weight, value) for is_weight, value in of if not math.isnan(value)]
        found.append(max(known, default=(False, False, math.nan))[-1])
    return tuple(found)
