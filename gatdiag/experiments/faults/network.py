"""Recipe -> a network with its weights, of PyG's layers."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import (
    ChebConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GraphConv,
    GraphNorm,
    PairNorm,
    SAGEConv,
    SGConv,
    TAGConv,
    TransformerConv,
    global_mean_pool,
)

from gatdiag.experiments.faults.recipe import Recipe
from gatdiag.experiments.models import Stack, gin
from gatdiag.remedies import initialize_


class RecipeModel(nn.Module):
    """An encoder of nodes, then what the task needs: the mean over each graph and a head, or the ends of each pair."""

    def __init__(self, recipe: Recipe, in_channels: int, out_channels: int) -> None:
        """Build it with the weights that its layers are made with."""
        super().__init__()
        is_whole = recipe.task in ("nodes", "regression")  # the encoder's last layer gives the output
        hidden = [recipe.width] * (recipe.depth - 1)
        widths = [in_channels, *hidden, out_channels if is_whole else recipe.width]
        norms = [norm(width) for norm in NORMS[recipe.norm] for width in hidden]
        convs = [LAYERS[recipe.layer](*pair) for pair in pairwise(widths)]
        self.encoder = Stack(convs, recipe.dropout, recipe.residual, norms, ACTIVATIONS[recipe.activation])
        self.head = None if is_whole else nn.Linear(recipe.width, out_channels)
        self.output = OUTPUTS[recipe.output]

    def forward(self, x: Tensor, edge_index: Tensor, join: Tensor | None = None) -> Tensor:
        """Features, edges, and the graph of each node or the two ends of each pair -> a row for each example."""
        out: Tensor = self.encoder(x, edge_index)
        if self.head is not None and join is not None:
            out = global_mean_pool(out, join) if join.dim() == 1 else out[join[0]] * out[join[1]]
            out = self.head(out)
        return self.output(out)


def make_network(recipe: Recipe, in_channels: int, out_channels: int) -> RecipeModel:
    """The network of a recipe; its weights come from torch's global random state."""
    network = RecipeModel(recipe, in_channels, out_channels)
    for name, number in recipe.init:
        with torch.no_grad():
            INITS[name](network, number)
    for name, parameter in network.named_parameters():
        parameter.requires_grad = not (recipe.frozen and fnmatch.fnmatch(name, recipe.frozen))
    return network


def _gat_of_4_heads(width: int, following: int) -> GATConv:
    """Heads side by side where the width allows it, else their mean, as in the last layer of GAT."""
    if following % 4:
        return GATConv(width, following, heads=4, concat=False)
    return GATConv(width, following // 4, heads=4)


LAYERS: Final[Mapping[str, Callable[[int, int], nn.Module]]] = MappingProxyType(
    {
        "gcn": GCNConv,
        "gat": GATConv,
        "gatv2": lambda width, following: GATv2Conv(width, following, share_weights=True),
        "sage": SAGEConv,
        "sage-sum": lambda width, following: SAGEConv(width, following, aggr="sum"),
        "gin": gin,
        "transformer": TransformerConv,
        "sgc-32": lambda width, following: SGConv(width, following, K=32),
        "mlp": nn.Linear,
        "gat-4": _gat_of_4_heads,
        "graph": GraphConv,
        "cheb": lambda width, following: ChebConv(width, following, K=3),
        "tag": lambda width, following: TAGConv(width, following, K=2),
    }
)
"""Kind of layer -> what makes one of a width and the width that follows it."""


def _root_of_zero(x: Tensor) -> Tensor:
    """Rows times the root of their size, of which the slope is infinite at a row of zeros; a ReLU would mask that."""
    x = x * (x > 1)
    return x * x.square().sum(1, keepdim=True).sqrt()


def _unit_rows(x: Tensor) -> Tensor:
    """0 / 0 where a row is zero."""
    x = F.relu(x - 1)
    return x.div(x.norm(dim=1, keepdim=True))


def _softmax_by_hand(x: Tensor) -> Tensor:
    """Overflows where an entry is larger than 88."""
    return (30 * x).exp() / (30 * x).exp().sum(1, keepdim=True)


def _detached(x: Tensor) -> Tensor:
    """No gradient comes back through it."""
    return F.relu(x).detach()


ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "relu": F.relu,
        "elu": F.elu,
        "gelu": F.gelu,
        "leaky": F.leaky_relu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "root of zero": _root_of_zero,
        "log": torch.log,
        "unit rows": _unit_rows,
        "softmax by hand": _softmax_by_hand,
        "detached": _detached,
    }
)

