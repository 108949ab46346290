"""Graph neural networks as the papers build them: stacks of PyG convolutions.

Each factory is called with the number of features and of classes; the rest has the defaults of "Are GATs Out of
Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023), whose depth counts every convolution.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATv2Conv, GCNConv


class Stack(nn.Module):
    """Convolutions with ReLU and dropout between them; the last one is linear, for a cross-entropy loss.

    With ``residual``, each convolution between the first and the last adds to its input:
    h_next = h + dropout(relu(conv(h))).
    """

    def __init__(self, convs: Sequence[nn.Module], dropout: float = 0.0, residual: bool = False) -> None:
        """Stack convolutions whose widths follow each other."""
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.dropout = dropout
        self.residual = residual

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Features (nodes, in_channels) and edges (2, edges) -> logits (nodes, out_channels)."""
        for number, conv in enumerate(self.convs):
            out: Tensor = conv(x, edge_index)
            if number == len(self.convs) - 1:
                return out
            out = F.dropout(F.relu(out), self.dropout, self.training)
            x = x + out if self.residual and number else out
        return x


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
