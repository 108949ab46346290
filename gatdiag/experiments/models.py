"""Graph neural networks as the papers build them: stacks of PyG convolutions.

Each factory is called with the number of features and of classes; the rest has the defaults of "Are GATs Out of
Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023), whose depth counts every convolution. `stack` builds one of any
kind of layer (`LAYERS`), as PyG's classes have it by default.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv, SGConv, TransformerConv


class Stack(nn.Module):
    """Convolutions with ReLU and dropout between them; the last one is linear, for a cross-entropy loss.

    With ``residual``, each convolution between the first and the last adds to its input:
    h_next = h + dropout(relu(norm(conv(h)))). ``norms`` has a normalization for each convolution but the last, or is
    empty; linear layers among the convolutions do without the edges.
    """

    def __init__(
        self,
        convs: Sequence[nn.Module],
        dropout: float = 0.0,
        residual: bool = False,
        norms: Sequence[nn.Module] = (),
        activation: Callable[[Tensor], Tensor] = F.relu,
    ) -> None:
        """Stack convolutions whose widths follow each other."""
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(norms)
        self.dropout = dropout
        self.residual = residual
        self.activation = activation

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Features (nodes, in_channels) and edges (2, edges) -> logits (nodes, out_channels)."""
        for number, conv in enumerate(self.convs):
            out: Tensor = conv(x) if isinstance(conv, nn.Linear) else conv(x, edge_index)
            if number == len(self.convs) - 1:
                return out
            out = self.norms[number](out) if self.norms else out
            out = F.dropout(self.activation(out), self.dropout, self.training)
            x = x + out if self.residual and number else out
        return x


def _gin(width: int, following: int) -> GINConv:
    return GINConv(nn.Sequential(nn.Linear(width, following), nn.ReLU(), nn.Linear(following, following)))


LAYERS: Final[Mapping[str, Callable[[int, int], nn.Module]]] = MappingProxyType(
    {
        "gcn": GCNConv,
        "gat": GATConv,
        "gatv2": lambda width, following: GATv2Conv(width, following, share_weights=True),
        "sage": SAGEConv,
        "sage-sum": lambda width, following: SAGEConv(width, following, aggr="sum"),
        "gin": _gin,
        "transformer": TransformerConv,
        "sgc-32": lambda width, following: SGConv(width, following, K=32),
        "mlp": nn.Linear,
    }
)
"""Kind of layer -> what makes one of a width and the width that follows it."""


def stack(
    layer: str,
    in_channels: int,
    out_channels: int,
    hidden_channels: int = 64,
    layers: int = 10,
    dropout: float = 0.0,
    residual: bool = False,
    norm: Callable[[int], nn.Module] | None = None,
    activation: Callable[[Tensor], Tensor] = F.relu,
) -> Stack:
    """Layers of one kind (a key of `LAYERS`), with a normalization made for the width after each but the last.

    Example:
        >>> model = stack("sage", 1433, 7, layers=3, norm=nn.LayerNorm)
        >>> len(model.convs), len(model.norms)
        (3, 2)
    """
    widths = [in_channels, *[hidden_channels] * (layers - 1), out_channels]
    norms = [] if norm is None else [norm(hidden_channels) for _ in range(layers - 1)]
    return Stack([LAYERS[layer](*pair) for pair in pairwise(widths)], dropout, residual, norms, activation)


def gat(
    in_channels: int,
    out_channels: int,
    hidden_channels: int = 64,
    layers: int = 10,
    heads: int = 1,
    dropout: float = 0.0,
) -> Stack:
    """GATv2 with shared weights and no bias; heads are concatenated, and the last layer has one.

    Example:
        >>> model = gat(1433, 7)
        >>> len(model.convs), model.convs[0].att.shape
        (10, torch.Size([1, 1, 64]))
    """
    widths = [in_channels, *[heads * hidden_channels] * (layers - 1)]
    convs = [
        GATv2Conv(
            width,
            out_channels if number == layers - 1 else hidden_channels,
            heads=1 if number == layers - 1 else heads,
            dropout=dropout,
            bias=False,
            share_weights=True,
        )
        for number, width in enumerate(widths)
    ]
    return Stack(convs, dropout)


def gcn(
    in_channels: int, out_channels: int, hidden_channels: int = 64, layers: int = 10, dropout: float = 0.0
) -> Stack:
    """Graph convolutional network without bias.

    Example:
        >>> gcn(1433, 7, layers=2).convs[1].lin.weight.shape
        torch.Size([7, 64])
    """
    return Stack(_gcn_convs(in_channels, out_channels, hidden_channels, layers), dropout)


def residual_gcn(
    in_channels: int, out_channels: int, hidden_channels: int = 64, layers: int = 10, dropout: float = 0.0
) -> Stack:
    """Graph convolutional network without bias, with an identity skip around each convolution between first and last.

    Example:
        >>> residual_gcn(1433, 7).residual
        True
    """
    return Stack(_gcn_convs(in_channels, out_channels, hidden_channels, layers), dropout, residual=True)


def _gcn_convs(in_channels: int, out_channels: int, hidden_channels: int, layers: int) -> list[nn.Module]:
    widths = [in_channels, *[hidden_channels] * (layers - 1), out_channels]
    return [GCNConv(width, following, bias=False) for width, following in pairwise(widths)]
