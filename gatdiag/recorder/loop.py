"""What the training loop does around the model: backward passes, optimizers made anew or in turns, written weights."""

import weakref
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.recorder.samples import is_readable
from gatdiag.structure.identity import IdentityTable

_LATER = 3  # passes
_COMPARED: Final = 200  # recorded steps whose weights are compared with those before the next step, and every fifth
_COMPARE_EVERY: Final = 5
_MOST_PARAMETERS: Final = 8  # of which some entries are compared, the largest
_ENTRIES: Final = 32  # of each
_LEFT: Final = 0.1  # of what steps have moved: with less of it left, the weights are back where they were
_ALIKE: Final = 0.3  # cosine of weights: fresh ones have 0, projected and averaged ones nearly 1


class LoopFacts:
    """Counts, of one training."""

    def __init__(self) -> None:
        self._passes = self._steps = self._new = self._turns = 0
        self._sizes: list[complex] = []  # of the parameters, at the first pass
        self._moves = False  # the weights differ at a later pass without a step that was seen
        self._known = IdentityTable[bool]()  # optimizers
        self._last: weakref.ref[Optimizer] | None = None
        self._weights = _Weights()

    def on_backward_start(self, parameters: Sequence[Tensor]) -> bool:
        """Called once in each recorded backward pass; returns whether it is one of those before the first step."""
        self._passes += 1
        if self._steps:
            return False
        if self._passes == 1:
            self._sizes = [each.sum().item() for each in parameters]
        elif self._passes == _LATER:
            self._moves = self._sizes != [each.sum().item() for each in parameters]
        return True

    def before_step(self, optimizers: Sequence[Optimizer], parameters: Sequence[Tensor], step: int) -> bool:
        """Called before each recorded step; returns whether the weights have been overwritten since the last one."""
        self._steps += 1
        remembering = [each for each in optimizers if any(map(_remembers, each.param_groups))]
        if remembering and not any(each in self._known for each in remembering):
            self._new += 1
        for optimizer in optimizers:
            self.on_optimizer(optimizer)
        return self._weights.before_step(parameters, step)

    def on_optimizer(self, optimizer: Optimizer) -> None:
        """Called for each optimizer of a recorded step, in order."""
        last = None if self._last is None else self._last()
        self._turns += optimizer in self._known and last is not optimizer
        self._known[optimizer] = True
        self._last = weakref.ref(optimizer)

    def after_step(self, parameters: Sequence[Tensor], step: int, *, is_due: bool) -> None:
        """Called after each recorded step; the weights are looked at if that is due."""
        is_early = self._steps <= _COMPARED or self._steps % _COMPARE_EVERY == 0
        self._weights.after_step(parameters if is_early or is_due else (), step, may_wait=is_due)

    def as_meta(self) -> dict[str, Any]:
        """What stands in meta.json."""
        return {
            "recorded_steps": self._steps,
            "steps_of_new_optimizers": self._new,
            "backward_passes": self._passes,
            "turns": self._turns,
            **({} if self._steps else {"weights_move": self._moves}),
            **self._weights.as_meta(),
        }


class _Weights:
    """Whether weights change between a step and the next one, and whether that undoes what steps have moved.

    Entries that are zero, as of a mask, or that equal the largest, as of weights that are clipped, do not count.
    """

    def __init__(self) -> None:
        self._start: Tensor | None = None  # before the first step since they were overwritten
        self._after: tuple[int, Tensor] | None = None  # a step, and the weights that it left
        self._compared = self._changed = 0
        self._undone: list[int] = []  # steps
        self._last_compared = 0

    def before_step(self, parameters: Sequence[Tensor], step: int) -> bool:
        known, self._after = self._after, None
        if known is None or known[0] != step - 1 or self._start is None:
            if self._start is None:
                self._start = _entries(parameters)
            return False
        now, after, start = _entries(parameters), known[1], self._start
        self._compared, self._last_compared = self._compared + 1, step
        if now is None or now.shape != after.shape or torch.equal(now, after) or not bool(now.isfinite().all()):
            return False
        self._changed += 1
        if is_undone(start, after, now):
            self._undone.append(step)
        self._start = now
        return True

    def after_step(self, parameters: Sequence[Tensor], step: int, *, may_wait: bool) -> None:
        """Without `may_wait`, entries on an accelerator are not read."""
        found = _entries(parameters) if may_wait or all(each.is_cpu for each in parameters) else None
        self._after = None if found is None else (step, found)

    def as_meta(self) -> dict[str, Any]:
        if not self._changed:
            return {}
        steps = {"first_undone": self._undone[0], "last_undone": self._undone[-1]} if self._undone else {}
        return {
            "overwritten": {
                "compared": self._compared,
                "last_compared": self._last_compared,
                "changed": self._changed,
                "undone": len(self._undone),
                **steps,
            }
        }


def _entries(parameters: Sequence[Tensor]) -> Tensor | None:
    """A copy of some entries of the largest parameters; None if there are none."""
    known = (each for each in parameters if each.is_floating_point() and each.numel() and is_readable(each))
    chosen = sorted(known, key=Tensor.numel, reverse=True)[:_MOST_PARAMETERS]
    flat = [each.detach().reshape(-1) for each in chosen]
    pieces = [each[:: max(1, len(each) // _ENTRIES)][:_ENTRIES].cpu() for each in flat]
    return torch.cat(pieces).double() if pieces else None


def is_undone(start: Tensor, after: Tensor, now: Tensor) -> bool:
    """Whether weights are back where they were before the steps, or have nothing to do with what steps left."""
    is_free = (now != 0) & (now.abs() < now.abs().max())
    start, after, now = start[is_free], after[is_free], now[is_free]
    moved, left = (after - start).norm(), (now - start).norm()
    is_back = bool(moved > 0) and bool(left < _LEFT * moved)
    return is_back or bool(now @ after < _ALIKE * now.norm() * after.norm())


def _remembers(group: dict[str, Any]) -> bool:
    """Whether its steps depend on earlier gradients: moments or momentum."""
    return "betas" in group or bool(group.get("momentum"))
