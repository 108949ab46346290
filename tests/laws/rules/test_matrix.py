"""Rules of products that sum over an index, against what the operations do."""

import pytest
import torch

from tests.laws.rules.homogeneity import Case, case, check, signed

aten = torch.ops.aten
torch.manual_seed(3)
A, B, V = signed(2, 3), signed(3, 2), signed(3)
BATCHED, OTHER = signed(2, 2, 3), signed(2, 3, 2)
CONV = ([1], [0], [1], False, [0], 1)
GROUPED = ([1], [0], [1], False, [0], 2)
TURNED = ([1], [0], [1], True, [0], 1)
FLAT, FILTER, BIAS = signed(1, 2, 3), signed(3, 2, 2), signed(3)
ADJACENCY = torch.tensor([[0.0, 2.0], [1.0, 0.5], [0.0, 3.0]], dtype=torch.float64)


def sparse(layout: torch.layout) -> torch.Tensor:
    return ADJACENCY.to_sparse(layout=layout)


CASES: dict[str, Case] = {
    "mm": case(aten.mm, A, B),
    "bmm": case(aten.bmm, BATCHED, OTHER),
    "matmul": case(aten.matmul, BATCHED, B),
    "_sparse_mm": case(lambda x: aten._sparse_mm(sparse(torch.sparse_coo), x), A),
    "_sparse_mm_reduce_impl": case(lambda x: torch.sparse.mm(sparse(torch.sparse_csr), x, "mean"), A),
    "_sparse_sparse_matmul": case(lambda x: torch.sparse.mm(sparse(torch.sparse_coo), x.to_sparse()), A, missed=2),
    "mv": case(aten.mv, A, V),
    "dot": case(aten.dot, V, signed(3)),
    "vdot": case(aten.vdot, V, signed(3)),
    "addmm": case(aten.addmm, signed(2), A, B),
    "baddbmm": case(aten.baddbmm, signed(2, 2, 2), BATCHED, OTHER),
    "addmv": case(aten.addmv, signed(2), A, V),
    "_sparse_addmm": case(lambda x, y: aten._sparse_addmm(x, sparse(torch.sparse_coo), y), signed(3, 3), A),
    "linear": case(aten.linear, A, signed(2, 3), signed(2)),
    "convolution": case(lambda x, w, b: aten.convolution(x, w, b, *CONV), FLAT, FILTER, BIAS),
    "_convolution": case(
        lambda x, w, b: aten._convolution(x, w, b, *CONV, False, False, False, False), FLAT, FILTER, BIAS
    ),
    "_trilinear": case(
        lambda x, w, y: aten._trilinear(x, w, y, [1, 3], [0], [1, 2], [2, 3]),
        signed(2, 2),
        signed(2, 2, 3),
        signed(2, 3),
    ),
    "addr": case(aten.addr, signed(3, 2), V, signed(2)),
    "addbmm": case(aten.addbmm, signed(2, 2), BATCHED, OTHER),
    "linalg_cross": case(aten.linalg_cross, A, signed(2, 3)),
    "linalg_inv_ex": case(lambda x: aten.linalg_inv_ex(x)[0], signed(3, 3), missed=4),
    "linalg_cholesky_ex": case(lambda x: aten.linalg_cholesky_ex(x @ x.mT)[0], signed(2, 2), missed=1),
    "linalg_qr": case(aten.linalg_qr, signed(3, 2), missed=1),
    "_linalg_eigh": case(lambda x: aten._linalg_eigh(x)[0], signed(2, 2), missed=1),
    "_linalg_svd": case(lambda x: aten._linalg_svd(x)[1], signed(3, 2)),
    "ger": case(aten.ger, V, signed(2)),
    "outer": case(aten.outer, V, signed(2)),
}
FURTHER: dict[str, Case] = {
    "a matrix with itself": case(lambda x: x @ x.t(), A),
    "matmul with a constant": case(lambda x: x @ ADJACENCY, A),
    "matmul of vectors": case(aten.matmul, V, signed(3)),
    "matmul of a matrix and a vector": case(aten.matmul, BATCHED, V),
    "matmul broadcast over a batch": case(aten.matmul, signed(2, 1, 2, 2), signed(2, 2, 2)),
    "addmm without its summand": case(lambda s, x, w: aten.addmm(s, x, w, beta=0), signed(2), A, B),
    "two products of one input": case(lambda x, v, w: torch.cat([x @ v, x @ w], 1), A, B, signed(3, 1)),
    "one weight used twice": case(lambda x, w: (x @ w).relu() @ w, A, signed(3, 3)),
    "linear on three axes": case(aten.linear, BATCHED, signed(2, 3)),
    "convolution in groups": case(lambda x, w: aten.convolution(x, w, None, *GROUPED), FLAT, signed(4, 1, 2), missed=2),
    "convolution transposed": case(lambda x, w, b: aten.convolution(x, w, b, *TURNED), FLAT, signed(2, 3, 2), BIAS),
    "convolution transposed in groups": case(
        lambda x, w: aten.convolution(x, w, None, [1], [0], [1], True, [0], 2), FLAT, signed(2, 2, 2), missed=2
    ),
    "convolution over an image": case(
        lambda x, w: aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        signed(1, 1, 2, 3),
        signed(2, 1, 2, 2),
        missed=2,
    ),
    "bilinear": case(
        lambda x, y, w: torch.nn.functional.bilinear(x, y, w), signed(2, 2), signed(2, 3), signed(2, 2, 3)
    ),
    "cross of a constant": case(lambda x: aten.linalg_cross(x, ADJACENCY.t()[:1] + 1), signed(2, 3)),
    "cross along another axis": case(lambda x, y: aten.linalg_cross(x, y, dim=0), signed(3, 2), signed(3, 1)),
    "cross with zeros": case(
        lambda x, y: aten.linalg_cross(aten.constant_pad_nd(x, [1, 0], 0), y), signed(2, 2), signed(2, 3)
    ),
    "inverse of a batch": case(lambda x: aten.linalg_inv_ex(x)[0], signed(2, 2, 2), missed=4),
    "einsum": case(lambda x, y: torch.einsum("nhd,mhd->nmh", x, y), BATCHED, signed(3, 2, 3)),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("name", [*CASES, *FURTHER])
def test_the_rule_says_what_the_operation_does(name: str) -> None:
    check((CASES | FURTHER)[name])
