"""Rules of operations entry by entry, against what the operations do."""

import pytest
import torch
from torch import Tensor

from tests.laws.rules.homogeneity import Case, case, check, directions, each, positive, signed

aten = torch.ops.aten
torch.manual_seed(0)
X, Y, Z = signed(2, 3), signed(2, 3), signed(2, 3)
P, Q = positive(2, 3), positive(2, 3)
ONE = torch.ones((), dtype=torch.float64)
C = torch.complex(signed(2, 2), signed(2, 2))
MASK = torch.tensor([[True, False, True], [False, False, True]])


def filled_with(tensor: Tensor, value: Tensor) -> Tensor:
    return aten.fill(tensor, value.reshape(()))


G, GAIN, ONES = signed(2, 3), signed(3), torch.ones(2, 3).double()


def layer_norm(grad: Tensor, x: Tensor, weight: Tensor | None, mask: tuple[bool, bool, bool]) -> Tensor:
    _, mean, deviation = aten.native_layer_norm(x, [3], weight, None, 0.0)
    return aten.native_layer_norm_backward(grad, x, [3], mean, deviation, weight, None, mask)[0]


SPARSE = {
    "indices _indices _nnz sparse_dim dense_dim": lambda x: x.to_sparse().coalesce(),
    "crow_indices col_indices": Tensor.to_sparse_csr,
    "ccol_indices row_indices": Tensor.to_sparse_csc,
}
ONLY_INPUT = (True, False, False)
CASES: dict[str, Case] = {
    **each(
        "abs alias clone contiguous nan_to_num neg positive relu leaky_relu tril triu real resolve_conj resolve_neg "
        "deg2rad rad2deg",
        X,
    ),
    "rrelu_with_noise": case(lambda x: aten.rrelu_with_noise(x, torch.ones(2, 3).double(), 0.1, 0.3, True), X),
    "rrelu_with_noise_functional": case(
        lambda x: aten.rrelu_with_noise_functional(x, torch.ones(2, 3).double(), 0.1, 0.3, True)[0], X
    ),
    "dropout": case(lambda x: aten.dropout(x, 0.5, True), X),
    "feature_dropout": case(lambda x: aten.feature_dropout(x, 0.5, True), signed(2, 3, 2)),
    "feature_alpha_dropout": case(lambda x: aten.feature_alpha_dropout(x, 0.5, True), signed(2, 3, 2), counted=False),
    "imag": case(aten.imag, C),
    "angle": case(aten.angle, C),
    "polar": case(lambda x, y: torch.view_as_real(aten.polar(x, y)), P, Q),
    "is_pinned": case(aten.is_pinned, X),
    "alpha_dropout": case(lambda x: aten.alpha_dropout(x, 0.5, True), X, counted=False),
    "_conj": case(lambda x: aten._conj(x).resolve_conj(), C),
    "_conj_physical": case(aten._conj_physical, C),
    "conj_physical": case(aten.conj_physical, C),
    "_neg_view": case(lambda x: aten._neg_view(x).resolve_neg(), X),
    "atan2": case(aten.atan2, X, Y),
    "copysign": case(aten.copysign, X, Y),
    "ldexp": case(aten.ldexp, X, Y, counted=False),
    "native_dropout": case(lambda x: aten.native_dropout(x, 0.5, True), X),
    "_to_copy": case(lambda x: aten._to_copy(x, dtype=torch.float64), X),
    "to": case(lambda x: aten.to(x, torch.float64), X),
    "threshold": case(lambda x: aten.threshold(x, 0, 0), X),
    "_prelu_kernel": case(aten._prelu_kernel, X, positive(1, 1)),
    "prelu": case(aten.prelu, X, positive(1)),
    "clamp": case(lambda x: aten.clamp(x, 0, None), X),
    "clamp_min": case(lambda x: aten.clamp_min(x, 0), X),
    "clamp_max": case(lambda x: aten.clamp_max(x, 0), X),
    "clip": case(lambda x: aten.clip(x, 0, float("inf")), X),
    "square": case(aten.square, X),
    "sqrt": case(aten.sqrt, P, positive=True),
    "rsqrt": case(aten.rsqrt, P, positive=True),
    "reciprocal": case(aten.reciprocal, X),
    "pow": case(lambda x: aten.pow(x, 1.5), P, positive=True),
    "float_power": case(lambda x: aten.float_power(x, -0.5), P, positive=True),
    **each("mul multiply div divide true_divide add sub rsub subtract", X, Y),
    "addcmul": case(lambda x, y, z: aten.addcmul(x, y, z, value=0.7), X, Y, Z),
    "addcdiv": case(lambda x, y, z: aten.addcdiv(x, y, z, value=0.7), X, Y, Z),
    "lerp": case(lambda x, y: aten.lerp(x, y, 0.3), X, Y),
    **each("maximum minimum fmax fmin hypot", X, Y, points=16),
    **each("eq ne lt le gt ge", X, Y, counted=False),
    "glu": case(lambda x: aten.glu(x, -1), signed(2, 4)),
    "where": case(lambda x, y: aten.where(torch.tensor([[True, False, True]]), x, y), X, signed(2, 1), missed=6),
    "masked_fill": case(lambda x, y: aten.masked_fill(x, MASK, y.reshape(())), X, signed(1), missed=6),
    "copy": case(lambda x, y: aten.copy(x, y), X, Y),
    "copy_": case(lambda x, y: aten.copy_(x, y), X, signed(3)),
    "fill": case(filled_with, X, signed(1)),
    "fill_": case(lambda x: aten.fill_(x, 0.0), X),
    # held at exponent zero
    **each(
        "exp exp2 expm1 sigmoid tanh sin cos tan atan sinh cosh asinh erf erfc elu celu selu gelu silu mish "
        "softplus hardswish sinc special_erfcx special_log_ndtr",
        X,
    ),
    **each("log log2 log10 log1p lgamma digamma special_entr", P, positive=True),
    "special_ndtri": case(aten.special_ndtri, P / 2, counted=False),
    **each("logaddexp logaddexp2", X, Y),
    **each("xlogy special_xlog1py", P, Q, counted=False),
    "floor_divide": case(aten.floor_divide, X, Y, counted=False),
    **{name: case(lambda x, name=name: getattr(aten, name)(x, 1), X) for name in ("logcumsumexp", "_logcumsumexp")},
    **each("asin acos atanh logit erfinv", P / 2, counted=False),
    "acosh": case(aten.acosh, P + 1, counted=False),
    **each("softshrink hardshrink hardsigmoid hardtanh floor ceil round trunc frac", X, counted=False),
    "fmod": case(aten.fmod, X, Y, counted=False),
    "remainder": case(aten.remainder, X, Y, counted=False),
    "logsumexp": case(lambda x: aten.logsumexp(x, [1]), X),
    "_softmax": case(lambda x: aten._softmax(x, -1, False), X),
    "_safe_softmax": case(lambda x: aten._safe_softmax(x, -1), X),
    "_log_softmax": case(lambda x: aten._log_softmax(x, -1, False), X),
    "log_sigmoid_forward": case(lambda x: aten.log_sigmoid_forward(x)[0], X),
    "bernoulli": case(aten.bernoulli, P / 2, counted=False),
    "multinomial": case(lambda x: aten.multinomial(x, 2), P, counted=False),
    "nll_loss_forward": case(lambda x: aten.nll_loss_forward(x, torch.tensor([0, 2]), None, 0, -100)[0], X, missed=6),
    "binary_cross_entropy": case(lambda x: aten.binary_cross_entropy(x, MASK.double()), P / 2, counted=False),
    "binary_cross_entropy_with_logits": case(
        lambda x: aten.binary_cross_entropy_with_logits(x, MASK.double(), None, None, 0), X
    ),
    "_local_scalar_dense": case(aten._local_scalar_dense, signed(1), counted=False),
    "nll_loss2d_forward": case(
        lambda x: aten.nll_loss2d_forward(x, torch.zeros(1, 2, 1).long(), None, 0, -100)[0],
        signed(1, 2, 2, 1),
        missed=4,
    ),
    **{
        name: case(lambda x, y, name=name: getattr(aten, name)(x, y), X, Y, counted=False)
        for name in ("smooth_l1_loss", "huber_loss")
    },
    "soft_margin_loss": case(lambda x: aten.soft_margin_loss(x, ONES), X),
    "_ctc_loss": case(lambda x: aten._ctc_loss(x, torch.tensor([[1]]), [2], [1])[0], signed(2, 1, 3), counted=False),
    "linalg_matrix_exp": case(aten.linalg_matrix_exp, signed(2, 2), counted=False),
    "_linalg_slogdet": case(lambda x: aten._linalg_slogdet(x)[1], signed(2, 2), counted=False),
    "histc": case(lambda x: aten.histc(x, 3, -1, 1), X, counted=False),
    "renorm": case(lambda x: aten.renorm(x, 2, 0, 0.5), X, counted=False),
    "embedding_renorm": case(
        lambda x: aten.embedding_renorm_(x, torch.tensor([0, 1]), 0.5, 2.0).clone(), X, counted=False
    ),
    "_standard_gamma": case(aten._standard_gamma, P, counted=False),
    "poisson": case(aten.poisson, P, counted=False),
    "bincount": case(lambda x: aten.bincount(torch.tensor([0, 2, 2]), x), positive(3), counted=False),
    # blind to scale
    **each(
        "sign sgn signbit isnan isinf isfinite isposinf isneginf nonzero count_nonzero any all logical_not "
        "ones_like rand_like randn_like",
        X,
    ),
    **each("logical_and logical_or logical_xor heaviside", X, Y),
    "is_nonzero": case(aten.is_nonzero, signed(1), counted=False),
    "new_ones": case(lambda x: aten.new_ones(x, [2]), X),
    "full_like": case(lambda x: aten.full_like(x, 3.0), X),
    "randint_like": case(lambda x: aten.randint_like(x, 5), X),
    "sym_size": case(lambda x: aten.sym_size.int(x, 0), X),
    "sym_stride": case(lambda x: aten.sym_stride.int(x, 0), X),
    "_fused_sdp_choice": case(lambda x: aten._fused_sdp_choice(x, x, x), signed(1, 1, 2, 3)),
    "sym_numel": case(aten.sym_numel, X),
    "sym_storage_offset": case(aten.sym_storage_offset, X),
    "normal": case(lambda x: aten.normal_(x), X),
    "uniform": case(lambda x: aten.uniform_(x), X),
    "exponential": case(lambda x: aten.exponential_(x), X),
    **{
        name: case(lambda x, name=name, more=more: getattr(aten, f"{name}_")(x, *more), X)
        for name, more in {"random": (), "geometric": (0.5,), "cauchy": (), "log_normal": ()}.items()
    },
    **{
        name: case(lambda x, name=name, make=make: getattr(aten, name)(make(x)), X, missed=5)
        for names, make in SPARSE.items()
        for name in names.split()
    },
    "bernoulli_": case(lambda x: aten.bernoulli_(x, 0.5), X),
    # backward passes
    "threshold_backward": case(lambda g, x: aten.threshold_backward(g, x, 0), G, X),
    "leaky_relu_backward": case(lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False), G, X),
    "native_dropout_backward": case(lambda g: aten.native_dropout_backward(g, ONES > 0, 2.0), G),
    "_prelu_kernel_backward": case(aten._prelu_kernel_backward, G, X, signed(2, 3), counted=False),
    **each(
        "sigmoid_backward tanh_backward gelu_backward silu_backward mish_backward hardswish_backward "
        "hardsigmoid_backward",
        G,
        X,
        counted=False,
    ),
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
    "mul by a number": case(lambda x: aten.mul(x, 3.0), X),
    "mul by minus one": case(lambda x: aten.mul(x, -1), X),
    "mul by zero": case(lambda x: aten.mul(x, 0.0), X, counted=False),
    "mul by a one-entry constant": case(lambda x: aten.mul(x, torch.tensor([2.0]).double()), X),
    "mul by itself": case(lambda x: aten.mul(x, x), X),
    "mul broadcast": case(aten.mul, X, signed(3)),
    "mul in place": case(aten.mul_, X, signed(2, 1)),
    "div by a number": case(lambda x: aten.div(x, 3.0), X),
    "div of a constant": case(lambda x: aten.div(torch.ones(2, 3).double(), x), X),
    "div by itself": case(lambda x: aten.div(x, x), X),
    "div rounded": case(lambda x, y: aten.div(x, y, rounding_mode="floor"), X, Y, counted=False),
    "add broadcast": case(aten.add, X, signed(3)),
    "add zero": case(lambda x: aten.add(x, 0.0), X),
    "add one": case(lambda x: aten.add(x, 1.0), X),
    "add one times alpha": case(lambda x: aten.add(x, 1.0, alpha=2), X),
    "add a constant": case(lambda x: aten.add(x, torch.ones(3).double()), X),
    "add zeros": case(lambda x: aten.add(x, torch.zeros(3).double()), X),
    "one less": case(lambda x: aten.rsub(x, 1.0), X),
    "add in place": case(aten.add_, X, signed(2, 1)),
    "pow three": case(lambda x: aten.pow(x, 3), X),
    "pow minus half": case(lambda x: aten.pow(x, -0.5), P, positive=True),
    "pow zero": case(lambda x: aten.pow(x, 0), X),
    "pow of a constant": case(lambda x: aten.pow(2.0, x), X),
    "pow of two": case(aten.pow, P, Q, counted=False),
    "pow irrational": case(lambda x: aten.pow(x, 3.14159), P, positive=True, missed=6),
    "threshold elsewhere": case(lambda x: aten.threshold(x, 0.5, 0.0), X, counted=False),
    "clamp from one": case(lambda x: aten.clamp(x, 1.0), X, counted=False),
    "clamp to one": case(lambda x: aten.clamp(x, None, 1.0), X, counted=False),
    "clamp by zero from both sides": case(lambda x: aten.clamp(x, 0, 0), X, counted=False),
    "clamp by another": case(aten.clamp_min, X, Y, points=16),
    "lerp by a tensor": case(aten.lerp, X, Y, positive(2, 3), counted=False),
    "compare with zero": case(lambda x: aten.gt(x, 0), X),
    "compare with infinity": case(lambda x: aten.eq(x, float("inf")), X),
    "compare with one": case(lambda x: aten.gt(x, 1.0), X, counted=False),
    "equal to one": case(lambda x: aten.eq(x, 1.0), X),
    "masked by zero": case(lambda x: aten.masked_fill(x, MASK, 0.0), X),
    "masked by minus infinity": case(lambda x: aten.masked_fill(x, MASK, -float("inf")), X),
    "masked by one": case(lambda x: aten.masked_fill(x, MASK, 1.0), X, counted=False),
    "where it is zero, one": case(lambda x: aten.where(aten.eq(x, 0), ONE, x), X),
    "where it is not zero, or one": case(lambda x: aten.where(aten.ne(x, 0), x, ONE), X),
    "masked where it is zero": case(lambda x: aten.masked_fill(x, aten.eq(x, 0), 1.0), X),
    "one where a unit is dead": case(lambda x: aten.where(aten.eq(x.relu(), 0), ONE, x.relu()), X, missed=1),
    "one where it is positive": case(lambda x: aten.where(aten.gt(x, 0), ONE, x), X, missed=1),
    "where not zero": case(lambda x: aten.where(MASK, x, torch.zeros((), dtype=torch.float64)), X),
    "fill with one": case(lambda x: aten.fill_(x, 1.0), X),
    "to complex": case(lambda x: aten._to_copy(x, dtype=torch.complex128) * C[0, 0], X),
    "plus a complex number": case(lambda x: x * C[0] + C[:1, 0], signed(2), missed=0),
    "to integers": case(lambda x: aten._to_copy(x * 3, dtype=torch.int64), X, counted=False),
    "to booleans": case(lambda x: aten._to_copy(x, dtype=torch.bool), X),
    "leaky relu in place": case(lambda x: aten.leaky_relu_(x, 0.2), X),
    "dropout for prediction": case(lambda x: aten.dropout(x, 0.5, False), X),
    "threshold elsewhere, backward": case(lambda g, x: aten.threshold_backward(g, x, 0.5), G, X, counted=False),
    "layer norm with a gain": case(lambda g, x, w: layer_norm(g, x, w, ONLY_INPUT), G, X, GAIN),
    "layer norm, to its gain too": case(lambda g, x, w: layer_norm(g, x, w, (True, True, False)), G, X, GAIN, missed=7),
}


@pytest.mark.parametrize("name", [*CASES, *FURTHER])
def test_the_rule_says_what_the_operation_does(name: str) -> None:
    check((CASES | FURTHER)[name])


STOPPED = ("detach", "detach_copy")


@pytest.mark.parametrize("name", STOPPED)
def test_for_gradients_a_detached_tensor_is_a_constant(name: str) -> None:
    """What is added to it keeps its scale; what it was made of does not."""
    detach = getattr(aten, name)

    assert directions(case(detach, X)) == (6, 6)
    assert directions(case(lambda x, y: detach(x) + y, X, Y)) == (6, 6)
    assert directions(case(lambda x, y: detach(x) * y, X, Y)) == (12, 12)


@pytest.mark.parametrize("epsilon", [1e-16, 1e-5])
def test_a_tiny_constant_is_a_guard_that_makes_a_law_approximate(epsilon: float) -> None:
    assert directions(case(lambda x: aten.add(x, epsilon), X)) == (0, 6)


def test_a_small_constant_that_is_no_guard_holds_the_scale() -> None:
    assert directions(case(lambda x: aten.add(x, 0.1), X)) == (0, 0)
