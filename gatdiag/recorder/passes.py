"""Events of forward and backward passes -> the rows of the table `layers`.

Everything is reduced at once, so that no activation outlives its own event. A step may see several forward passes
(gradient accumulation, evaluation, a second loss): its row is of the last one that a gradient came back to, or simply
of the last one if no gradient ever comes to a layer's output. Of a layer that runs several times in one pass it is the
last run; a pass that activation checkpointing repeats during the backward pass is not one. Where several backward
passes go through one forward pass, gradients are of the last. A step without a forward pass of its own, as where two
losses share one and each has its own step, has no row: the outputs were those of other weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gatdiag import metrics
from gatdiag.hooks import in_backward_pass
from gatdiag.recorder import attention, rows
from gatdiag.recorder.groups import Selection

Row = dict[str, Tensor]

_DEAR = frozenset({"energies", "ranks", "cosine_distances"})
_MOST = 1 << 16  # outputs of one step
_OF_THE_LAST = (
    "gradients of layer outputs: several backward passes went through one forward pass, and those of the last are "
    "recorded; gradients of parameters are the sum of all"
)


@dataclass
class Pass:
    """What one forward pass, and the backward pass after it, have shown so far."""

    record: int
    numbers: dict[str, int] = field(default_factory=dict)
    edges: dict[str, Tensor | None] = field(default_factory=dict)
    outputs: dict[str, rows.Measured] = field(default_factory=dict)
    gradients: dict[str, rows.Measured] = field(default_factory=dict)
    others: dict[str, Row] = field(default_factory=dict)
    came_back: bool = False
    ended: bool = False
    taken: bool = False  # a step's row was made of it


class Passes:
    """Listens to the layers of a model, and gives one pass a step.

    Args:
        selection: What is measured.
        guarded: Runs a function with a name for what it measures, and contains its failures.

    Attributes:
        notes: What could not be recorded, in plain words.
        saw_half: Whether an output was float16, whose gradients are hardly ever computed without a scaler.
        saw_rough: Whether layers computed with less than 32 bits.
    """

    def __init__(self, selection: Selection, guarded: Callable[..., Any]) -> None:
        """No pass yet."""
        self._selection = selection
        self._due: frozenset[str] = frozenset()  # groups that the coming record has
        self._guarded = guarded
        self._count = 0
        self._pass = Pass(-1)
        self._dear = False
        self._by_number: dict[int, Pass] = {}
        self._handles: dict[str, Any] = {}
        self._unseen: set[str] = set()  # layers that run, and whose coefficients are still to come
        self.notes: dict[str, str] = {}
        self.saw_half = self.saw_rough = False
        self._edge_index: Tensor | None = None

    def start(self, record: int | None) -> None:
        """A new step begins.

        Args:
            record: Number of the record it will be; None if it is not recorded.
        """
        self._pass = Pass(-1 if record is None else record)
        self._due = frozenset() if record is None else self._selection.groups_due(record)
        self._dear = not self._due.isdisjoint(_DEAR)
        self._by_number = {}
        self._edge_index = None

    def take(self) -> Pass:
        """The pass that the step's row is of."""
        came_back = [seen for seen in self._by_number.values() if seen.came_back]
        seen = came_back[-1] if came_back else self._pass
        seen.taken = True
        return seen

    def bound(self) -> None:
        """A forward pass of the whole model begins or has ended: what comes next belongs to another one."""
        self._pass.ended = bool(self._pass.numbers)

    def stop(self) -> None:
        """Take away what is still hooked, as after an interrupt in the middle of a layer."""
        for handle in self._handles.values():
            handle.remove()
        self._handles = {}

    def call(self, layer: str, module: nn.Module) -> None:
        """A layer is about to run."""
        reason = attention.obstacle(module) if "attention" in self._due else None
        if reason is None:
            return
        if reason:
            self._note_attention(layer, reason)
            return
        self._unseen.add(layer)

        def tell(read: Callable[[], attention.Coefficients]) -> None:
            self._unseen.discard(layer)
            entropies = self._guarded("attention entropy", attention.mean_entropies, read)
            if entropies is not None:
                self._pass.others.setdefault(layer, {}).update(entropies)

        self._handles[layer] = attention.listen_once(module, tell)

    def _note_attention(self, layer: str, reason: str) -> None:
        self.notes.setdefault(layer, f"attention entropy of {layer}: {reason}")

    def output(self, layer: str, inputs: tuple[Any, ...], output: Tensor | None) -> int | None:
        """A layer has run; returns the number under which its gradient is expected."""
        if layer in self._handles:
            self._handles.pop(layer).remove()
        if layer in self._unseen:
            self._unseen.discard(layer)
            self._note_attention(layer, "its coefficients were not seen, as with a sparse adjacency matrix")
        if output is None or self._pass.record < 0:
            return None
        matrix = rows.as_rows(output)
        if matrix is None or not self._is_news(layer):
            return None
        self.saw_half |= matrix.dtype is torch.float16
        self.saw_rough |= matrix.dtype.itemsize < 4 or torch.is_autocast_enabled(matrix.device.type)
        if "outputs" in self._due:
            measured = self._guarded("layer outputs", rows.measure, matrix)
            if measured is not None:
                self._pass.outputs[layer] = measured
        if self._dear:
            self._pass.edges[layer] = self._edges(inputs, len(matrix))
            self._measure_dear(layer, matrix, "", self._pass)
        return self._numbered(layer)

    def _numbered(self, layer: str) -> int:
        if len(self._by_number) >= _MOST:
            self._by_number.clear()  # passes without end and without a step
        self._count += 1
        self._pass.numbers[layer] = self._count
        self._by_number[self._count] = self._pass
        return self._count

    def _is_news(self, layer: str) -> bool:
        """Whether this is no repetition of what the pass has shown; begins another pass if the last one has ended."""
        repeated = in_backward_pass()
        if self._pass.ended and not repeated:
            self._pass = Pass(self._pass.record)
            self._edge_index = None
        return not (repeated and layer in self._pass.numbers)

    def gradient(self, layer: str, number: int, gradient: Tensor) -> None:
        """The gradient of an output has been computed."""
        seen = self._by_number.get(number)
        if seen is None or seen.taken:
            return
        seen.came_back = True
        matrix = rows.as_rows(gradient)
        if matrix is None or seen.numbers.get(layer) != number:
            return
        if layer in seen.gradients:
            self.notes.setdefault("backward passes", _OF_THE_LAST)
        if "outputs" in self._due:
            measured = self._guarded("gradients of layer outputs", rows.measure, matrix)
            if measured is not None:
                seen.gradients[layer] = measured
        if self._dear:
            self._measure_dear(layer, matrix, "gradient_", seen)

    def _measure_dear(self, layer: str, matrix: Tensor, prefix: str, seen: Pass) -> None:
        others = seen.others.setdefault(layer, {})
        edges = seen.edges.get(layer)
        if "ranks" in self._due:
            ranks = self._guarded("ranks", _ranks, matrix, prefix)
            others.update(ranks or {})
        if edges is None:
            return
        if "energies" in self._due:
            others.update(self._guarded("Dirichlet energies", _energies, matrix, edges, prefix) or {})
        if "cosine_distances" in self._due:
            others.update(self._guarded("cosine distances", _angles, matrix, edges, prefix) or {})

    def _edges(self, inputs: tuple[Any, ...], nodes: int) -> Tensor | None:
        """The edges a layer was given, or those that a layer before it was given, if they fit its output."""
        if any(isinstance(item, tuple | list | dict) for item in inputs):
            return None  # nodes of two kinds: the edges lead from one to the other
        given = next((item for item in inputs if _is_edge_index(item)), None)
        if given is not None:
            self._edge_index = given
        edges = self._edge_index
        if edges is None or (edges.numel() and int(edges.max()) >= nodes):
            return None
        return edges


def _is_edge_index(item: Any) -> bool:
    return (
        isinstance(item, Tensor)
        and item.layout == torch.strided
        and item.dim() == 2
        and len(item) == 2
        and item.dtype == torch.int64
    )


def _ranks(matrix: Tensor, prefix: str) -> Row:
    return {
        f"{prefix}effective_rank": metrics.effective_rank(matrix),
        f"{prefix}numerical_rank": metrics.numerical_rank(matrix),
    }


def _energies(matrix: Tensor, edges: Tensor, prefix: str) -> Row:
    return {
        f"{prefix}dirichlet_energy": metrics.dirichlet_energy(matrix, edges),
        f"{prefix}rayleigh_quotient": metrics.rayleigh_quotient(matrix, edges),
    }


def _angles(matrix: Tensor, edges: Tensor, prefix: str) -> Row:
    return {f"{prefix}mad": metrics.mad(matrix, edges)}
