"""Plain models and what is asserted of any laws, shared by the tests of whole models."""

from itertools import pairwise
from typing import Any

import torch
import torch_geometric.nn as gnn
from torch import nn
from torch.nn import functional as F

from gatdiag.laws import Laws
from tests.laws.loops import each, gradients, weights
from tests.laws.models.graph import HID, HID2, IN, OUT, Stack


def mlp(*widths: int, bias: bool = True, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, o in pairwise(widths):
        layers += [nn.Linear(i, o, bias), act()]
    return nn.Sequential(*layers[:-1])


def shared(i: int, o: int, **more: Any) -> nn.Module:
    return gnn.GATv2Conv(i, o, share_weights=True, bias=False, **more)


def gcn(act: Any = F.relu) -> Stack:
    return Stack(gnn.GCNConv(IN, HID), gnn.GCNConv(HID, HID2), gnn.GCNConv(HID2, OUT), act=act)


def assert_laws_hold(laws: Laws, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """delta, added up entry by entry from autograd's gradients, is rounding; the terms it cancels are not."""
    output = model(*args, **kwargs)
    (torch.randn_like(output) * output + output.square()).sum().backward()
    delta = each(laws, weights(model), gradients(model))
    scale = each(laws, weights(model), gradients(model), absolute=True)
    rounding = torch.finfo(output.dtype).eps
    assert (delta.abs() <= 200 * rounding * scale.clamp(min=scale.max() * 1e-3)).all()
    assert scale.max() > 0
