"""Where training is, for whoever shows it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gatdiag.recorder.first_bad import FirstNonFinite


@dataclass(frozen=True)
class Status:
    """A glance at a training.

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
