"""Depth in time: how outputs and gradients change over many runs of one layer in a pass.

A cell that is called once per time step has an output at each call. `nn.RNN` and its like are called once: their output
is a stack of what each time step returned, if the graph shows it. Where all time steps are one operation, as of
`nn.LSTM` and on accelerators, the gradient of their inputs stands for that of their outputs, if there is one.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn

from gatdiag.recorder.loss_graph import operation_name
from gatdiag.structure.tensors import first_tensor

MIN_RUNS: Final = 10
_REPEATED: Final = 6  # runs, of which the outputs are compared
_VIEWS: Final = ("Transpose", "Squeeze", "View", "Unsqueeze")


class Recurrence:
    """Notes, of layers that run many times in a pass, how their gradients and their outputs change from run to run."""

    def __init__(self) -> None:
        self._gradients: dict[str, dict[str, float]] = {}
        self._outputs: dict[str, dict[str, Any]] = {}
        self._last: dict[str, tuple[int, float]] = {}  # layer -> number of the pass, norm of the last run's gradient

    def note(self, layer: str, of_pass: int, runs: int, gradient: Tensor, *, is_first: bool) -> bool:
        """Called with the gradient of the last run, then with that of the first; returns whether there is a ratio."""
        norm = float(torch.linalg.vector_norm(gradient.detach()))
        if not is_first:
            self._last[layer] = of_pass, norm
            return False
        known, last = self._last.get(layer, (-1, 0.0))
        if known != of_pass or not last > 0 or math.isnan(norm):
            return False
        found = self._gradients.setdefault(layer, {"runs": runs, "first": norm / last, "largest": 0.0})
        found["largest"] = max(found["largest"], norm / last)
        return True

    def note_outputs(self, norms: Mapping[str, Sequence[Any]]) -> bool:
        """Called with the norms of each layer's outputs, until a pass has layers that run many times: if it has."""
        if self._outputs:
            return False
        often = {layer: [*map(float, each)] for layer, each in norms.items() if len(each) >= _REPEATED}
        self._outputs = {layer: _describe_growth(each) for layer, each in often.items()}
        return bool(often)

    def as_meta(self) -> dict[str, Any]:
        """What stands in meta.json.

        "recurrence": layer -> number of "runs", "first" and "largest" ratio of the gradient of the first run
        to that of the last; "repeats": layer -> how its output grows, if a layer runs many times.
        """
        return {"recurrence": self._gradients, **({"repeats": self._outputs} if self._outputs else {})}


def input_over_time(module: nn.Module, inputs: Sequence[Any]) -> tuple[Tensor, int] | None:
    """The sequence that a recurrent module is given and the axis of time, if it was computed and has a gradient."""
    x = first_tensor(inputs) if isinstance(module, nn.RNNBase) else None
    if x is None or x.dim() != 3 or not x.requires_grad or x.is_leaf:
        return None
    return x, 1 if module.batch_first else 0


def time_steps(module: nn.Module, returned: Any) -> list[Any]:
    """The nodes that computed the outputs of the time steps of a recurrent module; none if the graph shows none."""
    node = getattr(first_tensor(returned), "grad_fn", None) if isinstance(module, nn.RNNBase) else None
    while node is not None and operation_name(node) in _VIEWS:
        node = node.next_functions[0][0]
    if node is None or operation_name(node) != "Stack":
        return []
    return [step for step, _ in node.next_functions if step is not None]


def _describe_growth(norms: Sequence[float]) -> dict[str, Any]:
    """How often a layer ran, the last norm of its output over the first, and the share of runs in which it grew."""
    growth = norms[-1] / norms[0] if norms[0] > 0 else 0.0
    rising = sum(not after <= before for before, after in pairwise(norms)) / (len(norms) - 1)
    largest = sys.float_info.max  # also for an overflow
    return {"runs": len(norms), "growth": growth if growth < largest else largest, "rising": rising}
