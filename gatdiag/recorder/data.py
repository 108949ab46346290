"""What the batches of a training show of its data: inputs that change, graphs whose edges meet, labels of one class."""

import weakref
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

_SIZES: Final = 40  # inspections whose inputs or labels are kept


class DataFacts:
    """Notes on the batches of inspected steps."""

    def __init__(self) -> None:
        self._sizes: dict[str, list[tuple[int, float]]] = {}  # of an input: step, and root mean square of its entries
        self._last: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._rewritten: dict[str, int] = {}  # how often an input was changed in place between inspections
        self._labels: dict[int, list[int]] = {}  # step -> number of rows of each class
        self._span: tuple[int, int] | None = None  # nodes of the last convolution, and what its edges need
        self._graphs: dict[str, int] = {}

    # --- inputs -------------------------------------------------------------------------------------------------------

    def note_input(self, name: str, x: Tensor) -> None:
        """Note whether an input is a tensor that was changed in place since it was seen last."""
        reference, version = self._last.get(name, (None, 0))
        if reference is not None and reference() is x and x._version > version:
            self._rewritten[name] = self._rewritten.get(name, 0) + 1
        self._last[name] = weakref.ref(x), x._version

    def note_size(self, name: str, step: int, size: Tensor) -> None:
        """Note the root mean square of an input."""
        sizes = self._sizes.setdefault(name, [])
        if len(sizes) >= _SIZES:
            sizes.pop(_SIZES // 2)
        sizes.append((step, float(size)))

    # --- graphs -------------------------------------------------------------------------------------------------------

    def start_step(self) -> None:
        """Begin a step."""
        self._span = None

    def note_edges(self, nodes: int, needed: int) -> None:
        """A convolution was given this number of nodes, and edges that need a smaller one."""
        self._span = nodes, needed

    def note_graphs(self, vectors: Sequence[Tensor]) -> None:
        """Find the vector that says which graph each node is of, and note whether edges leave the first graphs."""
        if self._span is None:
            return
        nodes, needed = self._span
        for vector in vectors:
            if (sizes := sizes_of_graphs(vector, nodes)) is not None:
                graphs, largest = len(sizes), int(sizes.max())
                known = self._graphs or {"batches": 0, "within_first": 0}
                self._graphs = {
                    "batches": known["batches"] + 1,
                    "within_first": known["within_first"] + (needed <= largest),
                    "graphs": graphs,
                    "largest": largest,
                    "nodes": nodes,
                    "needed": needed,
                }
                return

    # --- labels -------------------------------------------------------------------------------------------------------

    def note_labels(self, step: int, counts: Tensor) -> None:
        """Note how many rows of each class the loss of a step saw; a step may have several losses."""
        known = self._labels.get(step)
        if known is not None and len(known) == len(counts):
            self._labels[step] = [a + b for a, b in zip(known, counts.tolist(), strict=True)]
        elif known is None and len(self._labels) < _SIZES:
            self._labels[step] = counts.tolist()

    def as_meta(self) -> dict[str, Any]:
        """What stands in meta.json."""
        sizes = {
            name: {
                "steps": [step for step, _ in found],
                "sizes": [size for _, size in found],
                "rewritten": self._rewritten.get(name, 0),
            }
            for name, found in self._sizes.items()
        }
        labels = [{"step": step, "counts": counts} for step, counts in self._labels.items()]
        return {"input_sizes": sizes, "graphs": self._graphs, "batch_labels": labels}


def sizes_of_graphs(vector: Tensor, nodes: int) -> Tensor | None:
    """The number of nodes of each of several graphs, if a tensor says which graph each node is of.

    Example:
        >>> sizes_of_graphs(torch.tensor([0, 0, 1]), nodes=3), sizes_of_graphs(torch.tensor([0, 2, 1]), nodes=3)
        (tensor([2, 1]), None)
    """
    if vector.dtype != torch.int64 or vector.dim() != 1 or len(vector) != nodes or nodes < 2:
        return None
    if int(vector[0]) != 0 or not int(vector[-1]) or bool((vector.diff() < 0).any()):
        return None
    return torch.bincount(vector)
