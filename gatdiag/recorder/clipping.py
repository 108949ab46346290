"""The norm of all gradients before they are clipped."""

import torch
from torch import Tensor

from gatdiag.recorder.weights import Weights


class BeforeClipping:
    """Measures the gradients' norm at the end of each backward pass, which is before anything can clip them.

    It is measured even where nothing clips them, for that cannot be known: what goes through `.data` leaves no trace.
    """

    def __init__(self) -> None:
        """No gradient has been seen."""
        self._norm: Tensor | None = None
        self._task = -1
        self._earlier: list[tuple[int, int]] = []

    def backward_runs(self, weights: Weights) -> bool:
        """Remember the gradients as they are before a backward pass; returns whether this is its first call in it."""
        task = torch._C._current_graph_task_id()
        if task == self._task:
            return False
        self._task, self._earlier = task, weights.versions()
        return True

    def backward_ended(self, weights: Weights) -> None:
        """The gradients are as the backward pass left them."""
        if weights.versions() != self._earlier:  # else nothing was accumulated: gradients were asked for elsewhere
            self._norm = torch.linalg.vector_norm(weights.gradient_norms())

    def take(self) -> Tensor | None:
        """The norm before clipping of a step that begins; None where no backward pass was seen since the last one."""
        norm, self._norm = self._norm, None
        return norm
