"""Every recorded column of layers whose outputs have more than two axes, against loops over a hand-made matrix."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, GraphConv, HeteroConv, SAGEConv

import gatdiag
from gatdiag.quantities import columns, gradient_name

OF_OUTPUTS = [each.name for each in columns("layers") if each.of == "output"]
WITH_EDGES = ["dirichlet_energy", "rayleigh_quotient", "mad"]
EDGES = torch.tensor([[0, 1, 1, 2, 3, 3, 4, 2], [1, 0, 2, 1, 2, 2, 4, 0]])  # one-way, repeated and a self loop
NODES = 6


def slow_columns(signals, edges):
    """Each column of X, given as one (nodes, channels) array for each signal, with Python's floats."""
    rows = [[float(entry) for entry in row] for signal in signals for row in signal]
    square = math.fsum(entry**2 for row in rows for entry in row)
    means = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    mu = math.sqrt(math.fsum((entry - mean) ** 2 for row in rows for entry, mean in zip(row, means, strict=True)))
    sigma = np.linalg.svd(np.array(rows), compute_uv=False)
    shares = [value / sigma.sum() for value in sigma if value > 1e-6 * sigma[0]]
    found = {
        "output_norm": math.sqrt(square),
        "mu": mu,
        "relative_mu": mu / math.sqrt(square),
        "dead_fraction": sum(not any(column) for column in zip(*rows, strict=True)) / len(means),
        "non_finite": 0,
        "effective_rank": math.exp(-sum(share * math.log(share) for share in shares)),
        "numerical_rank": square / sigma[0] ** 2,
    }
    if edges is None:
        return found | dict.fromkeys(WITH_EDGES, math.nan)
    pairs = edges.T.tolist()
    degree = [sum(((i == n) + (j == n)) / 2 for i, j in pairs) + ([n, n] not in pairs) for n in range(len(signals[0]))]
    plain, scaled, of_nodes = [], [], []
    for signal in np.asarray(signals, dtype=float):
        plain += [((signal[i] - signal[j]) ** 2).sum() / 2 for i, j in pairs]
        scaled += [((signal[i] / degree[i] ** 0.5 - signal[j] / degree[j] ** 0.5) ** 2).sum() / 2 for i, j in pairs]
        for node in range(len(signal)):
            distances = [cosine_distance(signal[i], signal[j]) for i, j in pairs if i == node]
            counted = [distance for distance in distances if distance > 1e-12]
            of_nodes += [math.fsum(counted) / len(counted)] if counted else []
    mad = math.fsum(of_nodes) / len(of_nodes) if of_nodes else 0.0
    return found | {
        "dirichlet_energy": math.fsum(plain),
        "rayleigh_quotient": math.fsum(scaled) / square,
        "mad": mad,
    }


def cosine_distance(one, other):
    sizes = np.linalg.norm(one) * np.linalg.norm(other)
    return 1 - one @ other / sizes if sizes else float(np.linalg.norm(one) != np.linalg.norm(other))


def recorded(folder, model, *inputs, steps=1):
    """The run, and the output of each layer with its gradient."""
    outputs, handles = {}, []
    for name, module in model.named_modules():

        def keep(module, args, output, name=name):
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.retain_grad()
            outputs[name] = output

        handles.append(module.register_forward_hook(keep))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gatdiag.watch(model, folder, metrics="full", every=1, laws=False, warn=False):
        for _ in range(steps):
            optimizer.zero_grad()
            out = model(*inputs)
            (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).square().sum().backward()
            optimizer.step()
    for handle in handles:
        handle.remove()
    return gatdiag.load(folder), outputs


def check(run, layer, arranged, output, edges=None):
    """`arranged` permutes a tensor to (signals, nodes, channels)."""
    row = run.layers.set_index("layer").loc[layer]
    for tensor, column in ((output.detach(), str), (output.grad, gradient_name)):
        if tensor is None:
            continue
        expected = slow_columns(arranged(tensor).double().numpy(), edges)
        assert set(expected) == set(OF_OUTPUTS)
        for name, value in expected.items():
            assert row[column(name)] == pytest.approx(value, rel=1e-4, abs=1e-9, nan_ok=True), (layer, column(name))


