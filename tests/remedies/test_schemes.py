import pytest
import torch
from torch import nn
from torch_geometric.nn import GATv2Conv, RGCNConv

from gatdiag.errors import ModelError
from gatdiag.experiments.models import Stack, gat
from gatdiag.remedies import initialize_
from gatdiag.remedies.balance import find_stack_neurons
from gatdiag.remedies.schemes import LooksLinearLayout, looks_linear_, looks_linear_layouts
from gatdiag.structure import discover
from tests.remedies.stacks import STACKS, seeded


def looks_linear(shape, layout):
    return looks_linear_(torch.empty(shape), layout, seeded()).double()


def orthonormal(u):
    """Whether its rows are, or else its columns."""
    small = u @ u.T if u.shape[0] <= u.shape[1] else u.T @ u
    return torch.allclose(small, torch.eye(len(small), dtype=u.dtype), atol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (4, 6), (6, 6), (7, 5), (5, 8)])
def test_a_hidden_matrix_has_four_blocks(rows, columns):
    weight = looks_linear((rows, columns), LooksLinearLayout(blocks=1, columns=1))
    tall, wide = -(-rows // 2), -(-columns // 2)
    u = weight[:tall, :wide]
    assert orthonormal(u)
    expected = torch.cat([torch.cat([u, -u], 1), torch.cat([-u, u], 1)])[:rows, :columns]
    assert torch.equal(weight, expected)


def test_a_matrix_that_is_both_first_and_last_is_orthogonal():
    assert orthonormal(looks_linear((3, 6), LooksLinearLayout()))


@pytest.mark.parametrize("heads", [2, 3, 8])
def test_the_mean_of_averaged_heads_is_looks_linear(heads):
    blocks = looks_linear((8 * heads, 8), LooksLinearLayout(blocks=heads, columns=1)).view(heads, 8, 8)
    mean = blocks.mean(0) * heads**0.5
    assert orthonormal(mean[:4, :4])
    assert torch.allclose(mean, torch.cat([torch.cat([mean[:4, :4], -mean[:4, :4]], 1), -mean[:4]]))
    for axis in (1, 2):
        torch.testing.assert_close(
            blocks.square().sum((0, axis)), torch.full((8,), 2.0 * heads).double(), rtol=1e-5, atol=0
        )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gatv2", [(1, False), (1, True), (1, True), (0, True)]),
        ("gatv2 of one output", [(1, False), (1, True), (0, True)]),
        ("gatv2 with concatenated heads", [(1, False), (1, True), (1, True), (0, True)]),
        ("gatv2 with averaged heads", [(2, False), (3, True), (0, True)]),
    ],
)
def test_layouts_are_read_off_the_neurons(name, expected):
    model = STACKS[name]()
    found = looks_linear_layouts(find_stack_neurons(model, discover(model)))
    assert [(m.blocks, m.columns) for m in (found[f"convs.{n}.lin_l.weight"] for n in range(len(expected)))] == expected


