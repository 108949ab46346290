import pytest
import torch
from torch import nn

from gatdiag.errors import InputError, ModelError
from gatdiag.remedies import rescale_output_

X = torch.tensor([[-1.0, 3.0]])


class Returns(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(x)


def test_the_first_output_is_rescaled_and_the_others_stay():
    for wrap in (lambda x: x, lambda x: (x, "state"), lambda x: {"out": x, "extra": X}):
        model = Returns(wrap)
        with rescale_output_(model, 2.0, 100.0):
            assert str(model(X)) == str(wrap(2 * X + 100))
        assert str(model(X)) == str(wrap(X))
        assert type(model) is Returns


def test_what_cannot_be_rescaled_is_said():
    model = Returns(lambda x: "text")
    for arguments in ((0.0, 1.0), (-1.0, 1.0), (1.0, float("nan")), (1.0, float("inf"))):
        with pytest.raises(InputError):
            rescale_output_(model, *arguments)
    rescale_output_(model, 2.0, 1.0)
    with pytest.raises(ModelError, match="already"):
        rescale_output_(model, 3.0, 1.0)
    with pytest.raises(ModelError, match="got str"):
        model(X)
    with pytest.raises(ModelError, match=r"torch\.fx"):
        rescale_output_(torch.fx.symbolic_trace(nn.Linear(2, 2)), 2.0, 1.0)
