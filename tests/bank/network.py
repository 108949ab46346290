"""Recipe -> a model of PyG layers, with its initial weights."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import (
    ChebConv,
    GATConv,
    GCNConv,
    GraphConv,
    GraphNorm,
    MessagePassing,
    PairNorm,
    SAGEConv,
    SGConv,
    TAGConv,
    global_mean_pool,
)
from torch_geometric.utils import add_remaining_self_loops

from gatdiag.experiments.models import CONVOLUTIONS, Stack
from gatdiag.experiments.settings import Model, Network
from gatdiag.remedies import initialize_
from tests.bank.recipe import Recipe


class RecipeModel(nn.Module):
    """A node encoder, followed by a head on pooled graphs or node pairs where the task needs one."""

    def __init__(self, recipe: Recipe, in_channels: int, out_channels: int) -> None:
        super().__init__()
        has_head = recipe.task in ("graphs", "links")
        hidden = [recipe.width] * (recipe.depth - 1)
        widths = [in_channels, *hidden, recipe.width if has_head else out_channels]
        norms = [norm(width) for norm in NORMS[recipe.norm] for width in hidden]
        convs = [LAYERS[recipe.layer](*pair) for pair in pairwise(widths)]
        self.encoder = Stack(convs, recipe.dropout, recipe.residual, norms, ACTIVATIONS[recipe.activation])
        self.head = nn.Linear(recipe.width, out_channels) if has_head else None
        if recipe.norm == "batch, of graphs":
            self.head = nn.Sequential(nn.BatchNorm1d(recipe.width), self.head)
        self.output = OUTPUTS[recipe.output]

    def forward(self, x: Tensor, edge_index: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the output, a row for each example; ``groups`` as in `tasks.Task`."""
        out: Tensor = self.encoder(x, edge_index)
        if self.head is not None and groups is not None:
            out = global_mean_pool(out, groups) if groups.dim() == 1 else out[groups[0]] * out[groups[1]]
            out = self.head(out)
        return self.output(out)


def make_network(recipe: Recipe, in_channels: int, out_channels: int) -> RecipeModel:
    """Build the model of a recipe; its weights are drawn with torch's global random state."""
    network = RecipeModel(recipe, in_channels, out_channels)
    for name, number in recipe.init:
        with torch.no_grad():
            INITS[name](network, number)
    for name, parameter in network.named_parameters():
        parameter.requires_grad = not (recipe.frozen and fnmatch.fnmatch(name, recipe.frozen))
    return network


def _layer_of_model(model: Model, in_channels: int, out_channels: int) -> nn.Module:
    """A layer of `gatdiag train --model`, with one head."""
    return CONVOLUTIONS[model](Network(model=model, bias=True), in_channels, out_channels, 1)


def _gat_with_4_heads(in_channels: int, out_channels: int) -> GATConv:
    """Heads are concatenated if the width is a multiple of 4, else averaged, as in the last layer of GAT."""
    if out_channels % 4:
        return GATConv(in_channels, out_channels, heads=4, concat=False)
    return GATConv(in_channels, out_channels // 4, heads=4)


class _ByHand(nn.Module):
    """A linear layer behind products of its input with the normalized adjacency matrix."""

    def __init__(self, width: int, out: int, hops: int) -> None:
        super().__init__()
        self.linear, self.hops = nn.Linear(width, out), hops

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        adjacency = torch.eye(len(x)).index_put_(tuple(edge_index), torch.tensor(1.0))
        scale = adjacency.sum(1).rsqrt()
        for _ in range(self.hops):
            x = scale[:, None] * (adjacency @ (scale[:, None] * x))
        return self.linear(x)


class _Sum(MessagePassing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)


class _Propagated(nn.Module):
    """A linear layer, and a layer without weights that gives each node the mean of its neighbors, many times."""

    def __init__(self, width: int, out: int, hops: int) -> None:
        super().__init__()
        self.linear, self.propagate, self.hops = nn.Linear(width, out), _Sum(aggr="mean"), hops

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, edges = self.linear(x), add_remaining_self_loops(edge_index, num_nodes=len(x))[0]
        for _ in range(self.hops):
            x = self.propagate(x, edges)
        return x


LAYERS: Final[Mapping[str, Callable[[int, int], nn.Module]]] = {
    **{
        model: partial(_layer_of_model, model) for model in ("gcn", "gat", "gatv2", "sage", "gin", "transformer", "mlp")
    },
    "sage-sum": lambda width, out: SAGEConv(width, out, aggr="sum"),
    "sgc-32": lambda width, out: SGConv(width, out, K=32),
    "gat-4": _gat_with_4_heads,
    "graph": GraphConv,
    "cheb": lambda width, out: ChebConv(width, out, K=3),
    "tag": lambda width, out: TAGConv(width, out, K=2),
    "gcn, cached": lambda width, out: GCNConv(width, out, cached=True),
    "64 products": partial(_ByHand, hops=64),
    "2 products": partial(_ByHand, hops=2),
    "40 means": partial(_Propagated, hops=40),
    "2 means": partial(_Propagated, hops=2),
}
"""Kind of layer -> constructor (in_channels, out_channels)."""


def _scale_by_norm(x: Tensor) -> Tensor:
    """Rows times their norm, whose gradient is infinite at a row of zeros."""
    x = x * (x > 1)  # not a ReLU, which would mask that gradient
    return x * x.square().sum(1, keepdim=True).sqrt()


def _normalize_rows(x: Tensor) -> Tensor:
    """0 / 0 where a row is zero."""
    x = F.relu(x - 1)
    return x.div(x.norm(dim=1, keepdim=True))


def _naive_softmax(x: Tensor) -> Tensor:
    """Overflows where 30 x exceeds 88."""
    return (30 * x).exp() / (30 * x).exp().sum(1, keepdim=True)


ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "relu": F.relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "leaky": F.leaky_relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "root of zero": _scale_by_norm,
    "log": torch.log,
    "unit rows": _normalize_rows,
    "softmax by hand": _naive_softmax,
    "detached": lambda x: F.relu(x).detach(),
    "none": lambda x: x,
}

