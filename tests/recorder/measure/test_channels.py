"""Where the channels of a tensor are, by the layer or the operation that made it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gatdiag.recorder.measure.channels import channel_axis

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


NODES, MIXES_NODES = torch.randn(6, 6), nn.Parameter(torch.randn(6, 6))
WEIGHT, PLACES = nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(1, 8, 6, 6))


def attention(x):
    """Of each place to all others, as in SAGAN; of a feature map."""
    flat = CONV(x).flatten(2)
    return torch.bmm(flat, (CONV(x).flatten(2).mT @ flat).softmax(-1).mT).view(x.shape)


def attention_of_channels(x):
    """As in DANet."""
    flat = x.flatten(2)
    scores = flat @ flat.mT
    return ((scores.amax(-1, keepdim=True).expand_as(scores) - scores).softmax(-1) @ flat).view(x.shape)


@pytest.mark.parametrize(
    ("x", "axis"),
    [
        (torch.einsum("nctv,vw->nctw", CONV(IMAGE), NODES), -3),
        (torch.einsum("nctv,vw->nctw", CONV(IMAGE), NODES * MIXES_NODES), -3),
        (torch.einsum("nkctv,kvw->nctw", CONV(IMAGE).view(2, 2, 4, 6, 6), torch.randn(2, 6, 6)), -3),
        (NODES @ CONV(IMAGE), -3),
        ((MIXES_NODES @ MIXES_NODES).softmax(-1) @ CONV(IMAGE), -3),
        ((CONV(IMAGE).mT @ NODES).mT.relu() + CONV(IMAGE), -3),
        (attention(IMAGE) + IMAGE, -3),
        (attention_of_channels(CONV(IMAGE)), -3),
        (MIXES_NODES @ (TOKENS[:, :6] @ WEIGHT), -1),  # a linear layer, then one that mixes nodes
        ((MIXES_NODES @ TOKENS[:, :6]) @ WEIGHT, -1),
        (nn.Linear(7, 7)(LINEAR(TOKENS).mT).mT, -1),
        (LINEAR(CONV(IMAGE).movedim(1, -1)).movedim(-1, 1), -3),
        (torch.einsum("bchw,cd->bdhw", IMAGE, WEIGHT), -3),
        (torch.einsum("cd,bchw->bdhw", WEIGHT, IMAGE), -3),
        ((IMAGE.movedim(1, -1) @ WEIGHT).movedim(-1, 1), -3),
    ],
)
def test_products_with_other_matrices_than_weights_leave_the_channels(x, axis):
    assert channel_axis(None, x) == axis


@pytest.mark.parametrize(
    ("x", "axis"),
    [
        (CONV(IMAGE).mean(3), -2),
        (CONV(IMAGE).sum((0, -1)), -2),
        (CONV(IMAGE).amax(2), -2),
        (CONV(IMAGE).max(3).values, -2),
        (CONV(IMAGE).logsumexp(2), -2),
        (CONV(IMAGE).norm(dim=3), -2),
        (CONV(IMAGE).mean(1), -1),  # of the channels
        (CONV(IMAGE).unbind(3)[0], -2),
        (torch.stack([CONV(IMAGE), CONV(IMAGE)], 1), -3),
        (torch.stack([CONV(IMAGE), CONV(IMAGE)], 2), -4),
        (CONV(IMAGE).mean((2, 3), keepdim=True).expand(2, 8, 6, 6), -3),
        (CONV(IMAGE)[0].expand(5, 8, 6, 6), -3),
        (CONV(IMAGE).view(1, 2, 8, 6, 6).mean(1), -3),  # time and samples are one axis of the convolution
        (CONV(IMAGE).view(2, 2, 4, 6, 6).mT.transpose(1, 2).reshape(2, 8, 6, 6), -3),  # channels are shuffled
        (CONV(IMAGE).unflatten(1, (2, 4)).flatten(1, 2), -3),
        (CONV(IMAGE).permute(0, 2, 3, 1).flatten(1, 2), -1),
        (F.unfold(CONV(IMAGE), 2), -2),
        (nn.InstanceNorm2d(8)(IMAGE * PLACES).relu(), -3),
        (PLACES + CONV(IMAGE[:1]), -3),  # both have this shape
        (CONV_1D(SEQUENCE[0]).relu(), -2),
        (nn.ConvTranspose1d(8, 5, 2)(SEQUENCE[0]).sigmoid(), -2),
        (CONV(IMAGE)[:, :, 0, 0].relu(), -1),
        (CONV(IMAGE[:0]).relu(), -3),
    ],
)
def test_axes_are_followed_where_they_are_joined_split_or_dropped(x, axis):
    assert channel_axis(None, x) == axis


def test_a_long_computation_ends():
    x = TOKENS.clone().requires_grad_()
    for _ in range(300):
        x = torch.cat([x, x], 1).tanh()[:, :7]
    assert channel_axis(None, x) == -1


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
