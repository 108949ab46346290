"""Blocks of tensors of every number type, against what torch converts the whole tensor to."""

import pytest
import torch

from gatdiag.checkpoint.blocks import blocks, shape_of
from gatdiag.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per:UserWarning")


def whole(tensor):
    """The matrix that the blocks make up."""
    joined = torch.full(shape_of(tensor), torch.nan, dtype=torch.float64)
    for block in blocks(tensor):
        assert block.values.numel() <= 1 << 16
        assert joined[block.rows, block.columns].isnan().all()
        joined[block.rows, block.columns] = block.values.double()
    return joined


VALUES = torch.linspace(-3, 3, 60).view(5, 4, 3)


@pytest.mark.parametrize(
    "tensor",
    [
        VALUES,
        VALUES.double(),
        VALUES.half(),
        VALUES.bfloat16(),
        VALUES.to(torch.float8_e4m3fn),
        VALUES.to(torch.float8_e5m2),
        (10 * VALUES).int(),
        torch.tensor([2**53 - 1, 3]),
        VALUES > 0,
        VALUES.transpose(0, 2),
        VALUES[:, 0, 0],
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.empty(3, 0),
        torch.linspace(-1, 1, 300_000),
        torch.linspace(-1, 1, 300_000).view(2, 150_000),
        torch.linspace(-1, 1, 300_000).view(1000, 300),
    ],
    ids=lambda tensor: f"{tensor.dtype} {list(tensor.shape)}",
)
def test_every_entry_once(tensor):
    torch.testing.assert_close(whole(tensor), tensor.double().reshape(shape_of(tensor)), rtol=0, atol=0)


def test_quantized_values_are_what_they_stand_for():
    tensor = torch.quantize_per_tensor(VALUES, 0.05, 7, torch.quint8)
    torch.testing.assert_close(whole(tensor), tensor.dequantize().double().reshape(5, 12))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_values_quantized_by_channel_are_what_they_stand_for(axis):
    stored = torch.arange(60, dtype=torch.int8).view(5, 4, 3)
    channels = torch.arange(stored.shape[axis])
    scales, zeros = 0.1 + channels.double(), channels - 1
    tensor = torch._make_per_channel_quantized_tensor(stored, scales, zeros, axis)
    expected = torch.stack(
        [(stored.select(axis, at).double() - zeros[at]) * scales[at] for at in channels.tolist()], dim=axis
    )
    torch.testing.assert_close(whole(tensor), expected.reshape(5, 12), rtol=1e-6, atol=1e-6)


def test_complex_values_by_magnitude_and_sparse_ones_as_stored():
    assert whole(torch.tensor([[3 + 4j]])).item() == 5
    sparse = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], torch.tensor([1.0, 2.0, 4.0]), (10**6, 10**6))
    assert [block.values.flatten().tolist() for block in blocks(sparse)] == [[3.0, 4.0]]
    assert [block.values.tolist() for block in blocks(torch.eye(2).to_sparse_csr())] == [[[1.0], [1.0]]]


def test_a_tensor_without_values_is_refused():
    with pytest.raises(InputError, match="meta device"):
        list(blocks(torch.empty(3, device="meta")))