NORMS: Final[Mapping[str, Sequence[Callable[[int], nn.Module]]]] = {
    "": (),
    "batch": [nn.BatchNorm1d],
    "batch, slow": [lambda width: nn.BatchNorm1d(width, momentum=1e-3)],
    "batch, of graphs": (),
    "layer": [nn.LayerNorm],
    "pair": [lambda _: PairNorm()],
    "graph": [GraphNorm],
}

OUTPUTS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "logits": lambda out: out,
    "softmax": lambda out: out.softmax(1),
    "log-softmax": lambda out: out.log_softmax(1),
    "log-softmax over rows": lambda out: out.log_softmax(0),
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "detached": lambda out: out.detach().requires_grad_(),
}


def _matrices(network: nn.Module) -> list[Tensor]:
    return [parameter for parameter in network.parameters() if parameter.dim() == 2]


def _multiply(tensors: list[Tensor], factor: float) -> None:
    for tensor in tensors:
        tensor.mul_(factor)


def _scale_alternately(network: RecipeModel, factor: float) -> None:
    """Even layers times the factor, odd ones divided by it: a ReLU network computes nearly the same."""
    for number, conv in enumerate(network.encoder.convs):
        _multiply(_matrices(conv), factor if number % 2 == 0 else 1 / factor)


def _shift_biases(network: RecipeModel, shift: float) -> None:
    """Biases in front of an activation: those of the norms, or of the layers if there are no norms."""
    convs = list(network.encoder.convs)[: None if network.head else -1]
    for layer in network.encoder.norms if network.encoder.norms else convs:
        for name, parameter in layer.named_parameters():
            if name.endswith("bias"):
                parameter.add_(shift)


def _scale_attention(network: RecipeModel, factor: float) -> None:
    named = network.named_parameters()
    _multiply([parameter for name, parameter in named if ".att" in name or "lin_query.weight" in name], factor)


def _scale_neurons(network: RecipeModel, factor: float) -> None:
    """Incoming weights of odd neurons times the factor and outgoing ones divided by it, even neurons the reverse."""
    for conv, following in pairwise(network.encoder.convs):
        scale = torch.full((_matrices(conv)[0].shape[0],), float(factor))
        scale[::2] = 1 / factor
        for matrix in _matrices(conv):
            matrix.mul_(scale[:, None])
        for matrix in _matrices(following):
            matrix.div_(scale)


def _draw_he(network: RecipeModel, gain: float) -> None:
    for matrix in _matrices(network):
        nn.init.kaiming_normal_(matrix).mul_(gain)


def _draw_normal(network: RecipeModel, std: float) -> None:
    for matrix in _matrices(network):
        nn.init.normal_(matrix, std=std)


def _fill_constant(network: RecipeModel, value: float) -> None:
    """All neurons of a layer are equal, and stay equal."""
    for matrix in _matrices(network.encoder):
        nn.init.constant_(matrix, value / matrix.shape[1])


def _make_first_negative(network: RecipeModel, factor: float) -> None:
    """With nonnegative features, no pre-activation of the first layer is positive."""
    for matrix in _matrices(network.encoder.convs[0]):
        matrix.abs_().mul_(-factor)


INITS: Final[Mapping[str, Callable[[RecipeModel, float], object]]] = {
    "scaled": lambda network, factor: _multiply(_matrices(network), factor),
    "alternating": _scale_alternately,
    "neurons": _scale_neurons,
    "last": lambda network, factor: _multiply(_matrices(network.encoder.convs[-1]), factor),
    "biases": _shift_biases,
    "attention": _scale_attention,
    "he": _draw_he,
    "normal": _draw_normal,
    "constant": _fill_constant,
    "negative": _make_first_negative,
    "balanced": lambda network, _: initialize_(network.encoder, "balanced_orthogonal"),
    "xavier": lambda network, _: initialize_(network.encoder, "xavier"),
}
"""Name -> in-place change of the weights (model, argument)."""
