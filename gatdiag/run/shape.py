"""The shape of meta.json, on which all readers rely, and where a file differs from it.

A shape is a type (`int` for a count, `Positive` for one from 1 on, `float` for any finite number, `str` for valid
Unicode), (shape, others...) for a value that may also be one of the others, [shape] for a list, and {key: shape} for an
object. Keys with a question mark may be missing, "*" stands for any key, and further keys may be there.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

from gatdiag.names import escape_surrogates


class Positive:
    """Stands for a count that is not zero."""


_TEXT: Final = (str, None)
_NUMBER: Final = (float, None)
_COUNT: Final = (int, None)
_FLAG: Final = (bool, None)
_NAMES: Final = ([str], None)
_MAX_COUNT: Final = 2**63 - 1

_PARAMETER: Final = {"name": str, "names?": _NAMES, "role": str, "shape": [int], "trainable?": _FLAG, "module?": _TEXT}
_LAYER: Final = {"name": str, "index?": int, "kind?": _TEXT, "executed?": _FLAG, "parameters": [_PARAMETER]}
_TERM: Final = {"exponent": str, "parameter": str, "shape": [int], "axes": [int], "at": [int], "each": int}
_LAW: Final = {
    **dict.fromkeys(("name?", "kind?"), str),
    "layer": _TEXT,
    "neuron": _COUNT,
    "count?": int,
    "exact?": bool,
    "residual?": ([_NUMBER], None),
    "terms?": ([_TERM], None),
}
_LOSS: Final = {
    "operations?": [str],
    **dict.fromkeys(("divides?", "softmax_over_rows?", "is_negative?", "penalizes_weights?", "has_labels?"), bool),
    **dict.fromkeys(("weighs_by_another?", "bootstraps?"), bool),
    "broadcast_rows?": int,
    **dict.fromkeys(("empty?", "target_of?", "divergence_of?", "multiple_of?"), _TEXT),
    "ignored?": _COUNT,
    "bounded_slope?": _NUMBER,
}
_SIGNALS: Final = {
    "inputs?": [
        {
            "name": str,
            **dict.fromkeys(("rows", "columns", "non_finite", "negative?", "step?"), int),
            "first?": [int],
            **dict.fromkeys(
                ("largest_column?", "smallest_column?", "largest_row?", "row_norm?", "relative_mu?"), _NUMBER
            ),
        }
    ],
    "arguments?": [str],
    "keywords?": [str],
    "output?": {
        **dict.fromkeys(("min?", "max?", "row_sum_error?", "criterion_misfit?", "criterion_share?"), _NUMBER),
        **dict.fromkeys(("implied_mse?", "implied_variance?", "implied_mean?", "implied_square?"), _NUMBER),
        **dict.fromkeys(("target_variance?", "columns_entropy?"), _NUMBER),
        **dict.fromkeys(("first_cross_entropy?", "loss_scale?", "predicted_share?", "separation?"), _NUMBER),
        **dict.fromkeys(("unreachable_targets?", "unreachable_error?", "last_cross_entropy?"), _NUMBER),
        "columns?": {"spread?": [_NUMBER], "error?": [_NUMBER]},
        **dict.fromkeys(("last_operation?", "criterion?", "side_of_targets?"), _TEXT),
        **dict.fromkeys(("implied_step?", "implied_entries?", "counted_targets?"), _COUNT),
        **dict.fromkeys(("has_graph?", "softmax_over_rows?", "are_all_labeled?"), _FLAG),
        **dict.fromkeys(("is_next_token?", "is_own_token?"), _FLAG),
        "lowest?": _NUMBER,
        "binary_targets?": dict.fromkeys(("low", "high", "outside"), float),
        "labels?": ([int], None),
        **dict.fromkeys(("first_rows?", "last_rows?"), dict.fromkeys(("size?", "direction?"), float)),
        "common_target?": ({"step": int, **dict.fromkeys(("loss", "low", "high", "spread"), _NUMBER)}, None),
    },
    "zero_inputs?": {"*": {"first": _NUMBER, "since": _COUNT, "last": _NUMBER, "seen?": int}},
    "given?": {"*": dict.fromkeys(("largest_column", "largest_row", "row_norm"), _NUMBER)},
    "embedded?": {"*": {**dict.fromkeys(("rows", "entries"), int), "are_alike": bool}},
    "repeats?": {"*": {"runs": int, "growth": float, "rising": float}},
    "propagations?": int,
    "hops?": {"*": int},
    "rows?": {"*": int},
    "attention_peaks?": {"*": float},
    "dropped?": {"*": float},
    "softmax_along_rows?": {"*": [int]},
    "attention_ahead?": {"*": int},
    "data_hops?": {"hops": int, "before": _NUMBER, "after": _NUMBER},
    "edges?": {"*": {"edges": int, "loops": int, "connected": _NUMBER, "pairs?": _NUMBER, "is_rearranged?": bool}},
    "relations?": {"*": {"count": int, "seen": [int]}},
    "recurrence?": {"*": {"runs": int, "first": _NUMBER, "largest": _NUMBER}},
    **dict.fromkeys(("compares_outputs?", "is_critic?", "has_other_outputs?"), _FLAG),
    "loss_weights?": _COUNT,
    "edge_weights?": {"*": dict.fromkeys(("count", "negative", "zeros?", "non_finite", "negative_degrees"), int)},
    "messages?": ({"labeled": Positive, "reached": int, "nodes": Positive, "reached_nodes": int}, {}),
    "cached_edges?": {"*": {"calls": Positive, "others": int}},
    "input_sizes?": {"*": {"steps": [int], "sizes": [_NUMBER], "rows?": [int], "rewritten": int}},
    "input_orders?": {"*": dict.fromkeys(("repeated", "permuted"), int)},
    "repeated_examples?": {"pairs": int, "agreement": _NUMBER},
    "batch_axes?": {"*": {**dict.fromkeys(("batch", "time", "steps", "swapped"), int), "batch_first": bool}},
    "latents?": {
        "has_divergence?": bool,
        **dict.fromkeys(("first?", "last?"), dict.fromkeys(("size", "spread"), float)),
    },
    "graphs?": (dict.fromkeys(("batches", "within_first", "graphs", "largest", "nodes", "needed"), int), {}),
    "batch_labels?": [{"step": int, "counts": [int]}],
    "class_weights?": {"weights?": [_NUMBER], "rows?": [_NUMBER]},
    "normalization?": {
        "*": {
            **dict.fromkeys(("rows", "most_rows", "channels"), int),
            **dict.fromkeys(("momentum?", "shift?", "scale?"), _NUMBER),
        }
    },
    "evaluation?": (
        {
            **dict.fromkeys(("calls", "in_training_mode", "compared", "random"), int),
            "inputs?": {"*": dict.fromkeys(("shift", "size"), _NUMBER)},
        },
        {},
    ),
    "loss_graph?": _LOSS,
    "broken_loss?": {
        **_LOSS,
        **dict.fromkeys(("step?", "entries?", "bad_entries?", "live_entries?"), int),
        **dict.fromkeys(("is_output_finite?", "is_infinite?"), bool),
    },
    "slope_end?": {"operation?": str, "length?": int},
    "loop?": {
        **dict.fromkeys(("recorded_steps", "steps_of_new_optimizers", "backward_passes?", "turns?"), int),
        "weights_move?": bool,
        "overwritten?": dict.fromkeys(
            ("compared", "last_compared?", "changed", "undone", "first_undone?", "last_undone?"), int
        ),
    },
    "precision?": {
        "activations": [str],
        "parameters": [str],
        "largest_output_gradient": _NUMBER,
        **dict.fromkeys(("gradients?", "zero_gradients?", "tiny_gradients?", "pulled?", "unmoved?"), int),
    },
    "plain_tensors?": [{"name": str, "distinct": _NUMBER, "is_regular": bool}],
    "after_sigmoid?": [str],
    "unreached?": [str],
    "foreign_leaves?": int,
    "evaluation_from?": _COUNT,
    "batch_norms?": {"*": int},
    "copied_statistics?": [str],
    "dropout?": {"*": float},
    **dict.fromkeys(("is_rough?", "is_linear_chain?", "has_scaled_loss?", "has_several_kinds?"), bool),
}
META_SHAPE: Final = {
    "schema": int,
    "sealed": bool,
    **dict.fromkeys(("status", "name"), str),
    **dict.fromkeys(("error", "created", "ended", "model", "device", "dtype"), _TEXT),
    "structure": {"order?": _TEXT, "layers": [_LAYER]},
    "laws": {
        "found": [_LAW],
        "excluded": [{"what": str, "reason": str}],
        "error": _TEXT,
        "violated?": [{"law": int, "step": int}],
    },
    "quantities": [{"name": str, "table?": _TEXT}],
    "cadence": {"budget?": _NUMBER, "groups?": ({"*": int}, None)},
    "optimizers": [{"class": _TEXT, "groups": [{"parameters?": _NAMES}], "from_step?": _COUNT}],
    "versions": {},
    "first_non_finite": ({"step": int, "layer": _TEXT, "where": str, "parameter?": _TEXT, "kind": str}, None),
    "best": ({"name?": _TEXT, "mode?": _TEXT, "value?": _NUMBER, "step?": _COUNT}, None),
    "signals?": (_SIGNALS, None),
    "notes": [str],
    "resumed_at": [int],
}


def find_flaw(value: Any, shape: Any, place: str = "") -> str | None:
    """The place at which a value differs from a shape, such as "structure.layers.0.name"; None if it fits.

    Example:
        >>> find_flaw({"notes": ["a", 3]}, {"notes": [str]})
        'notes.1'
    """
    if isinstance(shape, tuple):
        shape, *others = shape
        if any(value is other or value == other == {} for other in others):
            return None
    if not _is_of_kind(value, type(shape) if isinstance(shape, dict | list) else shape):
        return place
    if not isinstance(shape, dict | list):
        return None
    held = dict(enumerate(value)) if isinstance(shape, list) else value
    for key, inner in _inner_shapes(shape, held).items():
        inside = f"{place}.{key}".lstrip(".")
        flaw = find_flaw(held[key], inner, inside) if key in held else inside
        if flaw is not None:
            return flaw
    return None


def _inner_shapes(shape: Any, held: Mapping[Any, Any]) -> dict[Any, Any]:
    """The shape of each item that a list or an object has, or has to have."""
    if isinstance(shape, list) or "*" in shape:
        return dict.fromkeys(held, shape[0] if isinstance(shape, list) else shape["*"])
    return {key.rstrip("?"): inner for key, inner in shape.items() if key[-1] != "?" or key.rstrip("?") in held}


def _is_of_kind(value: Any, kind: type) -> bool:
    if kind in (int, Positive):
        return type(value) is int and (kind is Positive) <= value <= _MAX_COUNT
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return isinstance(value, kind) and (not isinstance(value, str) or escape_surrogates(value) == value)
