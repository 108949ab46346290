"""Which way round a matrix is stored, and what its layer is called."""

import pytest

from gatdiag.checkpoint.modules import Modules, output_axes


def leaf(*shape, bias=None):
    return {"weight": shape} if bias is None else {"weight": shape, "bias": (bias,)}


def axes(pattern, *leaves):
    """Of the layers of a series."""
    found = output_axes({pattern.replace("#", str(number)): own for number, own in enumerate(leaves)})
    return list(found.values())


@pytest.mark.parametrize("pattern", ["conv#", "conv_mlp.#", "convs.#.fc", "layers.#"])
def test_biases_of_a_series_tell_for_its_square_matrices(pattern):
    assert axes(pattern, leaf(64, 20, bias=64), leaf(64, 64, bias=64), leaf(64, 64), leaf(7, 64, bias=7)) == [0] * 4
    assert axes(pattern, leaf(20, 64, bias=64), leaf(64, 64, bias=64), leaf(64, 64), leaf(64, 7, bias=7)) == [1] * 4


def test_without_biases_the_one_order_that_fits_tells():
    assert axes("layers.#", leaf(64, 20), leaf(64, 64), leaf(7, 64)) == [0] * 3
    assert axes("layers.#", leaf(20, 64), leaf(64, 64), leaf(64, 7)) == [1] * 3
    assert axes("layers.#", leaf(4, 5), leaf(5, 4)) == [None] * 2
    assert axes("layers.#", leaf(4, 5)) == [0]


def test_numbers_of_a_series_count_as_such():
    leaves = {f"layers.{number}": leaf(number + 1, number) for number in (*range(10, 13), *range(1, 10))}
    assert set(output_axes(leaves).values()) == {0}


def test_what_nothing_tells_is_in_doubt():
    assert axes("conv#", leaf(8, 8, bias=8)) == axes("layers.#", leaf(8, 8)) == [None]
    assert axes("layers.#", *[leaf(8, 8, bias=8)] * 3) == [None] * 3
    assert axes("layers.#", leaf(8, 5, bias=8), leaf(8, 8, bias=8), leaf(8, 7, bias=7)) == [0, None, 1]


def test_a_linear_map_that_is_called_so_has_its_outputs_in_rows():
    for name in ("lin", "lin2", "linear", "fc1", "lin_out"):
        assert output_axes({f"interactions.0.conv.{name}": leaf(8, 8, bias=8)}).popitem()[1] == 0
    assert axes("mlp.lins.#", leaf(8, 8, bias=8), leaf(8, 8)) == [0] * 2
    assert axes("online.#", leaf(8, 8, bias=8)) == [None]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("interactions.0.conv.lin2", "Linear"),
        ("interactions.0.conv.nn.2", "Linear"),
        ("conv_mlp.0", "Linear"),
        ("conv1", "GCNConv"),
        ("convs.0", "GCNConv"),
        ("layers.0", "Linear"),
    ],
)
def test_what_a_square_matrix_with_a_bias_is_called(path, kind):
    assert Modules([(f"{path}.weight", (8, 8)), (f"{path}.bias", (8,))], []).kind(path) == kind
