"""Where the channels of a tensor are, by the layer or the operation that made it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gatdiag.recorder.channels import channel_axis

IMAGE, SEQUENCE, TOKENS = torch.randn(2, 8, 6, 6), torch.randn(2, 8, 6), torch.randn(2, 7, 8)
CONV, CONV_1D, LINEAR = nn.Conv2d(8, 8, 3, padding=1), nn.Conv1d(8, 8, 3), nn.Linear(8, 8)


@pytest.mark.parametrize(
    "module",
    [
        nn.Identity(), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.AdaptiveAvgPool2d(1),
        nn.LPPool2d(2, 2), nn.Dropout2d(), nn.PReLU(), nn.PReLU(8), nn.GELU(), nn.Softmax(1), nn.BatchNorm2d(8),
        nn.InstanceNorm2d(8), nn.GroupNorm(2, 8), nn.LayerNorm((8, 6, 6)), nn.LocalResponseNorm(2),
        nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.PixelShuffle(2),
        nn.ZeroPad2d(1), nn.ConvTranspose2d(8, 4, 2),
    ],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_after_a_convolution_channels_stay_before_space(module):
    assert channel_axis(module, module(CONV(IMAGE))) == -3
    assert channel_axis(None, module(CONV(IMAGE)).sigmoid()) == -3


@pytest.mark.parametrize(
    "module",
    [nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(2), nn.AdaptiveMaxPool1d(2), nn.BatchNorm1d(8)],
    ids=lambda module: type(module).__name__,
)
def test_pools_over_one_axis_are_computed_as_over_two(module):
    assert channel_axis(module, module(CONV_1D(SEQUENCE))) == -2
    assert channel_axis(None, module(CONV_1D(SEQUENCE)).relu()) == -2


@pytest.mark.parametrize(
    ("x", "axis"),
    [
        (CONV(IMAGE).movedim(1, -1), -1),
        (CONV(IMAGE).movedim(1, -1).relu().transpose(1, -1), -3),
        (CONV(IMAGE).permute(0, -1, 1, -2), -2),
        (CONV(IMAGE).flatten(2), -2),
        (CONV(IMAGE).flatten(2).mT, -1),
        (LINEAR(CONV(IMAGE).flatten(2).mT), -1),
        (CONV(IMAGE)[0].unsqueeze(0), -3),
        (CONV(IMAGE)[:, :, -1], -2),
        (CONV(IMAGE).movedim(1, -1)[..., -1, :], -1),
        (CONV(IMAGE[0]).relu(), -3),
        (CONV(IMAGE).flatten(1), -1),
        (F.layer_norm(CONV(IMAGE), (6,)), -1),
        (LINEAR(TOKENS).mT, -2),
        (LINEAR(TOKENS) @ TOKENS.mT, -1),
        (nn.Parameter(torch.ones(8, 1, 1)) * CONV(IMAGE), -3),
        (torch.cat([CONV(IMAGE), CONV(IMAGE)], 1), -3),
        (nn.LSTM(8, 5)(TOKENS)[0], -1),
        (nn.MultiheadAttention(8, 2, batch_first=True)(TOKENS, TOKENS, TOKENS)[0], -1),
        (nn.TransformerEncoderLayer(8, 2, batch_first=True)(TOKENS), -1),
        (nn.Embedding(9, 8)(torch.zeros(2, 5, dtype=torch.long)), -1),
        (IMAGE, -1),  # nothing is known of it
    ],
)
def test_axes_are_followed_where_operations_move_them(x, axis):
    assert channel_axis(None, x) == axis


def test_without_a_graph_the_class_decides():
    with torch.no_grad():
        assert channel_axis(CONV, CONV(IMAGE)) == channel_axis(CONV, CONV(IMAGE[0])) == -3
        assert channel_axis(CONV_1D, CONV_1D(SEQUENCE[0])) == -2
        assert channel_axis(nn.BatchNorm2d(8), IMAGE) == channel_axis(nn.InstanceNorm2d(8), IMAGE[0]) == -3
        assert channel_axis(nn.BatchNorm1d(8), torch.zeros(5, 8)) == -1
        assert channel_axis(LINEAR, TOKENS) == -1
        assert channel_axis(LINEAR, TOKENS[0, 0]) == -1


def test_functions_of_the_user_are_followed_too():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    assert channel_axis(None, Doubled.apply(CONV(IMAGE))) == -3
