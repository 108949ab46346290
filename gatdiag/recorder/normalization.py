"""Batch normalization in training: how many rows a mean is of, and what evaluation mode would make of the batch."""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gatdiag.recorder.shards import is_distributed
from gatdiag.structure.modules import is_training, named_modules, own_buffers

_RECENT: Final = 3  # batches, of which the one that the running statistics fit best counts


def find_batch_norms(model: nn.Module) -> dict[int, str]:
    """The id of each batch normalization -> its name; none of those whose batches are those of all processes."""
    named = named_modules(model)
    return {id(m): name for name, m in named if isinstance(m, _BatchNorm) and not isinstance(m, nn.SyncBatchNorm)}


class BatchNorms:
    """What the batch normalizations of a training were given."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}
        self._recent = defaultdict[str, deque[tuple[float, float]]](lambda: deque(maxlen=_RECENT))

    def note(self, name: str, module: nn.Module, x: Any, call_on_host: Callable[..., None]) -> None:
        """Called after a batch normalization in training mode has taken its input."""
        if not isinstance(module, _BatchNorm) or not is_training(module) or not isinstance(x, Tensor) or x.dim() < 2:
            return
        if is_distributed(x) or x.layout is not torch.strided or not x.numel():
            return
        rows = x.numel() // x.shape[1]
        known = self._found.setdefault(name, {"rows": rows, "most_rows": rows, "channels": x.shape[1]})
        known["rows"], known["most_rows"] = min(rows, known["rows"]), max(rows, known["most_rows"])
        running = own_buffers(module)
        if "running_mean" not in running or "running_var" not in running:
            return
        known["momentum"] = module.momentum
        variance, mean = torch.var_mean(x.detach().float(), [0, *range(2, x.dim())], correction=0)
        deviations = ((v + module.eps).sqrt() for v in (variance, running["running_var"]))
        evaluated = torch.stack([mean - running["running_mean"], *deviations])
        call_on_host(self._note_distance, name, evaluated)

    def _note_distance(self, name: str, evaluated: Tensor) -> None:
        """Note mean and standard deviation that the outputs would have in evaluation mode, instead of 0 and 1."""
        away, spread, running = evaluated.double()
        distance = float((away / running).abs().median()), float((spread / running).log().abs().median())
        self._recent[name].append(distance)
        shift, scale = min(self._recent[name], key=max)
        self._found[name] |= {"shift": shift, "scale": scale}

    def as_meta(self) -> dict[str, dict[str, Any]]:
        """What stands in meta.json, for each module."""
        return {name: dict(found) for name, found in self._found.items()}
