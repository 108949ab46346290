"""What the gradients of a step are made of: the batches of its backward passes, and gradients of the step before.

Two steps can be compared, as the overshoot does, if they use the same batches in the same order. A backward pass that
begins without gradients shows that they have been cleared: what the passes before it computed is not used.
"""

import weakref
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import torch
from torch import Tensor

from gatdiag import metrics
from gatdiag.metrics.smoothing import as_rows
from gatdiag.recorder.measure.parameters import as_real
from gatdiag.recorder.samples import Sample

_MAX_BATCHES: Final = 64  # of one step; steps with more are not compared
_Use: TypeAlias = tuple[int, Tensor]  # number of a batch, and which rows of the output have a gradient


class Batches:
    """Watches the passes of recorded steps through the model's output."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, int], ...], tuple[int, list[weakref.ref[Tensor]]]] = {}  # of identities
        self._count = 0
        self._latest: list[_Use] = []  # in that pass
        self._uses: list[_Use] = []  # in this step, since gradients were cleared
        self._last_uses: list[_Use] = []  # in the last step
        self._leftover: Tensor | None = None  # norm of the gradients before the first pass; 0 if they were cleared
        self._leftover_gradients: list[tuple[Tensor, Tensor]] = []  # (parameter, gradient) at that time

    def number(self, inputs: Sequence[Tensor]) -> tuple[int, bool]:
        """The number of a batch, which is the same for the same unchanged inputs; and whether it is new."""
        key = tuple((id(x), x._version) for x in inputs)
        number, references = self._known.get(key, (-1, []))
        if number >= 0 and all(reference() is x for reference, x in zip(references, inputs, strict=True)):
            return number, False
        if len(self._known) >= _MAX_BATCHES:
            self._known = {}
        self._count += 1
        self._known[key] = self._count, [weakref.ref(x) for x in inputs]
        return self._count, True

    def on_backward_start(self, gradients: list[tuple[Tensor, Tensor]]) -> bool:
        """Called at the beginning of a backward pass.

        Args:
            gradients: Parameters that the output depends on, with their gradients.

        Returns:
            Whether gradients were cleared before; False if that is not known without waiting for the device.
        """
        norm = _norm(gradient for _, gradient in gradients)
        is_cleared = norm.is_cpu and not norm
        if is_cleared:
            self._uses = []
        if is_cleared or self._leftover is None:
            self._leftover, self._leftover_gradients = norm, gradients
        elif not self._leftover.is_cpu:
            self._leftover = torch.where(norm == 0, norm, self._leftover)
        return is_cleared

    def on_output_gradient(self, batch: int, gradient: Tensor) -> bool | Tensor:
        """Called in a backward pass, with the number of a batch and the gradient of the model's output for it.

        Returns:
            Whether batch and rows are those of the last time.
        """
        last, self._latest = self._latest, [(batch, (as_rows(gradient.detach()) != 0).any(1))]
        self._uses += self._latest if len(self._uses) < _MAX_BATCHES else []
        return _are_alike(last, self._latest)

    def before_step(self, sample: Sample) -> None:
        """Called before the weights move; adds to the sample of the step."""
        if self._leftover is not None:
            # if the backward pass replaced the old gradients, nothing was added to them
            old = self._leftover_gradients
            is_sum = not old or any(parameter.grad is gradient for parameter, gradient in old)
            sample.leftover = self._leftover if is_sum else torch.zeros_like(self._leftover)
        sample.repeats_batches = _are_alike(self._last_uses, self._uses)
        self._last_uses = self._uses
        used = {number for number, _ in self._uses}
        self._known = {key: known for key, known in self._known.items() if known[0] in used}

    def start_step(self, *, is_recorded: bool) -> None:
        """Begin a step. A recorded one is not compared with those before a step that is not recorded."""
        self._uses, self._leftover, self._leftover_gradients = [], None, []
        if not is_recorded:
            self._known, self._latest, self._last_uses = {}, [], []


def _norm(gradients: Iterable[Tensor]) -> Tensor:
    dense = (gradient if gradient.layout is torch.strided else gradient.to_dense() for gradient in gradients)
    real = [as_real(gradient) for gradient in dense]
    return metrics.frobenius_norm(metrics.norms(real)) if real else torch.zeros(())


def _are_alike(one: Sequence[_Use], other: Sequence[_Use]) -> bool | Tensor:
    """Whether batches and rows are the same, in the same order; False if there are none, or too many."""
    numbers, others_numbers = ([number for number, _ in uses] for uses in (one, other))
    is_alike: bool | Tensor = numbers == others_numbers and 0 < len(one) < _MAX_BATCHES
    pairs = [(rows, others) for (_, rows), (_, others) in zip(one, other, strict=False)]
    if not is_alike or any(rows.shape != others.shape for rows, others in pairs):
        return False
    for rows, others in pairs:
        is_alike = (torch.equal(rows, others) if rows.is_cpu else (rows == others).all()) & is_alike
    return is_alike
