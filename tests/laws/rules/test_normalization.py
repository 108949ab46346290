"""Rules of fused normalization layers, against what they do; without their epsilon, which makes laws approximate."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.laws.rules.homogeneity import Case, case, check, directions, positive, signed

aten = torch.ops.aten
torch.manual_seed(5)
X, GAIN, SHIFT = signed(5, 2), signed(2), signed(2)
GROUPS = signed(2, 4, 3)


def statistics() -> tuple[Tensor, Tensor]:
    return torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)


def batch(x: Tensor, w: Tensor, b: Tensor, training: bool = True, eps: float = 0.0) -> Tensor:
    return aten.native_batch_norm(x, w, b, *statistics(), training, 0.1, eps)[0]


CASES: dict[str, Case] = {
    "native_batch_norm": case(batch, X, GAIN, SHIFT),
    "_native_batch_norm_legit": case(
        lambda x, w, b: aten._native_batch_norm_legit(x, w, b, *statistics(), True, 0.1, 0.0)[0], X, GAIN, SHIFT
    ),
    "_native_batch_norm_legit_functional": case(
        lambda x, w, b: aten._native_batch_norm_legit_functional(x, w, b, *statistics(), True, 0.1, 0.0)[0],
        X,
        GAIN,
        SHIFT,
    ),
    "_native_batch_norm_legit_no_training": case(
        lambda x, w, b: aten._native_batch_norm_legit_no_training(x, w, b, *statistics(), 0.1, 0.0)[0],
        X,
        GAIN,
        SHIFT,
        missed=2,
    ),
    "_batch_norm_with_update": case(
        lambda x, w, b: aten._batch_norm_with_update(x, w, b, *statistics(), 0.1, 0.0)[0], X, GAIN, SHIFT
    ),
    "_batch_norm_no_update": case(
        lambda x, w, b: aten._batch_norm_no_update(x, w, b, *statistics(), 0.1, 0.0)[0], X, GAIN, SHIFT, missed=2
    ),
    "native_layer_norm": case(
        lambda x, w, b: aten.native_layer_norm(x, [3], w, b, 0.0)[0], signed(2, 3), signed(3), signed(3)
    ),
    "rms_norm": case(lambda x, w: aten.rms_norm(x, [3], w, 0.0), signed(2, 3), signed(3)),
    "native_group_norm": case(
        lambda x, w, b: aten.native_group_norm(x, w, b, 2, 4, 3, 2, 0.0)[0], GROUPS, signed(4), signed(4)
    ),
    "_weight_norm_interface": case(lambda v, g: aten._weight_norm_interface(v, g, 0)[0], signed(2, 3), positive(2, 1)),
}
FURTHER: dict[str, Case] = {
    "batch norm without gain": case(
        lambda x: aten.native_batch_norm(x, None, None, *statistics(), True, 0.1, 0.0)[0], X
    ),
    "batch norm of an image": case(lambda x, w, b: batch(x, w, b), signed(2, 2, 3), GAIN, SHIFT),
    "layer norm without gain": case(lambda x: F.layer_norm(x, [3], eps=0.0), signed(2, 3)),
    "layer norm over two axes": case(lambda x, w: F.layer_norm(x, [2, 2], w, eps=0.0), signed(2, 2, 2), signed(2, 2)),
    "group norm as instance norm": case(lambda x: F.group_norm(x, 4, eps=0.0), GROUPS),
}


@pytest.mark.parametrize("name", [*CASES, *FURTHER])
def test_the_rule_says_what_the_operation_does(name: str) -> None:
    check((CASES | FURTHER)[name])


@pytest.mark.parametrize(
    ("norm", "taken_out"),
    [
        (lambda x, eps: batch(x, torch.ones(2).double(), torch.zeros(2).double(), eps=eps), 2),
        (lambda x, eps: F.layer_norm(x, [2], eps=eps), 5),
        (lambda x, eps: F.rms_norm(x, [2], eps=eps), 5),
        (lambda x, eps: F.group_norm(x, 1, eps=eps), 5),
    ],
    ids=["batch", "layer", "rms", "group"],
)
def test_an_epsilon_makes_the_scale_that_is_taken_out_approximate(norm: object, taken_out: int) -> None:
    assert directions(case(lambda x: norm(x, 1e-5), X)) == (0, taken_out)  # type: ignore[operator]
    assert directions(case(lambda x: norm(x, 0.0), X)) == (taken_out, taken_out)  # type: ignore[operator]
    assert directions(case(lambda x: norm(x, 0.5), X)) == (0, 0)  # type: ignore[operator]


def test_running_statistics_do_not_follow_a_scale() -> None:
    assert directions(case(lambda x: batch(x, torch.ones(2).double(), torch.zeros(2).double(), training=False), X)) == (
        0,
        0,
    )
