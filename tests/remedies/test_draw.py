import pytest
import torch

from gatdiag.errors import ModelError
from gatdiag.remedies.draw import Mirror, looks_linear_, mirrors
from gatdiag.remedies.stack import neurons_of_stack
from gatdiag.structure import discover
from tests.remedies.stacks import STACKS


def looks_linear(shape, mirror):
    return looks_linear_(torch.empty(shape), mirror, torch.Generator().manual_seed(0)).double()


def orthonormal(u):
    """Whether its rows are, or else its columns."""
    small = u @ u.T if u.shape[0] <= u.shape[1] else u.T @ u
    return torch.allclose(small, torch.eye(len(small), dtype=u.dtype), atol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (4, 6), (6, 6), (7, 5), (5, 8)])
def test_a_hidden_matrix_has_four_blocks(rows, columns):
    weight = looks_linear((rows, columns), Mirror(blocks=1, columns=True))
    tall, wide = -(-rows // 2), -(-columns // 2)
    u = weight[:tall, :wide]
    assert orthonormal(u)
    expected = torch.cat([torch.cat([u, -u], 1), torch.cat([-u, u], 1)])[:rows, :columns]
    assert torch.equal(weight, expected)


def test_first_and_last_matrices_have_two():
    first, last = looks_linear((6, 5), Mirror(blocks=1)), looks_linear((3, 6), Mirror(columns=True))
    assert orthonormal(first[:3])
    assert torch.equal(first[3:], -first[:3])
    assert orthonormal(last[:, :3])
    assert torch.equal(last[:, 3:], -last[:, :3])


def test_a_matrix_that_is_both_first_and_last_is_orthogonal():
    assert orthonormal(looks_linear((3, 6), Mirror()))


def test_averaged_heads_are_blocks_of_their_own():
    weight = looks_linear((8, 4), Mirror(blocks=2, columns=True))
    for block in (weight[:4], weight[4:]):
        assert torch.equal(block[:2], -block[2:])
    assert not torch.allclose(weight[:4], weight[4:])


@pytest.mark.parametrize("heads", [2, 3, 8])
def test_the_mean_of_averaged_heads_is_looks_linear(heads):
    blocks = looks_linear((8 * heads, 8), Mirror(blocks=heads, columns=True)).view(heads, 8, 8)
    mean = blocks.mean(0) * heads**0.5
    assert orthonormal(mean[:4, :4])
    assert torch.allclose(mean, torch.cat([torch.cat([mean[:4, :4], -mean[:4, :4]], 1), -mean[:4]]))
    for axis in (1, 2):
        torch.testing.assert_close(
            blocks.square().sum((0, axis)), torch.full((8,), 2.0 * heads).double(), rtol=1e-5, atol=0
        )


def test_a_square_hidden_matrix_has_squared_norms_of_two():
    weight = looks_linear((64, 64), Mirror(blocks=1, columns=True))
    for axis in range(2):
        assert weight.square().sum(axis).tolist() == pytest.approx([2.0] * 64, rel=1e-5)


def test_columns_of_a_last_matrix_that_is_narrow_are_no_unit_vectors():
    columns = looks_linear((7, 64), Mirror(columns=True))[:, :32].square().sum(0)
    assert float(columns.mean()) == pytest.approx(7 / 32)
    assert 0.02 < columns.min() < columns.max() < 0.6


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gatv2", [(1, False), (1, True), (1, True), (0, True)]),
        ("gatv2 of one output", [(1, False), (1, True), (0, True)]),
        ("gatv2 with concatenated heads", [(1, False), (1, True), (1, True), (0, True)]),
        ("gatv2 with averaged heads", [(2, False), (3, True), (0, True)]),
    ],
)
def test_mirrors_are_read_off_the_neurons(name, expected):
    model = STACKS[name]()
    found = mirrors(neurons_of_stack(model, discover(model)))
    assert [(m.blocks, m.columns) for m in (found[f"convs.{n}.lin_l.weight"] for n in range(len(expected)))] == expected


def test_a_neuron_between_unlike_widths_has_no_mirror():
    neurons = neurons_of_stack(STACKS["gcn"](), discover(STACKS["gcn"]()))
    with pytest.raises(ModelError, match="feed each other whole"):
        mirrors([neurons[0][:1]])