def flat(*order):
    """All axes but the last of the given order are samples of one signal."""
    return lambda x: x.permute(*order).reshape(1, -1, x.shape[order[-1]])


class ChannelsLast(nn.Module):
    """A block with a parameter of its own, around a normalization of the last axis."""

    def __init__(self, channels):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(channels), nn.Linear(channels, channels)
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 0.7))

    def forward(self, x):
        return x + self.scale * self.linear(self.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class Squared(nn.Module):
    """An activation with a parameter, of half of the channels."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.weight * x.clamp(min=0) ** 2


class BetweenNodes(nn.Module):
    """As in ST-GCN: a convolution of (samples, channels, time, nodes), then products with weighted adjacency matrices.

    Attention over time and nodes, with a residual connection, follows as in SAGAN.
    """

    def __init__(self, inputs, channels, nodes):
        super().__init__()
        self.conv, self.query = nn.Conv2d(inputs, 2 * channels, 1), nn.Conv2d(channels, 3, 1)
        self.adjacency, self.importance = torch.rand(2, nodes, nodes), nn.Parameter(torch.ones(2, nodes, nodes))

    def forward(self, x):
        x = torch.einsum("nkctv,kvw->nctw", self.conv(x).unflatten(1, (2, -1)), self.adjacency * self.importance)
        flat, query = x.flatten(2), self.query(x).flatten(2)
        return torch.bmm(flat, (query.mT @ query).softmax(-1).mT).view(x.shape) + x


def with_dead_channels(conv):
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter[::2] = 0
    return conv


def frozen(module):
    return module.requires_grad_(False)


IMAGES = {
    "two axes of space": (
        lambda: nn.Sequential(
            with_dead_channels(nn.Conv2d(3, 8, 3)), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.PReLU(), nn.Dropout2d(0.0), nn.PReLU(8), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True),
            nn.AdaptiveAvgPool2d(3), ChannelsLast(8), nn.LayerNorm((8, 3, 3)), Squared(),
            nn.ConvTranspose2d(8, 6, 2),
        ),
        (4, 3, 9, 7),
        {**dict.fromkeys(["0", "1", "4", "6", "7", "8", "10", "11", "12", "13"], flat(0, 2, 3, 1)),
         "10.norm": flat(0, 1, 2, 3), "10.linear": flat(0, 1, 2, 3)},
    ),
    "one axis of space": (
        lambda: nn.Sequential(
            with_dead_channels(nn.Conv1d(3, 8, 3)), nn.BatchNorm1d(8), nn.ReLU(), nn.AvgPool1d(2), Squared(),
            nn.InstanceNorm1d(8, affine=True), nn.Conv1d(8, 5, 1),
        ),
        (4, 3, 13),
        dict.fromkeys(["0", "1", "4", "5", "6"], flat(0, 2, 1)),
    ),
    "three axes of space": (
        lambda: nn.Sequential(
            with_dead_channels(nn.Conv3d(2, 4, 2)), nn.ReLU(), nn.MaxPool3d(2), nn.BatchNorm3d(4), nn.PReLU(),
        ),
        (3, 2, 5, 5, 5),
        dict.fromkeys(["0", "3", "4"], flat(0, 2, 3, 4, 1)),
    ),
    "time and nodes": (
        lambda: nn.Sequential(
            with_dead_channels(nn.Conv2d(3, 8, 1)), BetweenNodes(8, 4, 6), nn.BatchNorm2d(4), nn.PReLU(),
        ),
        (2, 3, 5, 6),
        dict.fromkeys(["0", "1", "1.conv", "1.query", "2", "3"], flat(0, 2, 3, 1)),
    ),
    "one image": (
        lambda: nn.Sequential(with_dead_channels(nn.Conv2d(3, 8, 3)), nn.ReLU(), nn.PReLU(), nn.Conv2d(8, 5, 2)),
        (3, 7, 6),
        dict.fromkeys(["0", "2", "3"], flat(1, 2, 0)),
    ),
    "one sequence": (
        lambda: nn.Sequential(with_dead_channels(nn.Conv1d(3, 8, 3)), nn.ReLU(), nn.PReLU(), nn.Conv1d(8, 5, 2)),
        (3, 11),
        dict.fromkeys(["0", "2", "3"], flat(1, 0)),
    ),
    "frozen": (
        lambda: nn.Sequential(
            frozen(with_dead_channels(nn.Conv2d(3, 8, 3))), frozen(nn.BatchNorm2d(8)),
            frozen(nn.InstanceNorm2d(8, affine=True)), nn.Conv2d(8, 5, 2),
        ),
        (4, 3, 7, 6),
        dict.fromkeys(["0", "1", "2", "3"], flat(0, 2, 3, 1)),
    ),
    "sequences with channels last": (
        lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.PReLU(), nn.LayerNorm(8), Squared(), nn.Linear(8, 4)),
        (3, 8, 5),
        dict.fromkeys(["0", "2", "3", "4", "5"], flat(0, 1, 2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", IMAGES)
def test_channels_are_where_the_layer_has_them(tmp_path, case):
    make, shape, arranged = IMAGES[case]
    torch.manual_seed(0)
    run, outputs = recorded(tmp_path / "run", make(), torch.randn(shape))
    assert {*run.layers.layer} == {*arranged}
    for layer, arrange in arranged.items():
        check(run, layer, arrange, outputs[layer])
    if "channels last" not in case:
        assert run.layers.dead_fraction[0] == 0.5


def test_dead_inputs_are_those_of_the_layer_before(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(with_dead_channels(nn.Conv2d(3, 8, 3)), nn.ReLU(), nn.Conv2d(8, 5, 3), nn.ReLU(), Squared())
    with torch.no_grad():
        model[2].bias[:3] = -1e6
    run, _ = recorded(tmp_path / "run", model, torch.randn(4, 3, 9, 7))
    found = run.meta["signals"]["zero_inputs"]
    assert {layer: one["first"] for layer, one in found.items()} == {"2": 0.5, "4": 0.6}
    assert run.layers.set_index("layer").dead_fraction["0"] == found["2"]["first"]


def test_the_loss_on_each_place_of_an_image_is_found(tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1)), torch.randn(4, 3, 9, 7)
    labels = torch.randint(0, 5, (4, 7, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gatdiag.watch(model, tmp_path / "run", laws=False, warn=False):
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
    output = gatdiag.load(tmp_path / "run").meta["signals"]["output"]
    assert output["criterion"] == "cross-entropy"
    assert output["labels"] == labels.flatten().bincount(minlength=5).tolist()


class OnOneGraph(nn.Module):
    """Convolutions along any axis, and layers between them that get no edges."""

    def __init__(self, axis):
        super().__init__()
        self.first = GraphConv(3, 5, node_dim=axis)
        self.linear = nn.Linear(5, 4)
        self.norm = nn.LayerNorm(4)
        self.second = SAGEConv(4, 4, node_dim=axis, aggr="add")

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        return self.second(self.norm(self.linear(x)), edge_index)


@pytest.mark.parametrize(
    ("shape", "axis", "arrange"),
    [
        ((NODES, 3), -2, lambda x: x[None]),
        ((4, NODES, 3), -2, lambda x: x),  # (time, nodes, channels)
        ((2, 4, NODES, 3), -2, lambda x: x.reshape(8, NODES, -1)),
        ((NODES, 4, 3), 0, lambda x: x.transpose(0, 1)),  # (nodes, time, channels)
        ((2, NODES, 4, 3), 1, lambda x: x.transpose(1, 2).reshape(8, NODES, -1)),
        ((7, NODES, 3), -2, lambda x: x),  # more signals than nodes
    ],
)
def test_signals_on_one_graph(tmp_path, shape, axis, arrange):
    torch.manual_seed(0)
    run, outputs = recorded(tmp_path / "run", OnOneGraph(axis), torch.randn(shape), EDGES)
    for layer in ("first", "linear", "norm", "second"):
        check(run, layer, arrange, outputs[layer], EDGES)


def test_signals_on_one_graph_count_as_a_batch_of_graphs(tmp_path):
    torch.manual_seed(0)
    model, x = OnOneGraph(-2), torch.randn(4, NODES, 3)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    batch = Batch.from_data_list([Data(x=each, edge_index=EDGES) for each in x])
    runs = []
    for number, inputs in enumerate([(x, EDGES), (batch.x, batch.edge_index)]):
        model.load_state_dict(start)
        runs.append(recorded(tmp_path / str(number), model, *inputs)[0].layers)
    for column in (name for of_x in OF_OUTPUTS for name in (of_x, gradient_name(of_x))):
        assert runs[0][column].tolist() == pytest.approx(runs[1][column].tolist(), rel=1e-4), column


def test_feature_maps_over_time_and_nodes(tmp_path):
    """(batch, channels, time, nodes), as the convolutions over time of STGCN have it."""

    class Temporal(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.along_time = GCNConv(3, 5), nn.Conv2d(5, 4, (2, 1))

        def forward(self, x, edge_index):
            return self.along_time(self.conv(x, edge_index).relu().permute(0, 3, 1, 2))

    torch.manual_seed(0)
    run, outputs = recorded(tmp_path / "run", Temporal(), torch.randn(2, 4, NODES, 3), EDGES)
    check(run, "conv", lambda x: x.reshape(-1, NODES, 5), outputs["conv"], EDGES)
    check(run, "along_time", lambda x: x.permute(0, 2, 3, 1).reshape(-1, NODES, 4), outputs["along_time"], EDGES)


def test_where_the_nodes_cannot_be_told_nothing_is_recorded_and_a_note_says_so(tmp_path):
    torch.manual_seed(0)
    run, outputs = recorded(tmp_path / "run", OnOneGraph(-2), torch.randn(NODES, NODES, 3), EDGES)
    for layer in ("first", "second"):  # their own convention decides
        check(run, layer, lambda x: x, outputs[layer], EDGES)
    for layer in ("linear", "norm"):
        assert run.layers.set_index("layer").loc[layer, WITH_EDGES].isna().all()
    notes = [note for note in run.meta["notes"] if "depends on edges" in note]
    assert notes == [
        f"what depends on edges, of {layer}: several axes of its output, of shape (6, 6, 4), may be that of the nodes"
        for layer in ("linear", "norm")
    ]


def test_edges_of_several_kinds_of_nodes_are_no_edges_of_one(tmp_path):
    class Hetero(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = HeteroConv(
                {("a", "to", "a"): GCNConv(3, 4), ("b", "to", "a"): SAGEConv((3, 3), 4), ("a", "to", "b"): GATConv(
                    (3, 3), 4, add_self_loops=False)}
            )  # fmt: skip
            self.head = nn.Linear(4, 2)

        def forward(self, a, b, edges, between):
            x = self.conv(
                {"a": a, "b": b}, {("a", "to", "a"): edges, ("b", "to", "a"): between, ("a", "to", "b"): between}
            )
            return self.head(x["b"].relu())

    torch.manual_seed(0)
    model = Hetero()
    between = torch.tensor([[0, 1, 2], [1, 2, 0]])
    run, outputs = recorded(tmp_path / "run", model, torch.randn(NODES, 3), torch.randn(NODES, 3), EDGES, between)
    names = [name for name in run.layer_names if name != "head"]
    within = next(name for name in names if isinstance(model.get_submodule(name), GCNConv))
    check(run, within, lambda x: x[None], outputs[within], EDGES)
    table = run.layers.set_index("layer")
    for name in ({*names} - {within}) | {"head"}:
        assert table.loc[name, WITH_EDGES].isna().all()
        assert table.output_norm[name] > 0
    noted = [note for note in run.meta["notes"] if "nodes of several kinds" in note]
    assert len(noted) == 2


def test_words_are_no_edges(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    run, _ = recorded(tmp_path / "run", model, torch.tensor([[0, 1, 2, 3], [1, 4, 0, 0]]))
    assert run.layers[WITH_EDGES].isna().all(axis=None)
