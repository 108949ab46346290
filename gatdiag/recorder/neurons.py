"""The laws of a model at recorded steps -> the columns of the table `neurons`: delta, c, and c as it was predicted."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.errors import OptimizerError
from gatdiag.laws import Law, Laws
from gatdiag.laws.laws import Observation
from gatdiag.recorder.weights import Flat, Weights

if TYPE_CHECKING:
    from gatdiag.recorder.backlog import Sample

_MOST_LAWS = 4096  # recorded at each recorded step; with more of them, at a fraction of the steps


class NeuronRecorder:
    """Follows the laws through training.

    predicted_c at step t is what was predicted at step t - 1 from the c measured there: if delta is zero and the
    optimizers did what they say, c - predicted_c is rounding. It needs no chain of predictions, so it can be recorded
    at any steps, if the one before is known to be followed by a recorded one. Each optimizer that takes part in a step
    is looked at just before it moves its weights.
    """

    def __init__(self, laws: Laws, wanted: Sequence[int], weights: Weights, every: int, *, predicts: bool) -> None:
        self.laws, self._wanted, self._weights = laws, np.array(wanted, dtype=np.int64), weights
        weights.take_also(laws.parameters[name] for name in laws.names)
        at = {id(tensor): position for position, tensor in enumerate(weights.flat.tensors)}
        self._at = {name: at[id(laws.parameters[name])] for name in laws.names}
        self.recorded: list[Law] = [laws[number] for number in wanted]
        self.unpredictable = ""
        self._every, self._predicts = every * max(1, math.ceil(len(wanted) / _MOST_LAWS)), predicts
        self._predicted: tuple[int, NDArray[np.float64]] | None = None  # the step it is for

    def is_due(self, record: int | None) -> bool:
        """True if laws are measured at this record."""
        return record is not None and record % self._every == 0

    def foresees(self, next_record: int | None) -> bool:
        """True if what a step makes of c is wanted, where the step after it will be this record."""
        return self._predicts and self.is_due(next_record)

    def foresee(self, sample: "Sample", optimizer: Optimizer) -> None:
        """How an optimizer of a step is about to move the weights, if that is wanted and known."""
        if sample.moves is None:
            return
        pieces, has_gradient = self._weights.flat.pieces(sample.gradients), sample.has_gradient.tolist()
        gradients = {name: pieces[position] for name, position in self._at.items() if has_gradient[position]}
        try:
            self.laws.add_updates(optimizer, gradients, sample.moves)
        except OptimizerError as error:
            sample.moves = None
            self.unpredictable = self.unpredictable or str(error)

    @torch.no_grad()
    def measure(self, samples: Sequence["Sample"]) -> tuple[list["Sample"], dict[str, Any]]:
        """The samples that have rows, and the columns of these: (samples, laws)."""
        chosen = [sample for sample in samples if self.is_due(sample.record) or sample.moves is not None]
        if not chosen:
            return [], {}
        pieces = [self._observe(some) for some in self._weights.flat.few(chosen)]
        delta, c, after = (torch.cat(values).cpu().numpy()[:, self._wanted] for values in zip(*pieces, strict=True))
        step, known = self._predicted or (None, after[0])
        foreseen = [step, *(None if sample.moves is None else sample.step + 1 for sample in chosen)]
        self._predicted = None if foreseen[-1] is None else (foreseen[-1], after[-1])
        is_unknown = np.array([at != sample.step for at, sample in zip(foreseen, chosen, strict=False)])
        predicted = np.ma.masked_array(np.vstack([known, after[:-1]]), mask=np.zeros_like(after, dtype=bool))
        predicted[is_unknown] = np.ma.masked
        columns = {"delta": delta, "c": c, "predicted_c": predicted}
        due = [at for at, sample in enumerate(chosen) if self.is_due(sample.record)]
        return [chosen[at] for at in due], {name: values[due] for name, values in columns.items()}

    def _observe(self, samples: Sequence["Sample"]) -> tuple[Tensor, Tensor, Tensor]:
        """delta, c, and c after the step, (samples, laws)."""
        weights = self._side_by_side([sample.weights for sample in samples])
        gradients = self._side_by_side([sample.gradients for sample in samples])
        is_foreseen = any(sample.moves is not None for sample in samples)
        moves = [sample.moves or {} for sample in samples] if is_foreseen else None
        observation = Observation(self.laws, weights, gradients, moves)
        return observation.delta, observation.c, observation.predict() if is_foreseen else observation.c

    def _side_by_side(self, of_samples: Sequence[Flat]) -> dict[str, Tensor]:
        """Name -> (samples, *shape)."""
        flat = self._weights.flat
        pieces = flat.pieces([torch.stack(flats) for flats in zip(*of_samples, strict=True)])
        return {name: pieces[at].view(len(of_samples), *flat.shapes[at]) for name, at in self._at.items()}
