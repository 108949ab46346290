"""The order of first uses, against orders written by hand."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks

from gatdiag.structure.discovery import first_uses
from gatdiag.structure.replica import replicate

X = torch.ones(2, 3)


class Shuffled(nn.Module):
    """Uses its parts in another order than it lists them, one of them functionally, one twice, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.never = nn.Linear(3, 3)
        self.late = nn.Linear(3, 3)
        self.functional = nn.Linear(3, 3)
        self.twice = nn.Linear(3, 3)
        self.bare = nn.Identity()

    def forward(self, x):
        x = self.bare(self.twice(x))
        x = F.linear(x, self.functional.weight)
        return self.late(self.twice(x)) * self.scale


LAYERS = {
    "": ["scale"],
    "never": ["never.weight", "never.bias"],
    "late": ["late.weight", "late.bias"],
    "functional": ["functional.weight", "functional.bias"],
    "twice": ["twice.weight", "twice.bias"],
    "bare": [],
}


def test_order_is_that_of_first_use():
    assert first_uses(replicate(Shuffled(), (X,)), LAYERS) == ["twice", "bare", "functional", "late", ""]


def test_no_hook_stays():
    before = len(module_hooks._global_forward_pre_hooks)
    first_uses(replicate(Shuffled(), (X,)), LAYERS)
    assert len(module_hooks._global_forward_pre_hooks) == before


def test_weights_that_are_computed_first_count():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 3))
    layers = {"1": ["1.weight"], "0": ["0.parametrizations.weight.original0"]}
    assert first_uses(replicate(model, (X,)), layers) == ["0", "1"]
