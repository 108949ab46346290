"""A layer as a map from features to features: which of its weights lead into its neurons, and which read the input."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import torch
from torch import Tensor

from gatdiag.checkpoint.measures import Measured
from gatdiag.laws import Term
from gatdiag.structure import Layer, ParameterInfo, Structure


@dataclass(frozen=True)
class Rule:
    """How a kind of layer uses its parameters; names as in `signatures`.

    Attributes:
        read: What maps the layer's input: rows lead into its neurons, columns out of those before it.
        written: What else leads into its neurons.
        scores: Attention vectors, an entry for each neuron.
        apart: What has nothing to do with its neurons.
    """

    read: str
    written: str = ""
    scores: str = ""
    apart: str = ""


RULES: Final[Mapping[str, Rule]] = {
    "Linear": Rule("weight"),
    "GCNConv": Rule("lin weight"),
    "SGConv": Rule("lin"),
    "GraphConv": Rule("lin_rel lin_root weight lin"),
    "SAGEConv": Rule("lin_l lin_r"),
    "ClusterGCNConv": Rule("lin_out lin_root"),
    "LEConv": Rule("lin1 lin2 lin3"),
    "ChebConv": Rule("lins"),
    "GATConv": Rule(
        "lin lin_src lin_l weight res", scores="att_src att_dst att_l att_r att", apart="lin_edge att_edge"
    ),
    "GATv2Conv": Rule("lin_l lin_r res", written="lin_edge", scores="att"),
}

_TRANSPARENT: Final = ("PReLU", "BatchNorm", "BatchNorm1d", "LayerNorm", "RMSNorm", "GraphNorm", "DiffGroupNorm")
_TRANSPOSED: Final = ("GCNConv", "GATConv", "GraphConv")
_SKIP = re.compile(r"conv_(in|out)$|phi$|skip|shortcut|residual|downsample|(^|[._])res(\d|[._]|$)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Link:
    """One map of a stack.

    Attributes:
        path: Of its module.
        layer: The layer that it is, or is in.
        read: Matrices on its input.
        written: Other matrices, and biases: rows and entries lead into its neurons.
        scores: Attention vectors of shape (1, heads, channels), or twice the channels where both halves are one tensor.
        heads: How many.
        rows: Of a matrix: heads times channels.
    """

    path: str
    layer: Layer
    read: tuple[ParameterInfo, ...]
    written: tuple[ParameterInfo, ...]
    scores: tuple[ParameterInfo, ...]
    heads: int
    rows: int

    @property
    def widths(self) -> tuple[int, ...]:
        """How many outputs it may have: one a row, or one a channel if heads are averaged. An output bias tells."""
        channels = self.rows // self.heads
        lengths = {info.shape[0] for info in self.written if info.module == self.path.replace(Structure.ROOT, "")}
        lengths |= {info.shape[0] for info in self.read if info.module.endswith(".res")}
        return tuple(sorted(lengths & {self.rows, channels} or {self.rows, channels}))

    @property
    def inputs(self) -> int:
        """How many inputs it takes."""
        return self.read[0].shape[1 - self.row_axis(self.read[0])]

    def row_axis(self, info: ParameterInfo) -> int:
        """The axis of a matrix that counts rows: 1 for what PyG stored as (in, out) in its first versions."""
        return int(self.layer.kind in _TRANSPOSED and self._holds(info) and len(info.shape) == 2)

    def _holds(self, info: ParameterInfo) -> bool:
        """Whether a parameter is the layer's own, of no module inside it."""
        return info.module == self.layer.name.replace(Structure.ROOT, "")

    def incoming(self, neuron: int, width: int) -> Iterator[Term]:
        """The terms of what leads into a neuron, of `width` there are; attention scores it with the opposite sign."""
        rows = tuple(range(neuron, self.rows, width))
        for info in (*self.read, *self.written):
            axis = self.row_axis(info)
            places = rows if info.shape[axis] == self.rows else (neuron,)
            yield _term(info, (axis,), [(place,) for place in places], 1)
        channels = self.rows // self.heads
        for info in self.scores:
            halves = range(0, info.shape[2], channels)
            entries = [(0, *divmod(row, channels)) for row in rows]
            yield _term(info, (0, 1, 2), [(zero, head, at + half) for half in halves for zero, head, at in entries], -1)

    def outgoing(self, neuron: int) -> Iterator[Term]:
        """The terms of what reads a neuron of the layer before."""
        return (_term(info, (1 - self.row_axis(info),), [(neuron,)], -1) for info in self.read)

    def written_squares(self, measured: Mapping[str, Measured], width: int) -> Tensor:
        """(width,): sum of squares of what leads into each neuron, less those of attention."""
        total = torch.zeros(width, dtype=torch.float64)
        for info in (*self.read, *self.written):
            squares = _squares(measured[info.name], self.row_axis(info))
            total += squares.reshape(-1, width).sum(0) if len(squares) == self.rows else squares
        for info in self.scores:
            of_heads = _squares(measured[info.name], 1).reshape(self.heads, -1, self.rows // self.heads)
            total -= of_heads.sum(1).reshape(-1, width).sum(0)
        return total

    def read_squares(self, measured: Mapping[str, Measured]) -> Tensor:
        """(inputs,): sum of squares of what reads each neuron of the layer before."""
        return torch.stack([_squares(measured[info.name], 1 - self.row_axis(info)) for info in self.read]).sum(0)


def _squares(measured: Measured, axis: int) -> Tensor:
    return (measured.column_norms if axis else measured.row_norms).square()


def links_of(layer: Layer, tensors: Mapping[str, Tensor]) -> tuple[Link, ...] | str:
    """The maps that a layer is made of, in order: none for a normalization; a reason where they cannot be told.

    Args:
        layer: With the parameters that `find_layers` gave it.
        tensors: The state dict.
    """
    if layer.kind in _TRANSPARENT or all(info.role in ("norm scale", "norm shift") for info in layer.parameters):
        return ()
    reason = _unfit_layer(layer) or next(filter(None, (_unfit(info, layer, tensors) for info in layer.parameters)), "")
    if reason:
        return reason
    if layer.kind in RULES:
        return _linked(layer.name, layer, RULES[layer.kind], layer.parameters)
    return _network(layer)


def _network(layer: Layer) -> tuple[Link, ...] | str:
    """The linear maps inside a convolution that first adds up features."""
    modules: dict[str, list[ParameterInfo]] = {}
    for info in layer.parameters:
        if info.role in ("feature weight", "bias"):
            modules.setdefault(info.module, []).append(info)
    links: list[Link] = []
    for path, infos in modules.items():
        found = _linked(path, layer, RULES["Linear"], infos)
        if isinstance(found, str):
            return found
        links += found
    return tuple(links)


def _unfit_layer(layer: Layer) -> str:
    """Why a layer is no map of a stack; "" if it may be one."""
    if layer.kind not in (*RULES, "GINConv"):
        return f"how a layer of its kind ({layer.kind}) uses its weights is not known here"
    if _SKIP.search(layer.name):
        return "by its name it leads around other layers"
    return ""


def _unfit(info: ParameterInfo, layer: Layer, tensors: Mapping[str, Tensor]) -> str:
    """Why a parameter is no plain weight of this layer alone; "" if it is."""
    prefix = "" if layer.name == Structure.ROOT else f"{layer.name}."
    if any(not name.startswith(prefix) for name in info.names):
        return f"{info.name} is {' and '.join(info.names[1:])} too"
    if info.name.rpartition(".")[0] != info.module:
        return f"{info.name} is no weight itself: the weight is computed from it"
    tensor = tensors[info.name]
    if not tensor.numel() or not info.shape:
        return f"{info.name} is empty or a single number"
    if not tensor.is_floating_point() or tensor.layout is not torch.strided:
        return f"{info.name} is sparse, complex or quantized"
    return ""


def _linked(path: str, layer: Layer, rule: Rule, infos: Iterable[ParameterInfo]) -> tuple[Link] | str:
    parts: dict[str, list[ParameterInfo]] = {"read": [], "written": [], "scores": [], "apart": []}
    for info in infos:
        name = info.name.removeprefix(f"{path}.").partition(".")[0]
        place = next((part for part in parts if name in getattr(rule, part).split()), "")
        if info.role == "bias" and place in ("", "read"):
            place = "written"
        if not place:
            return f"how it uses {info.name} is not known here"
        parts[place].append(info)
    read, written, scores, _ = map(tuple, parts.values())
    if not read or any(len(info.shape) != 2 for info in read):
        return "it has no matrix that maps its input"
    heads = scores[0].shape[1] if scores else 1
    link = Link(path, layer, read, written, scores, heads, 0)
    rows = max(info.shape[link.row_axis(info)] for info in read)
    link = replace(link, rows=rows)
    return (link,) if _is_consistent(link) else "the shapes of its parameters do not fit each other"


def _is_consistent(link: Link) -> bool:
    """Whether all rows, entries and columns count the same neurons."""
    counts = {link.rows, link.rows // link.heads}
    lengths = {info.shape[link.row_axis(info)] for info in (*link.read, *link.written)}
    inputs = {info.shape[1 - link.row_axis(info)] for info in link.read}
    halves = {info.shape[2] * link.heads // link.rows for info in link.scores}
    divides = link.rows % link.heads == 0 and halves <= {1, 2}
    return divides and lengths <= counts and len(inputs) == 1 and all(len(info.shape) == 3 for info in link.scores)


def _term(info: ParameterInfo, axes: tuple[int, ...], indices: Iterable[tuple[int, ...]], sign: int) -> Term:
    return Term(info.name, info.shape, axes, tuple(indices), Fraction(sign))
