"""Rules of inverses, determinants and decompositions, against what they do."""

import pytest
import torch

from tests.laws.rules.homogeneity import Case, case, check, signed

aten = torch.ops.aten
torch.manual_seed(6)
A, B, V, BATCH, TALL = signed(3, 3), signed(3, 2), signed(3), signed(2, 2, 2), signed(3, 2)


def definite(a: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """A positive matrix whose rows and columns scale with `rows`."""
    return (a @ a.t()) * rows[:, None] * rows[None]


SQUARE = torch.randn(3, 3).double()
CASES: dict[str, Case] = {
    "linalg_inv_ex": case(lambda a: aten.linalg_inv_ex(a)[0], A),
    "_linalg_det": case(lambda a: aten._linalg_det(a)[0], A),
    "_linalg_slogdet": case(lambda a: aten._linalg_slogdet(a)[1], A),
    "_linalg_solve_ex": case(lambda a, b: aten._linalg_solve_ex(a, b)[0], A, B),
    "linalg_solve_triangular": case(lambda a, b: aten.linalg_solve_triangular(a, b, upper=True), A, B, missed=3),
    "linalg_cholesky_ex": case(lambda r: aten.linalg_cholesky_ex(definite(SQUARE, r))[0], V),
    "_linalg_svd": case(lambda a: aten._linalg_svd(a)[1], TALL),
    "_linalg_eigh": case(lambda r: aten._linalg_eigh(definite(SQUARE, r))[0], V),
    "linalg_eig": case(lambda a: aten.linalg_eig(a)[0].abs().sort().values, A, counted=False),
    "linalg_eigvals": case(lambda a: aten.linalg_eigvals(a).abs().sort().values, A, counted=False),
    "_linalg_eigvals": case(lambda a: aten._linalg_eigvals(a).abs().sort().values, A, counted=False),
    "linalg_pinv": case(lambda a: torch.linalg.pinv(a), TALL, missed=1),
    "linalg_qr": case(aten.linalg_qr, TALL, counted=False),
}
FURTHER: dict[str, Case] = {
    "inverses of a batch": case(lambda a: aten.linalg_inv_ex(a)[0], BATCH),
    "determinants of a batch": case(lambda a: aten._linalg_det(a)[0], BATCH),
    "determinant of a product": case(lambda a, d: torch.linalg.det(a * d), A, V),
    "solution for a vector": case(lambda a, v: torch.linalg.solve(a, v), A, V),
    "solution from the right": case(lambda a, b: torch.linalg.solve(a, b, left=False), A, B.t(), counted=False),
    "solution of a batch": case(lambda a, b: torch.linalg.solve(a, b), BATCH, signed(2, 2, 1)),
    "upper factor": case(lambda r: torch.linalg.cholesky(definite(SQUARE, r), upper=True), V),
    "rows times an inverse": case(lambda a, b: b.t() @ torch.linalg.inv(a), A, B),
    "nuclear norm": case(lambda a: torch.linalg.matrix_norm(a, "nuc"), TALL),
}


@pytest.mark.parametrize("name", [*CASES, *FURTHER])
def test_the_rule_says_what_the_operation_does(name: str) -> None:
    check((CASES | FURTHER)[name])
