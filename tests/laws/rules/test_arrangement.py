"""Rules of operations that move, repeat, select and join entries, against what the operations do."""

import pytest
import torch
from torch import Tensor

from tests.laws.rules.homogeneity import Case, case, check, signed

aten = torch.ops.aten
torch.manual_seed(1)
X, Y, W = signed(2, 3), signed(2, 3), signed(2, 4)
MATRIX, CUBE = signed(3, 3), signed(2, 2, 3)
COMPLEX = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128)
INDEX = torch.tensor([2, 0, 0])
MASK = torch.tensor([[True, False, True], [False, False, True]])


def written(tensor: Tensor, value: Tensor) -> Tensor:
    return aten.select_scatter(tensor, value, 0, 1)


def with_zeros(make: object) -> object:
    """Zeros that no parameter touched take the scale of what is added to them."""
    return lambda x: make(x) + x  # type: ignore[operator]


CASES: dict[str, Case] = {
    "expand": case(lambda x: aten.expand(x, [3, 2, 3]), signed(2, 1)),
    "permute": case(lambda x: aten.permute(x, [2, 0, 1]), CUBE),
    "transpose": case(lambda x: aten.transpose(x, 0, 1), X),
    "t": case(aten.t, X),
    "squeeze": case(aten.squeeze, signed(2, 1, 3)),
    "unsqueeze": case(lambda x: aten.unsqueeze(x, 1), X),
    "slice": case(lambda x: aten.slice(x, 1, 1, 3), X),
    "select": case(lambda x: aten.select(x, 1, -1), X),
    "split": case(lambda x: aten.split(x, 2, 1), X),
    "split_with_sizes": case(lambda x: aten.split_with_sizes(x, [1, 2], 1), X),
    "unsafe_split": case(lambda x: aten.unsafe_split(x, 2, 1), X),
    "unsafe_split_with_sizes": case(lambda x: aten.unsafe_split_with_sizes(x, [1, 2], 1), X),
    "unsafe_chunk": case(lambda x: aten.unsafe_chunk(x, 2, 1), X),
    "unbind": case(lambda x: aten.unbind(x, 1), X),
    "chunk": case(lambda x: aten.chunk(x, 2, 1), X),
    "tensor_split": case(lambda x: aten.tensor_split(x, 2, 1), X),
    "diagonal": case(aten.diagonal, MATRIX),
    "flip": case(lambda x: aten.flip(x, [1]), X),
    "roll": case(lambda x: aten.roll(x, [1], [1]), X),
    "unfold": case(lambda x: aten.unfold(x, 1, 2, 1), X),
    "repeat": case(lambda x: aten.repeat(x, [2, 2]), X),
    "movedim": case(lambda x: aten.movedim(x, 0, 2), CUBE),
    "swapaxes": case(lambda x: aten.swapaxes(x, 0, 2), CUBE),
    "narrow": case(lambda x: aten.narrow(x, 1, 1, 2), X),
    "take_along_dim": case(lambda x: aten.take_along_dim(x, torch.tensor([[2], [0]]), 1), X),
    "repeat_interleave": case(lambda x: aten.repeat_interleave(x, torch.tensor([1, 3]), 0), X),
    "pixel_shuffle": case(lambda x: aten.pixel_shuffle(x, 2), signed(1, 4, 1, 2)),
    "take": case(lambda x: aten.take(x, torch.tensor([5, 0, 0])), X),
    "pixel_unshuffle": case(lambda x: aten.pixel_unshuffle(x, 2), signed(1, 1, 2, 4)),
    **{
        name: case(lambda x, name=name: getattr(aten, name)(x, 2), signed(1, 4, 2, 1))
        for name in ("channel_shuffle", "native_channel_shuffle")
    },
    "rot90": case(lambda x: aten.rot90(x, 1, [0, 1]), X),
    "expand_copy": case(lambda x: aten.expand_copy(x, [3, 2, 3]), signed(2, 1)),
    "permute_copy": case(lambda x: aten.permute_copy(x, [2, 0, 1]), CUBE),
    "transpose_copy": case(lambda x: aten.transpose_copy(x, 0, 1), X),
    "t_copy": case(aten.t_copy, X),
    "squeeze_copy": case(aten.squeeze_copy, signed(2, 1, 3)),
    "unsqueeze_copy": case(lambda x: aten.unsqueeze_copy(x, 1), X),
    "slice_copy": case(lambda x: aten.slice_copy(x, 1, 1, 3), X),
    "select_copy": case(lambda x: aten.select_copy(x, 1, -1), X),
    "split_copy": case(lambda x: aten.split_copy(x, 2, 1), X),
    "split_with_sizes_copy": case(lambda x: aten.split_with_sizes_copy(x, [1, 2], 1), X),
    "unbind_copy": case(lambda x: aten.unbind_copy(x, 1), X),
    "diagonal_copy": case(aten.diagonal_copy, MATRIX),
    "unfold_copy": case(lambda x: aten.unfold_copy(x, 1, 2, 1), X),
    "view_copy": case(lambda x: aten.view_copy(x, [3, 2]), X),
    **{
        f"{kind}_pad{ndim}d": case(
            lambda x, op=f"{kind}_pad{ndim}d", pad=pad: getattr(aten, op)(x, pad), signed(*shape)
        )
        for kind in ("reflection", "replication")
        for ndim, shape, pad in (
            (1, (2, 3), [1, 2]),
            (2, (2, 2, 2), [1, 0, 0, 1]),
            (3, (1, 2, 2, 2), [1, 0, 0, 1, 1, 1]),
        )
    },
    **{
        f"{kind}{ndim}d": case(
            lambda x, op=f"{kind}{ndim}d", size=size: getattr(aten, op)(x, size), signed(1, 2, *size)[..., :2]
        )
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for ndim, size in ((1, [5]), (2, [2, 3]), (3, [1, 2, 4]))
    },
    "im2col": case(lambda x: aten.im2col(x, [2, 1], [1, 1], [1, 0], [1, 1]), signed(1, 2, 2, 2)),
    "_pack_padded_sequence": case(
        lambda x: aten._pack_padded_sequence(x, torch.tensor([3, 2]), False)[0], signed(3, 2, 2)
    ),
    "masked_scatter": case(lambda x, y: aten.masked_scatter(x, MASK, y), X, signed(2, 2)),
    "block_diag": case(lambda x, y: aten.block_diag([x, y]), X, MATRIX),
    "_embedding_bag": case(
        lambda x: aten._embedding_bag(x, torch.tensor([0, 2, 2, 1]), torch.tensor([0, 2]))[0], MATRIX
    ),
    "_embedding_bag_forward_only": case(
        lambda x: aten._embedding_bag_forward_only(x, torch.tensor([0, 2, 2, 1]), torch.tensor([0, 3]))[0],
        MATRIX,
        missed=3,
    ),
    "view": case(lambda x: aten.view(x, [3, 2]), X),
    "_unsafe_view": case(lambda x: aten._unsafe_view(x, [6]), X),
    "reshape": case(lambda x: aten.reshape(x.t(), [2, 3]), X),
    "_reshape_alias": case(lambda x: aten._reshape_alias(x, [3, 2], [2, 1]), X),
    "flatten": case(aten.flatten, CUBE),
    "unflatten": case(lambda x: aten.unflatten(x, 1, [2, 2]), W),
    "as_strided": case(lambda x: aten.as_strided(x, [2, 2], [3, 1], 1), X),
    "index_select": case(lambda x: aten.index_select(x, 1, INDEX), X),
    "gather": case(lambda x: aten.gather(x, 1, torch.tensor([[2, 0], [0, 0]])), X),
    "index": case(lambda x: aten.index(x, [None, INDEX]), X),
    "_unsafe_index": case(lambda x: aten._unsafe_index(x, [None, INDEX]), X),
    "cat": case(lambda x, w: aten.cat([x, w], 1), X, W),
    "stack": case(lambda x, y: aten.stack([x, y], 1), X, Y),
    "diagonal_scatter": case(lambda x, y: aten.diagonal_scatter(x, y, 1), MATRIX, signed(2)),
    "diag_embed": case(lambda x: aten.diag_embed(x, 1), X),
    "slice_backward": case(lambda x: aten.slice_backward(x, [2, 6], 1, 1, 6, 2), X),
    "select_backward": case(lambda x: aten.select_backward(x, [2, 3, 2], 2, 1), X),
    "diagonal_backward": case(lambda x: aten.diagonal_backward(x, [3, 2, 3], 0, 0, 2), X),
    "view_as_complex": case(lambda x: aten.view_as_complex(x) * COMPLEX, signed(2, 2)),
    "view_as_real": case(lambda x: aten.view_as_real(x * COMPLEX), signed(2)),
    "complex": case(lambda x, y: aten.complex(x, y) * COMPLEX, signed(2), signed(2)),
    "masked_select": case(lambda x: aten.masked_select(x, torch.tensor([[True, False, True]])), X),
    "constant_pad_nd": case(lambda x: aten.constant_pad_nd(x, [1, 2], 0), X),
    "slice_scatter": case(lambda x, y: aten.slice_scatter(x, y, 1, 1, 3), X, signed(2, 2)),
    "select_scatter": case(written, X, signed(3)),
    "embedding": case(lambda x: aten.embedding(x, torch.tensor([0, 2, 2])), MATRIX),
    **{name: case(with_zeros(lambda x: aten.zeros([2, 3], dtype=x.dtype)), X) for name in ("zeros",)},
    "zeros_like": case(with_zeros(aten.zeros_like), X),
    "new_zeros": case(with_zeros(lambda x: aten.new_zeros(x, [3])), X),
    "zero": case(with_zeros(aten.zero), X),
    "zero_": case(lambda x, y: aten.zero_(x) + y, X, Y),
    **{
        name: case(lambda x, make=make: make(x).copy_(x), X)
        for name, make in {
            "empty": lambda x: aten.empty([2, 3], dtype=x.dtype),
            "empty_like": aten.empty_like,
            "new_empty": lambda x: aten.new_empty(x, [2, 3]),
            "empty_strided": lambda x: aten.empty_strided([2, 3], [3, 1], dtype=x.dtype),
            "new_empty_strided": lambda x: aten.new_empty_strided(x, [2, 3], [3, 1]),
            "empty_permuted": lambda x: aten.empty_permuted([2, 3], [0, 1], dtype=x.dtype),
        }.items()
    },
    "lift": case(lambda x: x + aten.lift(torch.zeros(1).double()), X),
    "lift_fresh": case(lambda x: x + aten.lift_fresh(torch.zeros(1).double()), X),
    "lift_fresh_copy": case(lambda x: x + aten.lift_fresh_copy(torch.zeros(1).double()), X),
    "full": case(lambda x: x + aten.full([2, 3], 0.0, dtype=x.dtype), X),
    "new_full": case(lambda x: x + aten.new_full(x, [3], 0.0), X),
    "scalar_tensor": case(lambda x: torch.maximum(x, aten.scalar_tensor(0.0, dtype=x.dtype)), X),
}
FURTHER: dict[str, Case] = {
    "view_as_complex and back": case(lambda x: aten.view_as_real(aten.view_as_complex(x)), X[:, :2], missed=2),
    "complex of a broadcast": case(lambda x, y: aten.complex(x, y) * COMPLEX, signed(3, 2), signed(2)),
    "diag_embed of a matrix times another": case(lambda x, w: aten.diag_embed(x) @ w, X, signed(3, 2)),
    "masked_select of a row": case(lambda x: aten.masked_select(x, MASK), signed(3)),
    "as_strided of a transpose": case(lambda x: aten.as_strided(x.t(), [2, 2], [3, 1], 1), X, missed=6),
    "index by a mask": case(lambda x: x[MASK], X),
    "index by two": case(lambda x: x[torch.tensor([1, 0]), torch.tensor([2, 2])], X),
    "index with none between": case(lambda x: x[torch.tensor([1, 0]), :, torch.tensor([2, 2])], CUBE),
    "cat of three broadcast labels": case(
        lambda x, y: torch.cat([x.expand(2, 3), y, torch.zeros(2, 1).double()], 1), signed(2, 1), Y
    ),
    "cat with a constant": case(lambda x: torch.cat([x, torch.ones(2, 1).double()], 1), X),
    "pad with one": case(lambda x: aten.constant_pad_nd(x, [1, 0], 1.0), X, missed=6),
    "pad then add": case(lambda x, y: aten.constant_pad_nd(x, [1, 0], 0.0) + y, X, W),
    "reflection of equal rows": case(lambda x: aten.reflection_pad1d(x.expand(2, 3), [1, 1]), signed(2, 1)),
    "pad an axis of three": case(lambda x: aten.constant_pad_nd(x, [0, 0, 1, 0], 0), CUBE),
    "shuffled by a view": case(lambda x: x.view(1, 2, 2, 2).transpose(1, 2).reshape(1, 4, 2), signed(1, 4, 2)),
    "windows and back": case(
        lambda x: torch.nn.functional.fold(torch.nn.functional.unfold(x, 2), (2, 3), 2), signed(1, 1, 2, 3), missed=5
    ),
    "bag of weighted rows": case(
        lambda x, w: aten._embedding_bag(x, torch.tensor([0, 2, 1]), torch.tensor([0]), False, 0, False, w, False, -1)[
            0
        ],
        MATRIX,
        signed(3),
        missed=2,
    ),
    "stack in front": case(lambda x, y: torch.stack([x, y, x]), X, Y),
    "full of ones is a constant": case(lambda x: x + aten.full([2, 3], 1.0, dtype=x.dtype), X),
    "full of infinities": case(lambda x: torch.minimum(x, aten.full([3], float("inf"), dtype=x.dtype)), X),
    "product of a reshape": case(lambda x, w: (x.reshape(3, 2) @ w).relu(), X, W),
}


@pytest.mark.parametrize("name", [*CASES, *FURTHER])
def test_the_rule_says_what_the_operation_does(name: str) -> None:
    check((CASES | FURTHER)[name])
