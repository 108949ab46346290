"""Which operations are said to decide only."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gatdiag.laws import find_laws


class Hidden(nn.Module):
    """A function of hidden units between two linear layers."""

    def __init__(self, middle: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.middle = nn.Linear(3, 4), nn.Linear(4, 2), middle

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


def written_in_place(h: Tensor) -> Tensor:
    out = torch.zeros_like(h)
    out[:] = h.cumsum(1).relu()
    return out


def counted(h: Tensor) -> Tensor:
    return h * len(h.topk(2).values.shape)


def thrown_away(h: Tensor) -> Tensor:
    h.cumsum(1)
    return h.relu()


DECIDING: dict[str, tuple[Callable[[Tensor], Tensor], set[str]]] = {
    "values and places": (lambda h: h.sort(1).values, set()),
    "places only": (lambda h: h[h.cumsum(1)[:, -1].argsort()], {"cumsum"}),
    "values that are compared": (lambda h: h * (h.cumsum(1) > 0), {"cumsum"}),
    "a bound": (lambda h: h * (h > 1), {"gt"}),
    "a bound of zero": (lambda h: h * (h > 0), set()),
    "a detached value": (lambda h: h * h.exp().detach(), {"exp"}),
    "both": (lambda h: (s := h.cumsum(1)) * (s > 0), set()),
    "a number": (lambda h: h * h.cumsum(1).amax().item(), {"cumsum", "item"}),
    "written in place": (written_in_place, set()),
    "a view": (lambda h: h.cumsum(1).t().relu().t(), set()),
    "a shape": (counted, set()),
    "thrown away": (thrown_away, set()),
}


@pytest.mark.parametrize("name", DECIDING)
def test_an_operation_that_the_output_takes_no_number_from_is_named(name: str) -> None:
    middle, expected = DECIDING[name]
    torch.manual_seed(0)
    excluded = find_laws(Hidden(middle), torch.randn(6, 3)).excluded
    found = {exclusion.what for exclusion in excluded if exclusion.reason.startswith("it only decides")}
    assert found == {f"operation {operation} in the model" for operation in expected}
