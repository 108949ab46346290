"""Which axis recurrent networks and attention take for the batch, and which one the rest of the model does."""

from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor, nn

from gatdiag.structure.tensors import first_tensor

_CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)  # whose first axis is the batch


class BatchAxes:
    """Notes, of layers over sequences, the length of what they take for time and for the batch."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}
        self._sequences: dict[str, tuple[int, int, bool]] = {}  # of this step: batch, time, batch_first
        self._batches: set[int] = set()  # sizes that other modules, or the output, take for the batch in this step

    def start_step(self) -> None:
        """Begin a step."""
        self._sequences, self._batches = {}, set()

    def note_layer(self, layer: str, module: nn.Module, inputs: Sequence[Any]) -> None:
        """Called after a layer with what it was given."""
        x = first_tensor(inputs)
        if x is None:
            return
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and x.dim() == 3:
            time = int(module.batch_first)
            self._sequences[layer] = x.shape[1 - time], x.shape[time], module.batch_first
        elif isinstance(module, _CONVOLUTIONS) and x.dim() == len(module.kernel_size) + 2:
            self._batches.add(x.shape[0])

    def note_output(self, o: Tensor) -> bool:
        """Called with the output of the model, which has a row for each example if it is a matrix.

        Returns:
            Whether something was noted.
        """
        batches = self._batches | ({o.shape[0]} if o.dim() == 2 else set())
        for layer, (batch, time, is_batch_first) in self._sequences.items():
            if batch == time or not batches & {batch, time}:
                continue
            found = self._found.setdefault(layer, {"steps": 0, "swapped": 0, "batch_first": is_batch_first})
            found["steps"] += 1
            found["swapped"] += time in batches and batch not in batches and batch > 1
            found |= {"batch": batch, "time": time}
        return bool(self._sequences)

    def as_meta(self) -> dict[str, Any]:
        """What stands in meta.json.

        Layer -> lengths of its "batch" and "time", the number of "steps" in which others show the batch, and of those
        of them in which it is "swapped" with time.
        """
        return {"batch_axes": self._found}
