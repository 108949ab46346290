"""Examples that come again during a training, and whether the loss asks the same of them each time."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from gatdiag.recorder.data import telling_rows

_MAX_KEPT: Final = 20_000  # examples
_MAX_PAIRS: Final = 400
_PLAIN: Final = (bool, int, float, str, type(None))
_MAX_BYTES: Final = 16 << 20  # of what is given beside the rows


class Repeats:
    """Compares the targets of the same inputs in inspected steps.

    An example is the rows of all inputs at one place, with all else that the model is given, such as edges.
    """

    def __init__(self) -> None:
        self._examples: dict[int, tuple[int, list[tuple[int, int]]]] = {}  # batch -> rows, and place and key of some
        self._known: dict[int, float] = {}  # example -> what was asked of it at first
        self._pairs: list[tuple[float, float]] = []  # what was asked at first, and later
        self._are_classes: bool | None = None  # whether classes are asked for, or numbers

    def start_step(self) -> None:
        """Begin a step."""
        self._examples = {}

    def note_inputs(self, batch: int, inputs: Sequence[Tensor], others: Sequence[Any] = ()) -> None:
        """Note the examples of a batch.

        Args:
            batch: Its number.
            inputs: All tensors that the model is called with.
            others: What else it is called with; if that is not only numbers and words, nothing is noted.
        """
        given = [x for x in inputs if x.is_floating_point() and not x.requires_grad and x.dim() > 1 and x.numel()]
        is_known = all(type(other) in _PLAIN for other in others)  # of others, the class would be asked for
        found = telling_rows(given[0]) if given and is_known and len(self._pairs) < _MAX_PAIRS else None
        if found is None:
            return
        count = len(given[0])
        along = [x.detach() for x in inputs if x.dim() and len(x) == count]
        beside = [x.detach() for x in inputs if not x.dim() or len(x) != count]
        if sum(x.nbytes for x in beside) > _MAX_BYTES:
            return
        rows = [x[found.places.to(x.device)] for x in along]
        context, places = hash((*map(_bytes_of, beside), *map(repr, others))), found.places.tolist()
        keys = [hash((context, *(_bytes_of(x[n]) for x in rows))) for n in range(len(places))]
        if beside:  # nodes may have the same features, and other neighbors
            keys = [hash(pair) for pair in zip(keys, places, strict=True)]
        counts = Counter(keys)
        self._examples[batch] = count, [(n, key) for n, key in zip(places, keys, strict=True) if counts[key] == 1]

    def note_targets(self, batch: int, targets: Tensor, *, are_classes: bool) -> None:
        """Note what the loss asks of each row of a batch, NaN where that is not known."""
        if self._are_classes is None:
            self._are_classes = are_classes
        if self._are_classes is not are_classes:
            return
        rows, examples = self._examples.pop(batch, (0, []))
        if rows != len(targets):
            return
        for place, key in examples:
            asked = float(targets[place])
            if math.isnan(asked):
                continue
            if key in self._known:
                self._pairs.append((self._known[key], asked))
            elif len(self._known) < _MAX_KEPT:
                self._known[key] = asked

    def as_meta(self) -> dict[str, Any]:
        """What stands in meta.json: the number of "pairs", and their "agreement"."""
        return {"repeated_examples": {"pairs": len(self._pairs), "agreement": self._agreement()}}

    def _agreement(self) -> float | None:
        """1 if the same is asked each time, 0 if what is asked has nothing to do with it; None if that is not known.

        Of classes it is Cohen's kappa, of numbers their correlation.
        """
        one, other = np.array(self._pairs, float).reshape(-1, 2).T
        if not len(one) or np.ptp(one) == 0 or np.ptp(other) == 0:
            return None
        if not self._are_classes:
            return float(np.corrcoef(one, other)[0, 1])
        chance = sum(float((one == each).mean() * (other == each).mean()) for each in np.unique(one))
        return float(((one == other).mean() - chance) / (1 - chance))


def _bytes_of(x: Tensor) -> bytes:
    return x.cpu().resolve_conj().resolve_neg().flatten().contiguous().view(torch.uint8).numpy().tobytes()