NORMS: Final[Mapping[str, Sequence[Callable[[int], nn.Module]]]] = MappingProxyType(
    {"": (), "batch": [nn.BatchNorm1d], "layer": [nn.LayerNorm], "pair": [lambda _: PairNorm()], "graph": [GraphNorm]}
)

OUTPUTS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "logits": lambda out: out,
        "softmax": lambda out: out.softmax(1),
        "log-softmax": lambda out: out.log_softmax(1),
        "sigmoid": torch.sigmoid,
        "detached": lambda out: out.detach().requires_grad_(),
    }
)


def _matrices(network: nn.Module) -> list[Tensor]:
    return [parameter for parameter in network.parameters() if parameter.dim() == 2]


def _multiply(tensors: list[Tensor], factor: float) -> None:
    for tensor in tensors:
        tensor.mul_(factor)


def _alternate(network: RecipeModel, factor: float) -> None:
    """Every other layer larger, the others smaller: a network of ReLU computes nearly the same."""
    for number, conv in enumerate(network.encoder.convs):
        _multiply(_matrices(conv), factor if number % 2 == 0 else 1 / factor)


def _biases(network: RecipeModel, shift: float) -> None:
    """Of all layers whose output goes through the activation, or of the normalizations in between."""
    convs = list(network.encoder.convs)[: None if network.head else -1]
    for layer in network.encoder.norms if network.encoder.norms else convs:
        for name, parameter in layer.named_parameters():
            if name.endswith("bias"):
                parameter.add_(shift)


def _attention(network: RecipeModel, factor: float) -> None:
    """Logits of the attention, larger by this factor."""
    named = network.named_parameters()
    _multiply([parameter for name, parameter in named if ".att" in name or "lin_query.weight" in name], factor)


def _neurons(network: RecipeModel, factor: float) -> None:
    """Every other neuron larger going in and smaller going out, the others the reverse: a ReLU computes the same."""
    convs = list(network.encoder.convs)
    for conv, following in pairwise(convs):
        scale = torch.full((_matrices(conv)[0].shape[0],), float(factor))
        scale[::2] = 1 / factor
        for matrix in _matrices(conv):
            matrix.mul_(scale[:, None])
        for matrix in _matrices(following):
            matrix.div_(scale)


def _he(network: RecipeModel, gain: float) -> None:
    for matrix in _matrices(network):
        nn.init.kaiming_normal_(matrix).mul_(gain)


def _normal(network: RecipeModel, deviation: float) -> None:
    for matrix in _matrices(network):
        nn.init.normal_(matrix, std=deviation)


def _constant(network: RecipeModel, value: float) -> None:
    """All neurons of a layer are the same, and stay so."""
    for matrix in _matrices(network.encoder):
        nn.init.constant_(matrix, value / matrix.shape[1])


def _negative(network: RecipeModel, factor: float) -> None:
    """Features that are never negative give sums that are never positive."""
    for matrix in _matrices(network.encoder.convs[0]):
        matrix.abs_().mul_(-factor)


INITS: Final[Mapping[str, Callable[[RecipeModel, float], object]]] = MappingProxyType(
    {
        "scaled": lambda network, factor: _multiply(_matrices(network), factor),
        "alternating": _alternate,
        "neurons": _neurons,
        "last": lambda network, factor: _multiply(_matrices(network.encoder.convs[-1]), factor),
        "biases": _biases,
        "attention": _attention,
        "he": _he,
        "normal": _normal,
        "constant": _constant,
        "negative": _negative,
        "balanced": lambda network, number: initialize_(network.encoder, "balanced_orthogonal"),
        "xavier": lambda network, number: initialize_(network.encoder, "xavier"),
    }
)
"""What is done to weights, in place, and a number of it."""
