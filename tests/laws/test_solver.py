"""The basis of solutions, against the null space of the dense matrix by singular values."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from gatdiag.laws.exponents import Equations, Exponents
from gatdiag.laws.solver import Basis, solve


def add_equations(rows: np.ndarray, exponents: Exponents, *, approximate: bool = False) -> None:
    """Rows of coefficients of the unknowns 1, 2, ... as equations."""
    kept = exponents.approximations if approximate else exponents.equations
    for row in rows:
        used = np.flatnonzero(row)
        if used.size:
            kept.append(Equations(tuple(Fraction(int(row[k])) for k in used), torch.tensor(used[None, :] + 1)))


def dense_basis(basis: Basis, count: int) -> np.ndarray:
    """Basis vectors as columns."""
    dense = np.zeros((count, len(basis.free)))
    for unknown, vector in basis.values.items():
        for number, value in vector.items():
            dense[unknown - 1, number] = float(value)
    return dense


def solve_rows(count: int, rows: np.ndarray, soft: np.ndarray | None = None) -> Basis:
    exponents = Exponents()
    ids = exponents.new_unknowns((count,))
    add_equations(rows, exponents)
    if soft is not None:
        add_equations(soft, exponents, approximate=True)
    return solve(exponents, [ids])


def nullity(rows: np.ndarray) -> int:
    return rows.shape[1] - (int(np.linalg.matrix_rank(rows)) if rows.size else 0)


@pytest.mark.parametrize("seed", range(30))
def test_the_basis_spans_the_null_space(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 9))
    rows = random.integers(-2, 3, (int(random.integers(0, 10)), count)) * random.integers(0, 2, (1, count))
    if seed % 3 == 0 and len(rows) > 1:
        rows[-1] = rows[0] - 2 * rows[1]

    dense = dense_basis(solve_rows(count, rows), count)

    assert dense.shape[1] == nullity(rows)
    assert not dense.size or np.linalg.matrix_rank(dense) == dense.shape[1]
    np.testing.assert_allclose(rows @ dense, 0, atol=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_exact_vectors_span_what_the_soft_equations_leave(seed: int) -> None:
    random = np.random.default_rng(100 + seed)
    count = int(random.integers(3, 9))
    rows = random.integers(-1, 2, (int(random.integers(0, 4)), count))
    soft = random.integers(-1, 2, (int(random.integers(0, 4)), count))

    basis = solve_rows(count, rows, soft)

    dense, exact = dense_basis(basis, count), np.array(basis.exact, dtype=bool)
    both = np.concatenate([rows, soft])
    assert dense.shape[1] == nullity(rows)
    assert exact.sum() == nullity(both)
    assert not dense.size or np.linalg.matrix_rank(dense) == dense.shape[1]
    np.testing.assert_allclose(rows @ dense, 0, atol=1e-9)
    np.testing.assert_allclose(both @ dense[:, exact], 0, atol=1e-9)


def test_fractions_are_exact() -> None:
    basis = solve_rows(3, np.array([[3, -1, 0], [0, 7, -2]]))

    ((name,), values) = basis.free, basis.values
    assert [values[unknown][0] / values[1][0] for unknown in (1, 2, 3)] == [1, 3, Fraction(21, 2)]
    assert values[name] == {0: 1}


def test_channels_stay_free_before_entries() -> None:
    """An equation between a channel and a parameter's entry is solved for the entry, however late the channel is."""
    exponents = Exponents()
    entry = exponents.new_unknowns((1,), "weight", is_entry=True)
    channel = exponents.new_unknowns((1,))
    exponents.equations.append(Equations((Fraction(1), Fraction(-2)), torch.stack([entry, channel], dim=1)))

    basis = solve(exponents, [entry, channel])

    assert basis.free == (int(channel),)
    assert basis.values[int(entry)] == {0: 2}
