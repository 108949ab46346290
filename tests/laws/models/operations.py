"""Small functions of an input and some weights, one operation or one habit of writing each, for the zoo."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.laws.models.graph import HID, IN, OUT, ROWS, Case, Factory


class Written(nn.Module):
    """A model given by parameters of stated shapes and a function of the input and them."""

    def __init__(self, compute: Callable[..., object], **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.compute = compute
        self.weights = nn.ParameterDict({name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()})

    def forward(self, *inputs: Tensor) -> object:
        return self.compute(*inputs, **self.weights)


def written(compute: Callable[..., object], *inputs: Tensor, **shapes: tuple[int, ...]) -> Case:
    return Case(Written(compute, **shapes), inputs or (torch.randn(ROWS, IN),))


ZOO: dict[str, Factory] = {
    "normalized weights": lambda: written(
        lambda x, a, b: F.relu(x @ F.normalize(a, dim=1).t()) @ b.t(), a=(HID, IN), b=(OUT, HID)
    ),
    "cosine similarity": lambda: written(
        lambda x, a, b: F.cosine_similarity((x @ a.t())[:, None], (x @ b.t())[None], dim=-1), a=(3, IN), b=(3, IN)
    ),
    "distance": lambda: written(lambda x, a, b: torch.cdist(x @ a.t(), b), a=(3, IN), b=(4, 3)),
    "sorted and summed": lambda: written(
        lambda x, a, b: F.relu(x @ a.t()).sort(dim=0).values.cumsum(0) @ b.t(), a=(HID, IN), b=(OUT, HID)
    ),
    "top values of units": lambda: written(
        lambda x, a, b: F.relu(x @ a.t()).topk(2, dim=1).values @ b.t(), a=(HID, IN), b=(OUT, 2)
    ),
    "soft gate of itself": lambda: written(
        lambda x, a, b: ((x @ a.t()) * torch.sign(x @ a.t()).detach()) @ b.t(), a=(HID, IN), b=(OUT, HID)
    ),
    "added zero times": lambda: written(
        lambda x, a, b, c: F.relu(x @ a.t()) @ b.t() + 0.0 * c, a=(HID, IN), b=(OUT, HID), c=(OUT,)
    ),
    "detached": lambda: written(
        lambda x, a, b: (F.relu(x @ a.t()).detach() + x @ a.t()) @ b.t(), a=(HID, IN), b=(OUT, HID)
    ),
    "straight through": lambda: written(
        lambda x, a, b: ((x @ a.t()).sign() + (x @ a.t()) - (x @ a.t()).detach()) @ b.t(), a=(HID, IN), b=(OUT, HID)
    ),
}