class Transposed(nn.Module):
    """A weight whose rows are what it reads."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))

    def forward(self, x):
        return x @ self.weight


def test_weights_whose_rows_are_what_they_read_are_mirrored_the_other_way():
    model, x = nn.Sequential(Transposed(5, 6), nn.ReLU(), Transposed(6, 3)), torch.randn(4, 5, generator=seeded())
    initialize_(model, "orthogonal", x, generator=seeded())
    assert torch.equal(model[0].weight[:, :3], -model[0].weight[:, 3:])
    assert torch.equal(model[2].weight[:3], -model[2].weight[3:])
    torch.testing.assert_close(model(-x), -model(x))


def test_a_neuron_between_unlike_widths_has_no_layout():
    neurons = find_stack_neurons(STACKS["gcn"](), discover(STACKS["gcn"]()))
    with pytest.raises(ModelError, match="read all outputs of one another"):
        looks_linear_layouts([neurons[0][:1]])


@pytest.mark.parametrize(
    ("scheme", "draw"),
    [
        ("xavier", nn.init.xavier_normal_),
        ("xavier_uniform", nn.init.xavier_uniform_),
        ("kaiming", lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu")),
    ],
)
def test_matrices_are_torchs_draw_for_draw(scheme, draw):
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    torch.manual_seed(3)
    expected = [draw(torch.empty(8, 5)), draw(torch.empty(3, 8))]
    torch.manual_seed(3)
    initialize_(model, scheme)
    assert torch.equal(model[0].weight, expected[0])
    assert torch.equal(model[2].weight, expected[1])
    assert not model[0].bias.any()


@pytest.mark.parametrize(("scheme", "variance"), [("xavier", 2 / 80), ("xavier_uniform", 2 / 80), ("kaiming", 2 / 60)])
def test_each_matrix_of_a_stack_is_drawn_by_itself(scheme, variance):
    conv = RGCNConv(60, 20, num_relations=4)
    initialize_(conv, scheme, generator=seeded())
    assert conv.weight.var((1, 2)).tolist() == pytest.approx([variance] * 4, rel=0.15)
    blocks = RGCNConv(60, 20, num_relations=30, num_blocks=5)
    initialize_(blocks, scheme, generator=seeded())
    assert float(blocks.weight.detach().var()) == pytest.approx(5 * variance, rel=0.15)


def test_kernels_of_convolutions_are_torchs_draw_for_draw():
    model = nn.Sequential(nn.Conv1d(5, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 3, 2))
    initialize_(model, "xavier", generator=seeded())
    generator = seeded()
    for kernel in (parameter for parameter in model.parameters() if parameter.dim() > 1):
        assert torch.equal(kernel, nn.init.xavier_normal_(torch.empty(kernel.shape), generator=generator))


def test_the_identity_is_in_hidden_layers_and_xavier_at_both_ends():
    plain, doubled = (gat(5, 3, hidden_channels=6, layers=4) for _ in range(2))
    initialize_(plain, "identity", generator=seeded())
    initialize_(doubled, "looks_linear_identity", generator=seeded())
    eye = torch.eye(3)
    for model, expected in (
        (plain, torch.eye(6)),
        (doubled, torch.cat([torch.cat([eye, -eye], 1), torch.cat([-eye, eye], 1)])),
    ):
        first, *hidden, last = (conv.lin_l.weight for conv in model.convs)
        assert all(torch.equal(weight, expected) for weight in hidden)
        assert torch.equal(first, nn.init.xavier_normal_(torch.empty(6, 5), generator=seeded()))
        assert last.std() > 0.1
        assert not any(conv.att.any() for conv in model.convs)


@pytest.mark.parametrize(("scheme", "norm"), [("identity", 1.0), ("looks_linear_identity", 2.0)])
def test_balanced_identities_stay_as_they_are(scheme, norm):
    plain, balanced = (gat(5, 3, hidden_channels=6, layers=4) for _ in range(2))
    initialize_(plain, scheme, generator=seeded())
    initialize_(balanced, scheme, balanced=True, generator=seeded())
    for a, b in zip(plain.convs[1:3], balanced.convs[1:3], strict=True):
        torch.testing.assert_close(a.lin_l.weight, b.lin_l.weight)
    ends = balanced.convs[0].lin_l.weight.square().sum(1), balanced.convs[3].lin_l.weight.square().sum(0)
    assert [n for end in ends for n in end.tolist()] == pytest.approx([norm] * 12)


def test_heads_that_are_averaged_have_the_identity_in_their_mean_and_differ():
    convs = [
        GATv2Conv(n, m, heads=h, concat=False, share_weights=True) for n, m, h in ((5, 6, 1), (6, 6, 3), (6, 2, 1))
    ]
    model = Stack(convs)
    initialize_(model, "identity", generator=seeded())
    heads = model.convs[1].lin_l.weight.detach().view(3, 6, 6)
    mean = heads.mean(0)
    torch.testing.assert_close(mean, mean[0, 0] * torch.eye(6))
    assert not torch.allclose(heads[0], heads[1])
