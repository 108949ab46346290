"""The rule table: aten operation -> what it demands of the exponents and which exponents its result has.

A rule reads the labels of the arguments, adds equations, and returns the label of the result. An operation that is not
in the table holds everything it touches at exponent zero and is reported by name: a law may be missed, never invented.
In-place and ``out=`` forms (``add_``, ``add.out``) use the rule of the plain form.

To add an operation, put its aten name behind a rule that fits, or write a rule in the module of its family:

    def addcmul(call: Call) -> Label:  # self + value * tensor1 * tensor2
        return call.exponents.require_equal(call.label("self"), call.label("tensor1") + call.label("tensor2"))

and add a case of that name to `CASES` of the family in ``tests/laws/rules``, which compares the rule with finite
differences of the operation.
"""

from fractions import Fraction

from gatdiag.laws.rules import arrangement, elementwise, matrix, normalization, reduction, scatter
from gatdiag.laws.rules.call import Call, Labels, Rule, each

__all__ = ["RULES", "Call", "Labels", "Rule"]


RULES: dict[str, Rule] = {
    # f(s x) = s f(x) for s > 0
    **each(
        elementwise.homogeneous,
        "abs alias clone contiguous nan_to_num neg positive relu leaky_relu rrelu_with_noise_functional tril "
        "triu real imag dropout feature_dropout native_dropout _conj _conj_physical conj_physical resolve_conj "
        "resolve_neg _neg_view rrelu_with_noise deg2rad rad2deg",
    ),
    **each(elementwise.detach, "detach detach_copy"),
    **each(elementwise.cast, "_to_copy to"),
    **each(elementwise.threshold, "threshold"),
    **each(elementwise.prelu, "_prelu_kernel prelu"),
    **each(elementwise.clamp, "clamp clamp_min clamp_max clip"),
    # powers
    "square": elementwise.homogeneous_of_degree(2),
    "sqrt": elementwise.homogeneous_of_degree(Fraction(1, 2)),
    "rsqrt": elementwise.homogeneous_of_degree(Fraction(-1, 2)),
    "reciprocal": elementwise.homogeneous_of_degree(-1),
    "pow": elementwise.power,
    "float_power": elementwise.power,
    # several arguments
    **each(elementwise.mul, "mul multiply"),
    **each(elementwise.div, "div divide true_divide"),
    **each(elementwise.add, "add sub rsub subtract"),
    "addcmul": elementwise.addcmul,
    "addcdiv": elementwise.addcdiv,
    "lerp": elementwise.lerp,
    **each(elementwise.maximum, "maximum minimum fmax fmin hypot"),
    "polar": elementwise.polar,
    "atan2": elementwise.angle_of_pair,
    "copysign": elementwise.copysign,
    "ldexp": elementwise.ldexp,
    **each(elementwise.compare, "eq ne lt le gt ge"),
    "glu": elementwise.glu,
    "where": elementwise.where,
    "masked_fill": elementwise.masked_fill,
    **each(elementwise.copy, "copy copy_"),
    **each(elementwise.fill, "fill fill_"),
    # not homogeneous
    **each(
        elementwise.inhomogeneous,
        "exp exp2 expm1 log log2 log10 log1p sigmoid log_sigmoid_forward tanh sin cos tan asin acos atan sinh "
        "cosh asinh acosh atanh erf erfc erfinv elu celu selu gelu silu mish softplus softshrink "
        "hardshrink hardsigmoid hardswish hardtanh logit _softmax _safe_softmax _log_softmax logsumexp floor "
        "ceil round trunc frac fmod remainder bernoulli multinomial nll_loss_forward binary_cross_entropy "
        "_local_scalar_dense bincount alpha_dropout feature_alpha_dropout "
        "binary_cross_entropy_with_logits nll_loss2d_forward smooth_l1_loss huber_loss soft_margin_loss _ctc_loss "
        "logaddexp logaddexp2 _logcumsumexp logcumsumexp xlogy lgamma digamma sinc "
        "special_entr special_erfcx special_log_ndtr special_ndtri special_xlog1py linalg_matrix_exp "
        "_linalg_slogdet floor_divide histc renorm embedding_renorm _standard_gamma poisson "
        "_thnn_fused_gru_cell _thnn_fused_lstm_cell",
    ),
    # the result does not depend on a positive scale
    **each(
        elementwise.scale_invariant,
        "is_pinned is_coalesced isnan isinf isfinite isposinf isneginf nonzero count_nonzero any all "
        "logical_not logical_and logical_or logical_xor is_nonzero ones_like new_ones rand_like randn_like "
        "randint_like full_like sym_size sym_numel normal uniform exponential bernoulli_ sym_stride "
        "sym_storage_offset _fused_sdp_choice _nested_tensor_size random geometric cauchy log_normal indices _indices "
        "crow_indices col_indices ccol_indices row_indices _nnz sparse_dim dense_dim",
    ),
    **each(elementwise.sign, "sign sgn signbit angle heaviside"),
    # move, repeat, select
    **each(
        arrangement.rearrange,
        "expand permute transpose t squeeze unsqueeze slice select split split_with_sizes unsafe_split "
        "unsafe_split_with_sizes unsafe_chunk unbind chunk diagonal flip roll unfold repeat movedim narrow "
        "take_along_dim take repeat_interleave tensor_split swapaxes pixel_shuffle pixel_unshuffle channel_shuffle "
        "native_channel_shuffle rot90 expand_copy permute_copy transpose_copy t_copy squeeze_copy unsqueeze_copy "
        "slice_copy select_copy split_copy split_with_sizes_copy unbind_copy diagonal_copy unfold_copy "
        "_pack_padded_sequence",
    ),
    **each(arrangement.reshape, "view view_copy _unsafe_view reshape _reshape_alias flatten unflatten"),
    **each(
        arrangement.resample,
        "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
        "_upsample_nearest_exact3d",
    ),
    "im2col": arrangement.im2col,
    "masked_scatter": arrangement.masked_scatter,
    "block_diag": arrangement.block_diag,
    "view_as_complex": arrangement.view_as_complex,
    "complex": arrangement.complex_from_parts,
    "view_as_real": arrangement.view_as_real,
    "as_strided": arrangement.as_strided,
    "index_select": arrangement.index_select,
    "gather": arrangement.gather,
    **each(arrangement.index, "index _unsafe_index"),
    "masked_select": arrangement.masked_select,
    "index_copy": arrangement.index_copy,
    "cat": arrangement.cat,
    "stack": arrangement.stack,
    "constant_pad_nd": arrangement.constant_pad,
    **each(arrangement.embed_in_zeros, "diag_embed slice_backward select_backward diagonal_backward"),
    **each(arrangement.slice_scatter, "slice_scatter select_scatter diagonal_scatter"),
    "embedding": arrangement.embedding,
    **each(arrangement.embedding_bag, "_embedding_bag _embedding_bag_forward_only"),
    # exact zeros and constants
    **each(
        arrangement.new_zeros,
        "zeros zeros_like new_zeros zero zero_ empty empty_like new_empty empty_strided new_empty_strided "
        "empty_permuted",
    ),
    **each(arrangement.lift, "lift lift_fresh lift_fresh_copy"),
    **each(arrangement.full, "full new_full scalar_tensor"),
    # reductions
    **each(
        reduction.reduce,
        "nansum nanmean amax amin max min median nanmedian mode kthvalue _sparse_sum",
    ),
    **each(reduction.sum_or_norm, "sum mean linalg_vector_norm norm"),
    "aminmax": reduction.aminmax,
    **each(reduction.variance(2), "var var_mean"),
    **each(reduction.variance(1), "std std_mean"),
    **each(reduction.scan, "cumsum cummax cummin sort topk _fft_r2c _fft_c2c _fft_c2r"),
    **each(reduction.argmax, "argmax argmin argsort"),
    "prod": reduction.prod,
    **each(
        reduction.coarse_linear,
        "coalesce _coalesce _coalesced to_dense _to_dense to_sparse _to_sparse values _values trace "
        "_to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc sparse_mask",
    ),
    **each(
        reduction.pool,
        "avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d "
        "adaptive_avg_pool2d adaptive_avg_pool3d max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d "
        "adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d upsample_linear1d "
        "upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    ),
    **each(reduction.grid_sample, "grid_sampler_2d grid_sampler_3d"),
    "col2im": reduction.col2im,
    **each(reduction.cdist, "_cdist_forward cdist _euclidean_dist"),
    "_pdist_forward": reduction.pdist,
    "mse_loss": reduction.squared_error,
    **each(reduction.order, "searchsorted bucketize isin"),
    # products summed over an index
    **each(matrix.matmul, "mm bmm matmul mv dot vdot _sparse_mm _sparse_mm_reduce_impl _sparse_sparse_matmul"),
    **each(matrix.addmm, "addmm baddbmm addmv _sparse_addmm"),
    "linear": matrix.linear,
    **each(matrix.convolution, "convolution _convolution"),
    **each(
        matrix.attention,
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_fused_attention_overrideable",
    ),
    "mkldnn_rnn_layer": matrix.mkldnn_recurrent,
    "_cudnn_rnn": matrix.cudnn_recurrent,
    "_trilinear": matrix.trilinear,
    **each(matrix.outer, "ger outer"),
    "addr": matrix.addr,
    "addbmm": matrix.addbmm,
    "linalg_cross": matrix.cross,
    # functions of a whole matrix: the degrees of the results
    "linalg_inv_ex": matrix.of_matrix(-1),
    "linalg_cholesky_ex": matrix.of_matrix(Fraction(1, 2)),
    "linalg_qr": matrix.of_matrix(0, 1),
    "_linalg_eigh": matrix.of_matrix(1, 0),
    "_linalg_svd": matrix.of_matrix(0, 1, 0),
    # message passing
    **each(scatter.scatter, "scatter scatter_add scatter_reduce index_add index_reduce index_fill"),
    **each(scatter.index_put, "index_put _unsafe_index_put"),
    **each(scatter.segment_reduce, "segment_reduce"),
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
    **each(elementwise.piecewise_linear_backward, "threshold_backward leaky_relu_backward native_dropout_backward"),
    **each(
        elementwise.inhomogeneous_backward,
        "sigmoid_backward tanh_backward elu_backward gelu_backward silu_backward mish_backward softplus_backward "
        "log_sigmoid_backward hardtanh_backward hardswish_backward hardsigmoid_backward softshrink_backward "
        "hardshrink_backward",
    ),
    **each(reduction.softmax_backward, "_softmax_backward_data _log_softmax_backward_data"),
    "_prelu_kernel_backward": elementwise.prelu_backward,
    "native_layer_norm_backward": normalization.layer_norm_backward,
}
