"""All cases: which fault is planted in which training."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gatdiag.diagnosis import HEALTHY
from tests.bank.calibration import CALIBRATION
from tests.bank.held_out import HELD_OUT
from tests.bank.recipe import Recipe

_HELD_OUT: Final = 100  # the first number


@dataclass(frozen=True)
class Case:
    """A training with a planted fault, and the same training without it.

    Attributes:
        cause: Code of the finding that is right; "healthy" for a control.
        number: Position among the cases of its cause, also the seed of the recipes.
        faulty: The training that is diagnosed; for a control, the healthy one.
        repaired: The twin, which has to train clearly better; None for a control.
    """

    cause: str
    number: int
    faulty: Recipe
    repaired: Recipe | None

    @property
    def name(self) -> str:
        """Such as ``lr-too-large-03``."""
        return f"{self.cause}-{self.number:02}"

    @property
    def is_held_out(self) -> bool:
        """Whether it is a row of `HELD_OUT`."""
        return self.number >= _HELD_OUT


def _cases() -> Iterator[Case]:
    for cause in CALIBRATION:
        for number, (plant, usual) in [*enumerate(CALIBRATION[cause]), *enumerate(HELD_OUT[cause], _HELD_OUT)]:
            repaired = Recipe(**usual, seed=number)
            yield Case(cause, number, replace(repaired, **plant), None if cause == HEALTHY else repaired)


CAUSES: Final = tuple(CALIBRATION)
"""The planted causes in the order of the bank, "healthy" last."""

BANK: Final[Mapping[str, Case]] = {case.name: case for case in _cases()}
"""Name -> case, in the order of causes; numbers of held-out cases start at 100."""
