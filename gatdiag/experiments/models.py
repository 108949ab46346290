"""Graph neural networks as the papers build them: stacks of PyG convolutions.

`gat` and `gcn` take the numbers of features and classes; other arguments have the defaults of "Are GATs Out of
Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023), where the depth counts every convolution. `build` makes a
network from settings.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    PairNorm,
    SAGEConv,
    SGConv,
    TransformerConv,
)

from gatdiag.experiments.settings import Network


class Stack(nn.Module):
    """Convolutions with normalization, activation and dropout between them; the last one returns logits.

    With ``residual``, each convolution but the first and the last adds to its input:
    h_next = h + dropout(relu(norm(conv(h)))). ``norms`` has one module per convolution but the last, or is empty.
    ``convs`` may contain linear layers, which ignore the edges.
    """

    def __init__(
        self,
        convs: Sequence[nn.Module],
        dropout: float = 0.0,
        residual: bool = False,
        norms: Sequence[nn.Module] = (),
        activation: Callable[[Tensor], Tensor] = F.relu,
    ) -> None:
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


def gin(in_channels: int, out_channels: int, bias: bool = True) -> GINConv:
    """A GIN convolution with an MLP of two layers."""
    first, second = nn.Linear(in_channels, out_channels, bias), nn.Linear(out_channels, out_channels, bias)
    return GINConv(nn.Sequential(first, nn.ReLU(), second))


def gat(
    in_channels: int,
    out_channels: int,
    hidden_channels: int = 64,
    layers: int = 10,
    heads: int = 1,
    dropout: float = 0.0,
) -> Stack:
    """GATv2 with shared weights and without bias; heads are concatenated, and the last layer has one.

    Example:
        >>> model = gat(1433, 7)
        >>> len(model.convs), model.convs[0].att.shape
        (10, torch.Size([1, 1, 64]))
    """
    network = Network(layers=layers, width=hidden_channels, heads=heads, dropout=dropout, attention_dropout=dropout)
    return _build_stack(network, in_channels, out_channels)


def gcn(
    in_channels: int,
    out_channels: int,
    hidden_channels: int = 64,
    layers: int = 10,
    dropout: float = 0.0,
    residual: bool = False,
) -> Stack:
    """GCN without bias; ``residual`` adds an identity skip around each hidden convolution.

    Example:
        >>> gcn(1433, 7, layers=2).convs[1].lin.weight.shape
        torch.Size([7, 64])
    """
    network = Network(model="gcn", layers=layers, width=hidden_channels, dropout=dropout, residual=residual)
    return _build_stack(network, in_channels, out_channels)


class OmegaGATConv(nn.Module):
    """Attention with a learned share omega: (1 - omega) W h_v + omega sum_u alpha_uv W h_u.

    Args:
        conv: The attention layer, whose weight W also maps the features of the node itself.

    Source:
        Eliasof, Ruthotto, Treister, "Improving Graph Neural Networks with Learnable Propagation Operators" (ICML 2023):
        h - omega (h - S h), with one omega per layer. Here omega starts at 1, where the layer is pure attention.

    Example:
        >>> conv = OmegaGATConv(GATv2Conv(5, 3, bias=False, share_weights=True))
        >>> conv(torch.ones(2, 5), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([2, 3])
    """

    def __init__(self, conv: GATv2Conv) -> None:
        super().__init__()
        self.conv = conv
        self.omega = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Features (nodes, in_channels) and edges (2, edges) -> (nodes, heads * out_channels)."""
        own = self.conv.lin_l(x)
        attended: Tensor = self.conv(x, edge_index)
        mixed: Tensor = own + self.omega * (attended - own)
        return mixed


class Deep(nn.Module):
    """DeepGAT or DeepGT: a linear layer, convolutions of equal width, a linear layer.

    Before each convolution is dropout; after it are the activation (but for the last) and normalization.

    Source:
        Dasoulas, Scaman, Virmaux, "Lipschitz Normalization for Self-Attention Layers with Application to Graph Neural
        Networks", ICML 2021, and their code, which returns log-probabilities: their cross-entropy is the same as that
        of the logits here.
    """

    def __init__(self, network: Network, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(in_channels, network.width)
        self.convs = nn.ModuleList(_convolutions(network, network.width, network.layers))
        self.norms = nn.ModuleList(_norms(network, network.layers))
        self.last = nn.Linear(network.heads * network.width, out_channels)
        self.dropout = network.dropout
        self.activation = ACTIVATIONS[network.activation]

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Features (nodes, in_channels) and edges (2, edges) -> logits (nodes, out_channels)."""
        x = self.first(x)
        for number, conv in enumerate(self.convs):
            x = conv(F.dropout(x, self.dropout, self.training), edge_index)
            x = self.activation(x) if number < len(self.convs) - 1 else x
            x = self.norms[number](x) if self.norms else x
        logits: Tensor = self.last(x)
        return logits


def build(network: Network, in_channels: int, out_channels: int) -> Stack | Deep:
    """The network that the settings describe, with PyG's default initialization.

    Example:
        >>> model = build(Network(model="gatv2", heads=8, layers=3, share_weights=False), 1433, 7)
        >>> model.convs[1].lin_r.weight.shape
        torch.Size([512, 512])
    """
    if network.model == "sgc":
        return Stack([SGConv(in_channels, out_channels, K=network.layers, bias=network.bias)])
    if network.model in ("deep-gat", "deep-gt"):
        return Deep(network, in_channels, out_channels)
    return _build_stack(network, in_channels, out_channels)


def _build_stack(network: Network, in_channels: int, out_channels: int) -> Stack:
    convs = _convolutions(network, in_channels, network.layers - 1)
    width = network.heads * network.width if convs else in_channels
    convs.append(CONVOLUTIONS[network.model](network, width, out_channels, 1))
    norms = _norms(network, network.layers - 1)
    return Stack(convs, network.dropout, network.residual, norms, ACTIVATIONS[network.activation])


def _convolutions(network: Network, in_channels: int, count: int) -> list[nn.Module]:
    """The hidden convolutions."""
    widths = [in_channels, *[network.heads * network.width] * (count - 1)][:count]
    return [CONVOLUTIONS[network.model](network, width, network.width, network.heads) for width in widths]


def _norms(network: Network, count: int) -> list[nn.Module]:
    make = NORMS.get(network.norm)
    return [] if make is None else [make(network.heads * network.width) for _ in range(count)]


def _attention(kind: Callable[..., nn.Module], network: Network, *sizes: int, **options: bool) -> nn.Module:
    return kind(*sizes, dropout=network.attention_dropout, bias=network.bias, **options)


def _gatv2(network: Network, *sizes: int) -> nn.Module:
    return _attention(GATv2Conv, network, *sizes, share_weights=network.share_weights)


CONVOLUTIONS: Final[Mapping[str, Callable[[Network, int, int, int], nn.Module]]] = {
    "gat": partial(_attention, GATConv),
    "gatv2": _gatv2,
    "omega-gat": lambda *sizes: OmegaGATConv(_gatv2(*sizes)),
    "transformer": partial(_attention, TransformerConv),
    "deep-gat": partial(_attention, GATConv),
    "deep-gt": partial(_attention, TransformerConv),
    "gcn": lambda network, width, out_channels, _: GCNConv(width, out_channels, bias=network.bias),
    "sage": lambda network, width, out_channels, _: SAGEConv(width, out_channels, bias=network.bias),
    "gin": lambda network, width, out_channels, _: gin(width, out_channels, network.bias),
    "mlp": lambda network, width, out_channels, _: nn.Linear(width, out_channels, bias=network.bias),
}
"""Layers by model: (settings, in_channels, out_channels per head, heads) -> a layer."""
ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {"relu": F.relu, "elu": F.elu, "none": nn.Identity()}
NORMS: Final[Mapping[str, Callable[[int], nn.Module]]] = {
    "pairnorm": lambda _: PairNorm(),
    "pairnorm-si": lambda _: PairNorm(scale_individually=True),
    "layernorm": nn.LayerNorm,
    "batchnorm": nn.BatchNorm1d,
}
