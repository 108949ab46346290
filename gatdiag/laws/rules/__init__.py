"""The rule table: aten operation -> what it demands of the exponents and which exponents its result has.

A rule reads the labels of the arguments, adds equations, and returns the label of the result. An operation that is not
in the table holds everything it touches at exponent zero and is reported by name: a law may be missed, never invented.
In-place and ``out=`` forms (``add_``, ``add.out``) use the rule of the plain form.
"""

from fractions import Fraction

from gatdiag.laws.rules import arrangement, elementwise, matrix, normalization, reduction, scatter
from gatdiag.laws.rules.call import Call, Labels, Rule, each

__all__ = ["RULES", "Call", "Labels", "Rule"]


RULES: dict[str, Rule] = {
    # f(s x) = s f(x) for s > 0
    **each(
        elementwise.same,
        "abs alias clone contiguous nan_to_num neg positive relu leaky_relu rrelu_with_noise_functional tril "
        "triu real imag dropout feature_dropout native_dropout _conj _conj_physical resolve_conj resolve_neg "
        "rrelu_with_noise",
    ),
    **each(elementwise.stopped, "detach detach_copy"),
    **each(elementwise.converted, "_to_copy to"),
    **each(elementwise.hinge, "threshold"),
    **each(elementwise.leaky, "_prelu_kernel prelu"),
    **each(elementwise.clamped, "clamp clamp_min clamp_max clip"),
    # powers
    "square": elementwise.power_of(2),
    "sqrt": elementwise.power_of(Fraction(1, 2)),
    "rsqrt": elementwise.power_of(Fraction(-1, 2)),
    "reciprocal": elementwise.power_of(-1),
    "pow": elementwise.power,
    "float_power": elementwise.power,
    # two arguments
    **each(elementwise.product, "mul multiply"),
    **each(elementwise.quotient, "div divide true_divide"),
    **each(elementwise.total, "add sub rsub subtract"),
    "addcmul": elementwise.fused_product,
    "addcdiv": elementwise.fused_quotient,
    "lerp": elementwise.interpolation,
    **each(elementwise.either, "maximum minimum fmax fmin hypot"),
    "polar": elementwise.polar,
    **each(elementwise.compared, "eq ne lt le gt ge"),
    "glu": elementwise.gated,
    "where": elementwise.chosen,
    "masked_fill": elementwise.masked,
    **each(elementwise.written, "copy copy_"),
    **each(elementwise.filled, "fill fill_"),
    # not homogeneous
    **each(
        elementwise.fixed,
        "exp exp2 expm1 log log2 log10 log1p sigmoid log_sigmoid_forward tanh sin cos tan asin acos atan sinh "
        "cosh asinh acosh atanh erf erfc erfinv elu celu selu gelu silu mish softplus softshrink "
        "hardshrink hardsigmoid hardswish hardtanh logit _softmax _safe_softmax _log_softmax logsumexp floor "
        "ceil round trunc frac fmod remainder bernoulli multinomial nll_loss_forward binary_cross_entropy "
        "_local_scalar_dense mkldnn_rnn_layer bincount alpha_dropout feature_alpha_dropout "
        "binary_cross_entropy_with_logits "
        "_thnn_fused_gru_cell _thnn_fused_lstm_cell",
    ),
    # blind to a positive scale
    **each(
        elementwise.unscaled,
        "is_pinned is_coalesced sign sgn signbit isnan isinf isfinite isposinf isneginf nonzero count_nonzero any all "
        "angle logical_not logical_and logical_or is_nonzero heaviside ones_like new_ones rand_like randn_like "
        "randint_like full_like sym_size sym_numel normal uniform exponential bernoulli_ sym_stride "
        "sym_storage_offset _nested_tensor_size",
    ),
    # move, repeat, select
    **each(
        arrangement.arranged,
        "expand permute transpose t squeeze unsqueeze slice select split split_with_sizes unsafe_split "
        "unsafe_split_with_sizes unsafe_chunk unbind chunk diagonal flip roll unfold repeat movedim narrow "
        "take_along_dim repeat_interleave tensor_split swapaxes pixel_shuffle",
    ),
    **each(arrangement.reshaped, "view _unsafe_view reshape _reshape_alias flatten unflatten"),
    "view_as_complex": arrangement.paired,
    "complex": arrangement.composed,
    "view_as_real": arrangement.parted,
    "as_strided": arrangement.strided,
    "index_select": arrangement.selected,
    "gather": arrangement.gathered,
    **each(arrangement.indexed, "index _unsafe_index"),
    "masked_select": arrangement.masked_select,
    "index_copy": arrangement.replaced,
    "cat": arrangement.joined,
    "stack": arrangement.stacked,
    "constant_pad_nd": arrangement.padded,
    **each(arrangement.embedded, "diag_embed slice_backward select_backward diagonal_backward"),
    **each(arrangement.inserted, "slice_scatter select_scatter diagonal_scatter"),
    "embedding": arrangement.looked_up,
    # exact zeros and constants
    **each(
        arrangement.made_of_zeros,
        "zeros zeros_like new_zeros zero zero_ empty empty_like new_empty empty_strided new_empty_strided "
        "empty_permuted",
    ),
    **each(arrangement.literal, "lift lift_fresh lift_fresh_copy"),
    **each(arrangement.constant, "full new_full scalar_tensor"),
    # reductions
    **each(
        reduction.reduced,
        "nansum nanmean amax amin max min median nanmedian mode kthvalue _sparse_sum",
    ),
    **each(reduction.summed, "sum mean linalg_vector_norm norm"),
    "aminmax": reduction.extremes,
    **each(reduction.spread(2), "var var_mean"),
    **each(reduction.spread(1), "std std_mean"),
    **each(reduction.along_axis, "cumsum cummax cummin sort topk _fft_r2c _fft_c2c _fft_c2r"),
    **each(reduction.positions, "argmax argmin argsort"),
    "prod": reduction.multiplied,
    **each(
        reduction.lumped_first,
        "coalesce _coalesce _coalesced to_dense _to_dense to_sparse _to_sparse values _values trace",
    ),
    **each(
        reduction.pooled,
        "avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d "
        "adaptive_avg_pool2d max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d "
        "upsample_linear1d",
    ),
    **each(reduction.distance, "_cdist_forward cdist"),
    # products summed over an index
    **each(matrix.product, "mm bmm matmul mv dot vdot _sparse_mm _sparse_mm_reduce_impl _sparse_sparse_matmul"),
    **each(matrix.shifted_product, "addmm baddbmm addmv _sparse_addmm"),
    "linear": matrix.linear,
    **each(matrix.convolution, "convolution _convolution"),
    "_trilinear": matrix.trilinear,
    **each(matrix.outer, "ger outer"),
    # message passing
    **each(scatter.scattered, "scatter scatter_add scatter_reduce index_add index_reduce index_fill"),
    **each(scatter.placed, "index_put _unsafe_index_put"),
    **each(scatter.segmented, "segment_reduce"),
    **each(scatter.sparse_from_values, "_sparse_coo_tensor_with_dims_and_tensors sparse_compressed_tensor"),
    # normalization
    **each(
        normalization.batch_norm,
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
        "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update cudnn_batch_norm "
        "miopen_batch_norm",
    ),
    **each(normalization.layer_norm, "native_layer_norm _fused_rms_norm rms_norm"),
    **each(normalization.group_norm, "native_group_norm"),
    "_weight_norm_interface": normalization.weight_norm,
    # backward passes inside the forward pass
    **each(elementwise.passed_back, "threshold_backward leaky_relu_backward native_dropout_backward"),
    **each(
        elementwise.curved_backward,
        "sigmoid_backward tanh_backward elu_backward gelu_backward silu_backward mish_backward softplus_backward "
        "log_sigmoid_backward hardtanh_backward hardswish_backward hardsigmoid_backward softshrink_backward "
        "hardshrink_backward",
    ),
    **each(reduction.softmax_backward, "_softmax_backward_data _log_softmax_backward_data"),
    "_prelu_kernel_backward": elementwise.leaky_backward,
    "native_layer_norm_backward": normalization.layer_norm_backward,
}
"""Operation name -> rule."""
