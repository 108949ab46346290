"""The norm of all gradients before they are clipped."""

import torch
from torch import Tensor

from gatdiag.recorder.weights import Weights


class BeforeClipping:
    """Remembers the gradients' norm at the end of each backward pass, which is before anything can clip them.

    Whether they were changed afterwards is told by the version counters of the tensors. As long as they never are, the
    norm that the step measures anyway will do; the first step always measures both.
    """

    def __init__(self) -> None:
        """No gradient has been seen."""
        self._are_changed = True
        self._norm: Tensor | None = None
        self._versions: list[tuple[int, int]] = []
        self._earlier: list[tuple[int, int]] = []

    def backward_began(self, weights: Weights) -> None:
        """Remember the gradients as they are before a backward pass."""
        self._earlier = weights.versions()

    def backward_ended(self, weights: Weights) -> None:
        """The gradients are as the backward pass left them."""
        versions = weights.versions()
        if versions == self._earlier:  # nothing was accumulated: the user asked for gradients elsewhere
            return
        self._versions = versions
        self._norm = torch.linalg.vector_norm(weights.gradient_norms()) if self._are_changed else None

    def norm(self, weights: Weights, now: Tensor | None) -> Tensor | None:
        """The norm before clipping; None where it is not known.

        Args:
            weights: Those that the gradients are of.
            now: Norm of the gradients as the optimiser gets them.
        """
        if not self._versions:
            return None
        self._are_changed = weights.versions() != self._versions
        return self._norm if self._are_changed else now

    def forget(self) -> None:
        """The step is over."""
        self._norm, self._versions, self._earlier = None, [], []
