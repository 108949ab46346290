"""Without its epsilons a model is scale invariant where it nearly was before, and otherwise the same."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gatdiag.laws.epsilon import WithoutEpsilon

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

GUARDED: dict[str, Callable[[Tensor], Tensor]] = {
    "added": lambda x: x / (x.norm() + 1e-3),
    "added from the left": lambda x: x / (1e-3 + x.norm()),
    "by keyword": lambda x: F.layer_norm(x, (3,), eps=1e-3),
    "by position": lambda x: F.layer_norm(x, (3,), None, None, 1e-3),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True, eps=1e-3),
    "group norm": lambda x: F.group_norm(x, 1, eps=1e-3),
}


@pytest.mark.parametrize("name", GUARDED)
def test_the_scale_that_a_guard_let_through_is_gone(name: str) -> None:
    operation = GUARDED[name]
    assert not torch.allclose(operation(X), operation(X * 0.1), rtol=1e-6)

    with WithoutEpsilon():
        torch.testing.assert_close(operation(X), operation(X * 0.1), rtol=1e-8, atol=1e-10)


def test_zero_by_zero_stays_guarded() -> None:
    with WithoutEpsilon():
        assert (torch.zeros(3) / (torch.zeros(()) + 1e-3)).tolist() == [0.0] * 3


@pytest.mark.parametrize(
    "operation", [lambda x: x + 0.5, lambda x: x - 1, lambda x: x * 1e-3, lambda x: x.clamp(min=0.1)]
)
def test_constants_that_are_no_guard_stay(operation: Callable[[Tensor], Tensor]) -> None:
    plain = operation(X)

    with WithoutEpsilon():
        assert torch.equal(operation(X), plain)
