"""What half precision leaves of gradients and of steps. Nothing is counted in trainings without it."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

from gatdiag.recorder.samples import FlatParameters, Sample

_HALF: Final = (torch.float16, torch.bfloat16)
_SMALLEST: Final = torch.finfo(torch.float16).smallest_normal  # below it, float16 loses digits, and soon all of them


class PrecisionFacts:
    """Counts, of the inspected steps of one training."""

    def __init__(self) -> None:
        self._activations: set[str] = set()
        self._parameters: set[str] = set()
        self._counts = Counter[str]()
        self._largest = 0.0

    @property
    def is_half(self) -> bool:
        """Whether anything of less than 32 bits was seen."""
        return bool(self._activations or self._parameters)

    def on_activations(self, tensors: Iterable[Tensor]) -> None:
        """Called with what layers are given, and with the model's output."""
        self._activations |= {_name(x) for x in tensors if x.dtype in _HALF}

    def on_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Called before a step with the parameters that are trained."""
        self._parameters |= {_name(each) for each in parameters if each.dtype in _HALF and each.requires_grad}

    def on_output_gradient(self, gradient: Tensor) -> None:
        """Called in a backward pass with dL/dout."""
        if self.is_half and gradient.numel():
            self._largest = max(self._largest, float(gradient.detach().abs().max().nan_to_num(0.0, 0.0)))

    def after_step(self, sample: Sample, flat: FlatParameters) -> None:
        """Called after a step with what it has changed."""
        if not self.is_half or sample.weights_after is None:
            return
        for number, positions in enumerate(flat.positions):
            gradient = sample.gradients[number]
            if sample.unscale_raw is None:
                sizes = gradient.abs()
                tiny = (sizes < _SMALLEST) & (sizes > 0)
                self._counts += Counter(
                    gradients=gradient.numel(), zero_gradients=int((sizes == 0).sum()), tiny_gradients=int(tiny.sum())
                )
            if flat.tensors[positions[0]].dtype in _HALF:
                moves = gradient != 0
                still = moves & (sample.weights[number] == sample.weights_after[number])
                self._counts += Counter(pulled=int(moves.sum()), unmoved=int(still.sum()))

    def as_meta(self) -> dict[str, Any]:
        """What stands in meta.json: an entry "precision" if there is any half precision."""
        if not self.is_half:
            return {}
        names = {"activations": sorted(self._activations), "parameters": sorted(self._parameters)}
        return {"precision": {**names, "largest_output_gradient": self._largest, **self._counts}}


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
