"""What the batches of a training show of its data: inputs that change, graphs whose edges meet, labels of one class."""

import weakref
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SIZES: Final = 40  # inspections whose inputs or labels are kept
_ROWS: Final = 64  # of an input, in an inspected step
_MAX_KEPT: Final = 2**21  # entries of rows that are kept
_COLUMNS: Final = (8, 4096)  # least and most entries of a row whose order is looked at
_DISTINCT: Final = 0.25  # times their number: so many of its entries are different
_KEPT: Final = 0.5  # share of the pairs of neighbors that stay neighbors: after flips, shifts and rotations 0.8 to 1
_MIX: Final = 0x9E3779B97F4A7C1  # times which neighboring numbers are far apart
_COMPARED: Final = 100  # rows of an input that came again


class DataFacts:
    """Notes on the batches of inspected steps."""

    def __init__(self) -> None:
        self._sizes: dict[str, list[tuple[int, float, int]]] = {}  # of an input: step, rms of its entries, rows
        self._last: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._rewritten: dict[str, int] = {}  # how often an input was changed in place between inspections
        self._labels: dict[int, list[int]] = {}  # step -> number of rows of each class
        self._span: tuple[int, int] | None = None  # nodes of the last convolution, and what its edges need
        self._graphs: dict[str, int] = {}
        self._rows: dict[str, dict[int, Tensor]] = {}  # input -> its rows by a hash of their sorted entries
        self._cached: dict[str, tuple[tuple[int, int], dict[str, int]]] = {}  # layer -> its first edges, and counts
        self._orders: dict[str, dict[str, int]] = {}

    # --- inputs -------------------------------------------------------------------------------------------------------

    def note_input(self, name: str, x: Tensor) -> None:
        """Note whether an input is a tensor that was changed in place since it was seen last."""
        reference, version = self._last.get(name, (None, 0))
        if reference is not None and reference() is x and x._version > version:
            self._rewritten[name] = self._rewritten.get(name, 0) + 1
        self._last[name] = weakref.ref(x), x._version

    def note_size(self, name: str, step: int, size: Tensor, rows: int) -> None:
        """Note the root mean square of an input, and the number of its rows."""
        sizes = self._sizes.setdefault(name, [])
        if len(sizes) >= _SIZES:
            sizes.pop(_SIZES // 2)
        sizes.append((step, float(size), rows))

    def note_rows(self, name: str, x: Tensor) -> None:
        """Note rows that were there before with the same entries, and how many of them have these in another order."""
        found = self._orders.setdefault(name, {"repeated": 0, "permuted": 0})
        size = x[0].numel()
        if found["repeated"] >= _COMPARED or (some := telling_rows(x)) is None:
            return
        known = self._rows.setdefault(name, {})
        for row, entries in zip(some.rows, some.ordered, strict=True):
            key = hash(entries.numpy().tobytes())  # of the row itself the order is needed
            if key in known:
                found["repeated"] += 1
                found["permuted"] += is_permuted(known[key], row)
            elif sum(map(len, self._rows.values())) * size < _MAX_KEPT:
                known[key] = row.clone()

    # --- graphs -------------------------------------------------------------------------------------------------------

    def start_step(self) -> None:
        """Begin a step."""
        self._span = None

    def note_edges(self, nodes: int, needed: int) -> None:
        """A convolution was given this number of nodes, and edges that need a smaller one."""
        self._span = nodes, needed

    def note_cached(self, layer: str, edges: Tensor, *, is_cached: bool) -> None:
        """A layer was given edges; if it keeps the normalized ones of its first call, note whether these are others.

        Edges are told apart by their number and a sum that is the same in any order.
        """
        if not is_cached:
            return
        mixed = (edges[0] * _MIX + edges[1]) * _MIX  # which overflows
        key = edges.shape[1], int((mixed ^ (mixed >> 29)).mul(_MIX).sum())
        first, found = self._cached.setdefault(layer, (key, {"calls": 0, "others": 0}))
        found["calls"] += 1
        found["others"] += key != first

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
                "steps": [step for step, _, _ in found],
                "sizes": [size for _, size, _ in found],
                "rows": [rows for _, _, rows in found],
                "rewritten": self._rewritten.get(name, 0),
            }
            for name, found in self._sizes.items()
        }
        labels = [{"step": step, "counts": counts} for step, counts in self._labels.items()]
        return {"input_sizes": sizes, "graphs": self._graphs, "batch_labels": labels, "input_orders": self._orders,
                "cached_edges": {layer: found for layer, (_, found) in self._cached.items()}}  # fmt: skip


class TellingRows(NamedTuple):
    """Some rows of an input, in which no two are alike by chance.

    Attributes:
        rows: Of the input, on the CPU.
        ordered: The sorted entries of each.
        places: Of these rows.
    """

    rows: Tensor
    ordered: Tensor
    places: Tensor


def telling_rows(x: Tensor) -> TellingRows | None:
    """Up to 64 rows with enough different entries; None if rows have too few entries, or too many."""
    if not _COLUMNS[0] <= x[0].numel() <= _COLUMNS[1]:
        return None
    every = max(1, -(-len(x) // _ROWS))
    rows = x.detach()[::every].float().cpu()
    ordered = rows.flatten(1).sort(1).values
    is_telling = ((ordered.diff(dim=1) > 0).sum(1) >= _DISTINCT * ordered.shape[1]) & ordered.isfinite().all(1)
    return TellingRows(rows[is_telling], ordered[is_telling], is_telling.nonzero().squeeze(1) * every)


def is_permuted(example: Tensor, other: Tensor) -> bool:
    """Whether an example holds the entries of another in an order that keeps no neighbors.

    Flips, shifts and rotations keep them, and permutations along one axis keep those along another.

    Example:
        >>> row = torch.tensor([3.0, 1.0, 4.0, 1.5, 9.0, 2.0])
        >>> is_permuted(row, row.flip(0)), is_permuted(row, row[torch.tensor([2, 0, 5, 3, 1, 4])])
        (False, True)
    """
    pairs = [(_neighbors(example, axis), _neighbors(other, axis)) for axis in range(example.dim())]
    every = (np.concatenate([one for one, _ in pairs]), np.concatenate([one for _, one in pairs]))
    return max(_shared(*of_axis) for of_axis in [every, *pairs]) < _KEPT


def _neighbors(example: Tensor, axis: int) -> NDArray[np.int64]:
    """A number for each pair of neighbors along an axis whose entries differ, whatever their order."""
    entries = example.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    length = example.shape[axis] - 1
    one, next_one = entries.narrow(axis, 0, length).flatten(), entries.narrow(axis, 1, length).flatten()
    low, high = torch.minimum(one, next_one), torch.maximum(one, next_one)
    return ((low << 31) ^ high)[low != high].numpy()


def _shared(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Share of the entries of one that are in the other, each as often; 0 of none."""
    (values, counts), (others, of_others) = (np.unique(each, return_counts=True) for each in (one, other))
    _, here, there = np.intersect1d(values, others, assume_unique=True, return_indices=True)
    return float(np.minimum(counts[here], of_others[there]).sum()) / max(1, len(one))


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
