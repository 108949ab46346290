"""Rules of backward passes, against what they do."""

import pytest
import torch
from torch import Tensor

from tests.laws.rules.homogeneity import Case, case, check, signed

aten = torch.ops.aten
torch.manual_seed(5)
G, X, ONES = signed(2, 3), signed(2, 3), torch.ones(2, 3).double()
GAIN = signed(3)


def layer_norm(grad: Tensor, x: Tensor, weight: Tensor | None, mask: tuple[bool, bool, bool]) -> Tensor:
    _, mean, deviation = aten.native_layer_norm(x, [3], weight, None, 0.0)
    return aten.native_layer_norm_backward(grad, x, [3], mean, deviation, weight, None, mask)[0]


ONLY_INPUT = (True, False, False)
CASES: dict[str, Case] = {
    "threshold_backward": case(lambda g, x: aten.threshold_backward(g, x, 0), G, X),
    "leaky_relu_backward": case(lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False), G, X),
    "native_dropout_backward": case(lambda g: aten.native_dropout_backward(g, ONES > 0, 2.0), G),
    "_prelu_kernel_backward": case(aten._prelu_kernel_backward, G, X, signed(2, 3), counted=False),
    **{
        name: case(getattr(aten, name), G, X, counted=False)
        for name in (
            "sigmoid_backward",
            "tanh_backward",
            "gelu_backward",
            "silu_backward",
            "mish_backward",
            "hardswish_backward",
            "hardsigmoid_backward",
        )
    },
    "elu_backward": case(lambda g, x: aten.elu_backward(g, 1.0, 1.0, 1.0, False, x), G, X, counted=False),
    "softplus_backward": case(lambda g, x: aten.softplus_backward(g, x, 1.0, 20.0), G, X),
    "log_sigmoid_backward": case(lambda g, x: aten.log_sigmoid_backward(g, x, (-x.abs()).exp()), G, X),
    "hardtanh_backward": case(lambda g, x: aten.hardtanh_backward(g, x, -1.0, 1.0), G, X, counted=False),
    "softshrink_backward": case(lambda g, x: aten.softshrink_backward(g, x, 0.5), G, X, counted=False),
    "hardshrink_backward": case(lambda g, x: aten.hardshrink_backward(g, x, 0.5), G, X, counted=False),
    "_softmax_backward_data": case(lambda g, y: aten._softmax_backward_data(g, y, 1, torch.float64), G, X),
    "_log_softmax_backward_data": case(lambda g, y: aten._log_softmax_backward_data(g, y, 1, torch.float64), G, X),
    "native_layer_norm_backward": case(lambda g, x: layer_norm(g, x, None, ONLY_INPUT), G, X),
}
FURTHER: dict[str, Case] = {
    "threshold elsewhere": case(lambda g, x: aten.threshold_backward(g, x, 0.5), G, X, counted=False),
    "layer norm with a gain": case(lambda g, x, w: layer_norm(g, x, w, ONLY_INPUT), G, X, GAIN),
    "layer norm, to its gain too": case(lambda g, x, w: layer_norm(g, x, w, (True, True, False)), G, X, GAIN, missed=7),
}


@pytest.mark.parametrize("name", [*CASES, *FURTHER])
def test_the_rule_says_what_the_operation_does(name: str) -> None:
    check((CASES | FURTHER)[name])
