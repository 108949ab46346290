"""What becomes of a scale between a logarithm and what undoes it, against what the operations do."""

import pytest
import torch
from torch import Tensor

from gatdiag.laws.rules.shift import SHIFTS
from tests.laws.rules.homogeneity import Case, Function, case, check, directions, positive

aten = torch.ops.aten
torch.manual_seed(7)
X, Y, CUBE, SQUARE = positive(2, 3), positive(2, 3), positive(1, 2, 3), positive(3, 3)
INDEX = torch.tensor([2, 0, 0])
MASK = torch.tensor([[True, False, True], [False, False, True]])


def between(operation: Function, *arguments: Tensor, **options: object) -> Case:
    """exp(operation(log x, log y))."""

    def run(*tensors: Tensor) -> list[Tensor]:
        out = operation(*(tensor.log() for tensor in tensors))
        return [piece.exp() for piece in (out if isinstance(out, tuple | list) else [out])]

    return case(run, *(arguments or (X,)), positive=True, **options)


def after(operation: Function, *arguments: Tensor, **options: object) -> Case:
    """operation(log x), which does not see a common shift."""
    return case(lambda x: operation(x.log()), *(arguments or (X,)), positive=True, **options)


NO_STATISTICS = (None, None, None, None)
CASES: dict[str, Case] = {
    **{name: between(getattr(aten, name)) for name in ("alias", "clone", "contiguous", "positive", "neg", "logsumexp")},
    "exp": between(lambda y: y),
    "_to_copy": between(lambda y: aten._to_copy(y, dtype=torch.float64)),
    "to": between(lambda y: aten.to(y, torch.float64)),
    **{name: between(getattr(aten, name), X, Y) for name in ("add", "sub", "subtract")},
    **{name: between(lambda y, name=name: getattr(aten, name)(y, 0.5)) for name in ("mul", "multiply")},
    **{name: between(lambda y, name=name: getattr(aten, name)(y, -2.0)) for name in ("div", "divide", "true_divide")},
    "sum": between(lambda y: aten.sum(y, [1])),
    "mean": between(lambda y: aten.mean(y, [0], True)),
    "amax": between(lambda y: aten.amax(y, [1]), points=16),
    "amin": between(lambda y: aten.amin(y, [0], True), points=16),
    "logsumexp": between(lambda y: aten.logsumexp(y, [1])),
    "_softmax": after(lambda y: aten._softmax(y, 1, False)),
    "_safe_softmax": after(lambda y: aten._safe_softmax(y, 0)),
    "_log_softmax": after(lambda y: aten._log_softmax(y, 1, False)),
    "native_batch_norm": after(lambda y: aten.native_batch_norm(y, *NO_STATISTICS, True, 0.1, 0.0)[0], SQUARE),
    "_native_batch_norm_legit": after(
        lambda y: aten._native_batch_norm_legit(y, None, None, True, 0.1, 0.0)[0], SQUARE
    ),
    "native_layer_norm": after(lambda y: aten.native_layer_norm(y, [3], None, None, 0.0)[0]),
    "masked_fill": between(lambda y: aten.masked_fill(y, MASK, -1e9)),
    "expand": between(lambda y: aten.expand(y, [3, 2, 3]), CUBE),
    "permute": between(lambda y: aten.permute(y, [2, 0, 1]), CUBE),
    "transpose": between(lambda y: aten.transpose(y, 0, 1)),
    "t": between(aten.t),
    "squeeze": between(aten.squeeze, CUBE),
    "unsqueeze": between(lambda y: aten.unsqueeze(y, 1)),
    "slice": between(lambda y: aten.slice(y, 1, 1, 3)),
    "select": between(lambda y: aten.select(y, 1, -1)),
    "split": between(lambda y: aten.split(y, 2, 1)),
    "split_with_sizes": between(lambda y: aten.split_with_sizes(y, [1, 2], 1)),
    "unbind": between(lambda y: aten.unbind(y, 1)),
    "chunk": between(lambda y: aten.chunk(y, 2, 1)),
    "diagonal": between(aten.diagonal, SQUARE),
    "flip": between(lambda y: aten.flip(y, [1])),
    "roll": between(lambda y: aten.roll(y, [1], [1])),
    "unfold": between(lambda y: aten.unfold(y, 1, 2, 1)),
    "repeat": between(lambda y: aten.repeat(y, [2, 2])),
    "movedim": between(lambda y: aten.movedim(y, 0, 2), CUBE),
    "narrow": between(lambda y: aten.narrow(y, 1, 1, 2)),
    "repeat_interleave": between(lambda y: aten.repeat_interleave(y, torch.tensor([1, 3]), 0)),
    "view": between(lambda y: aten.view(y, [3, 2])),
    "_unsafe_view": between(lambda y: aten._unsafe_view(y, [6])),
    "reshape": between(lambda y: aten.reshape(y.t(), [2, 3])),
    "flatten": between(aten.flatten, CUBE),
    "unflatten": between(lambda y: aten.unflatten(y, 1, [1, 3])),
    "index_select": between(lambda y: aten.index_select(y, 1, INDEX)),
    "gather": between(lambda y: aten.gather(y, 1, torch.tensor([[2, 0], [0, 0]]))),
    "index": between(lambda y: aten.index(y, [None, INDEX])),
    "cat": between(lambda x, y: aten.cat([x, y], 1), X, Y),
    "stack": between(lambda x, y: aten.stack([x, y], 1), X, Y),
}
FURTHER: dict[str, Case] = {
    "plus a constant": between(lambda y: y + 3.0),
    "plus twice another": between(lambda x, y: torch.add(x, y, alpha=2), X, Y),
    "plus what has a scale": case(lambda x, y: aten._softmax(x.log() + y, 1, False), X, Y, positive=True),
    "beside a constant": after(lambda y: torch.cat([y, torch.ones(2, 1).double()], 1).softmax(1)),
    "times a tensor": after(lambda y: (y * torch.tensor([[1.0, 2.0, 3.0]]).double()).exp(), missed=6),
    "of zeros beside": case(lambda x: torch.nn.functional.pad(x, (1, 0)).log().softmax(1), X, positive=True, missed=2),
    "over its own size": after(lambda y: (y - y.mean(1, keepdim=True)).tanh()),
    "alone": after(lambda y: y),
    "in a sine": after(torch.sin),
    "in place": after(lambda y: y.mul_(2.0).softmax(1), missed=2),
    "by running statistics": after(
        lambda y: torch.nn.functional.batch_norm(y, torch.zeros(3).double(), torch.ones(3).double())
    ),
}


@pytest.mark.parametrize("name", [*CASES, *FURTHER])
def test_the_rule_says_what_the_operation_does(name: str) -> None:
    check((CASES | FURTHER)[name])


def test_every_rule_is_compared_with_its_operation() -> None:
    elsewhere = {"cudnn_batch_norm", "_native_batch_norm_legit_functional"}

    assert set(SHIFTS) - elsewhere == set(CASES) | set(STOPPED)


STOPPED = ("detach", "detach_copy")


@pytest.mark.parametrize("name", STOPPED)
def test_for_gradients_a_detached_logarithm_is_a_constant(name: str) -> None:
    assert directions(case(lambda x: getattr(aten, name)(x.log()), X)) == (6, 6)
