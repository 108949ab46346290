"""Statistics of a model's inputs and outputs, and the loss function, identified by its gradient at the output.

With logits o, the gradient of cross-entropy is k (softmax(o) - onehot) and that of `nll_loss` is -k onehot; its
smallest entry is the label. With weights of classes, each label has its own k. The loss itself is not accessed. A
softmax or sigmoid before a loss that applies another one is visible in the gradient, too.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from gatdiag.metrics.smoothing import as_rows

_MAX_MISFIT: Final = 1e-2  # relative to dL/dout
# A loss with one softmax or sigmoid too many has nearly the gradient of the usual loss near o = 0, and of one row with
# one or two entries. So it has to fit ten times better than the others, up to rounding errors, and in several rows.
# One or two rows of one number fit any loss that falls towards the label: they count if they are as long as a mean is.
_FACTOR: Final = 10.0
_MAX_ROUNDINGS: Final = 1e3
_TWICE_MIN_ROWS: Final = 3
_ONE_NUMBER: Final = 2  # columns, of which a softmax depends on the difference alone
_WEIGHTED_MIN_ROWS: Final = 3  # for each class, on average
_SIGNIFICANT_ROW: Final = 0.1  # of the largest row norm; smaller rows do not count
_MAX_ROWS: Final = 5000  # for labels; evenly spaced, because in link prediction all positive pairs come first
_MAX_FITTED_ROWS: Final = 500  # for the loss, so as well
_MAX_TARGET_SPREAD: Final = 1e-3  # of targets that count as one, relative to the spread of the outputs
_MAX_COUNT_ERROR: Final = 0.05  # of a number of targets
_MIN_COUNTING_ROWS: Final = 8
_LOSS_ERROR: Final = 1e-2  # relative, of a loss by which it is known
_TARGET_ERROR: Final = 1e-4  # the same, where it is the only evidence
_TELLING_PART: Final = 0.01  # of the same
_MAX_LOGIT: Final = 5.0  # whose sigmoid is not saturated
_MIN_SQUARE: Final = 0.2  # mean of the logits' squares, from which on losses of logits differ
_MAX_COLUMNS: Final = 16  # of targets that are told apart
_CHUNK: Final = 2**18  # entries that fit into the CPU cache
_TINY: Final = 1e-300
# Losses on logits that are given probabilities -> the operation that makes these.
TWICE: Final = {"cross-entropy-of-softmax": "softmax", "bce-logits-of-sigmoid": "sigmoid"}
ON_LOGITS: Final = ("cross-entropy", "nll", "bce-logits")  # or on log-probabilities
_EXACT: Final = (*TWICE, "uniform-targets")  # cross-entropy with targets 1 / classes, as of a label smoothing of one
_UNNAMED: Final = ("error-of-softmax", "mse-of-softmax")  # 1 - p[y] and (p - onehot)^2: not reported
_VIEWS: Final = ("View", "Squeeze", "Index", "Unsqueeze", "Reshape", "Clone", "Select", "Slice", "ToCopy", "Alias")


def input_statistics(name: str, x: Tensor) -> dict[str, Any]:
    """Statistics of a floating-point input, as they stand in meta.json."""
    x = as_rows(x.detach())
    found: dict[str, Any] = {"name": name, "rows": x.shape[0], "columns": x.shape[1], "non_finite": 0}
    if not x.numel():
        return {**found, "largest_column": 0.0, "smallest_column": 0.0, "row_norm": 0.0, "relative_mu": 0.0}
    moments = column_moments(x)
    if not bool(moments.isfinite().all()) and (broken := non_finite_entries(x))[0]:
        return describe_broken_input(name, x.shape, broken)
    mean, size = moments[0], moments[1].sqrt()
    nonzero = size[size > 0]
    norms = torch.linalg.vector_norm(x, dim=1)
    common = (mean / size.norm().clamp(min=_TINY)).square().sum()  # common part of the squared norm
    return {
        **found,
        "largest_column": float(size.max()),
        "smallest_column": float(nonzero.min()) if len(nonzero) else 0.0,
        "row_norm": float(size.norm()),
        "largest_row": float(norms.max() / median) if (median := norms.median()) > 0 else 0.0,
        "relative_mu": float((1 - common).clamp(min=0).sqrt()) if len(nonzero) else 0.0,
    }


def column_moments(x: Tensor) -> Tensor:
    """The mean and the mean square of each column of a matrix with rows, as float64, (2, columns)."""
    x = as_rows(x.detach())
    sums = torch.zeros(2, x.shape[1], dtype=torch.float64, device=x.device)
    for chunk in x.split(max(1, _CHUNK // x.shape[1])):  # ten times as fast as x.sum(0, dtype=torch.float64)
        exact = chunk.double()
        sums += torch.stack([exact.sum(0), exact.square().sum(0)])
    return sums / len(x)


def compare_moments(known: Tensor, given: Tensor) -> dict[str, float]:
    """How far the columns of one matrix are from those of another; empty if they cannot be compared.

    Returns:
        "shift": distance of the means, over the spread of the known columns; "size": size of the rows over that of the
        known ones.
    """
    if known.shape != given.shape or not bool(known.isfinite().all()) or not bool(given.isfinite().all()):
        return {}
    spread = float((known[1] - known[0].square()).clamp(min=0).sum().sqrt())
    size = float(known[1].sum().sqrt())
    if not spread > 0:
        return {}
    shift = float((given[0] - known[0]).norm()) / spread
    return {"shift": shift, "size": float(given[1].sum().sqrt()) / size}


def non_finite_entries(x: Tensor) -> Tensor:
    """The number of NaN and infinite entries, the position of the first in the flattened tensor, that of -inf, (3,)."""
    bad = ~x.isfinite()
    return torch.stack([bad.sum(), bad.flatten().byte().argmax(), x.isneginf().sum()])


def describe_broken_input(name: str, shape: Sequence[int], broken: Tensor) -> dict[str, Any]:
    """What stands in meta.json instead of the statistics of an input with `non_finite_entries`."""
    count, first, negative = broken.tolist()
    place = [*divmod(first, shape[1])]
    found = {"name": name, "rows": shape[0], "columns": shape[1], "non_finite": count, "first": place}
    return {**found, "negative": negative} if negative < shape[0] * shape[1] else found


def is_broken(described: Mapping[str, Any]) -> bool:
    """Whether an input has entries that are NaN or infinite, and not only minus infinity beside finite ones.

    That is what a mask looks like that is added to scores of attention, with distances in it (ALiBi) or without.

    Example:
        >>> scores = torch.tensor([[0.0, -1.0], [0.0, -math.inf]])
        >>> [is_broken(input_statistics("x", x)) for x in (scores, -scores)]
        [False, True]
    """
    return bool(described["non_finite"] > described.get("negative", 0))


def output_statistics(o: Tensor) -> dict[str, float]:
    """Range of an output, and the largest deviation of its row sums from one; empty if it is not finite."""
    o = as_rows(o.detach()).double()
    if not o.numel() or not bool(o.isfinite().all()):
        return {}
    error = float((o.sum(1) - 1).abs().max()) if o.shape[1] > 1 else float("nan")
    return {"min": float(o.min()), "max": float(o.max()), "row_sum_error": error}


def last_operation(o: Tensor) -> str:
    """Name of the autograd node that computed an output, before views and copies; "" without a graph."""
    node: Any = o.grad_fn
    while node is not None and type(node).__name__.startswith(_VIEWS) and node.next_functions:
        node = node.next_functions[0][0]
    return "" if node is None else type(node).__name__


def is_softmax_over_rows(o: Tensor) -> bool:
    """True if a matrix was computed by (log-)softmax over its rows, so that its columns add up to one."""
    node: Any = o.grad_fn
    is_softmax = type(node).__name__.startswith(("SoftmaxBackward", "LogSoftmaxBackward"))
    return o.dim() == 2 and is_softmax and node._saved_dim in (0, 2**64 - 2)  # torch stores dim=-2 without sign


def identify(o: Tensor, gradient: Tensor) -> tuple[str, float, Tensor | None]:
    """Identify the loss by the output and the gradient there.

    Returns:
        Its name, or ""; the misfit; and the number of rows with each label, if the gradient shows it.
    """
    o, g = as_rows(o.detach()), as_rows(gradient.detach())
    live = (g != 0).any(1)
    rounding = max(torch.finfo(dtype).eps for dtype in (g.dtype, torch.float32))
    o, g = o[live], g[live]
    every = max(1, -(-len(g) // _MAX_ROWS))
    o, g = o[::every].double(), g[::every].double()
    if not len(g) or not bool(o.isfinite().all()) or not bool(g.isfinite().all()):
        return "", float("nan"), None
    few = slice(None, None, max(1, -(-len(g) // _MAX_FITTED_ROWS)))
    fitted = g[few]
    shapes = _gradient_shapes(o[few], fitted)
    misfits = {name: _misfit(fitted, shape) for name, shape in shapes.items()}
    rare = (*_EXACT, *_UNNAMED)
    best = min(misfits, key=lambda n: (_FACTOR if n in rare else 1) * max(misfits[n], rounding))
    max_misfit = min(_MAX_MISFIT, _MAX_ROUNDINGS * rounding) if best in _EXACT else _MAX_MISFIT
    sizes = fitted.norm(dim=1)
    may_be_chance = best in _EXACT and int((sizes > _SIGNIFICANT_ROW * sizes.max()).sum()) < _TWICE_MIN_ROWS
    if not misfits[best] < _MAX_MISFIT and (weighted := _identify_weighted(fitted, shapes, _MAX_ROUNDINGS * rounding)):
        return *weighted, None  # the loss of a constant prediction depends on the weights, too
    if len(sizes) < _TWICE_MIN_ROWS and g.shape[1] <= _ONE_NUMBER and best in (*ON_LOGITS, "bce"):
        may_be_chance = may_be_chance or not _is_of_mean_or_sum(best, o, g)
    if best in _UNNAMED or may_be_chance or not misfits[best] < max_misfit:
        return "", misfits[best], None
    labels = _count_labels(best, g)
    if labels is not None and labels.max() == labels.sum() and not _shows_one_class(fitted, misfits[best], rounding):
        labels = None
    return best, misfits[best], labels


def _identify_weighted(g: Tensor, shapes: dict[str, Tensor], max_misfit: float) -> tuple[str, float] | None:
    """Name and misfit of a loss with a weight for each class; None if there are too few rows to tell."""
    onehot, sizes = _onehot(g), g.norm(dim=1)
    rows = onehot[sizes > _SIGNIFICANT_ROW * sizes.max()].sum(0)
    if rows.sum() < _WEIGHTED_MIN_ROWS * (rows > 0).sum():
        return None
    for name in ("cross-entropy", "nll"):
        if name in shapes and (misfit := _misfit(g, shapes[name], onehot)) < max_misfit:
            return name, misfit
    return None


def class_weights(o: Tensor, gradient: Tensor) -> dict[str, list[float]]:
    """The weight that a cross-entropy gives to each class, if dL/dout shows one for each, and the rows of the classes.

    Returns:
        "weights", of which the mean over all rows is one (0 of a class without a row), and "rows"; empty if the loss is
        another one.
    """
    o, g = _finite_live_rows(o, gradient)
    o, g = o[:_MAX_FITTED_ROWS], g[:_MAX_FITTED_ROWS]
    is_binary = g.shape[1] == 1
    groups = torch.cat([g >= 0, g < 0], 1).double() if is_binary else _onehot(g)
    shape = o.sigmoid() - (g < 0).double() if is_binary else o.softmax(1) - groups
    rows = groups.sum(0)
    if not len(g):
        return {}
    seen = groups[:, rows > 0]
    fewest = rows[rows > 0].min() if g.shape[1] <= _ONE_NUMBER else rows.max()  # one row of many numbers has a shape
    is_enough = seen.shape[1] > 1 and bool(fewest >= _WEIGHTED_MIN_ROWS)
    max_misfit = _MAX_ROUNDINGS * max(torch.finfo(gradient.dtype).eps, torch.finfo(torch.float32).eps)
    if not is_enough or not _misfit(g, shape, seen) < max_misfit:
        return {}
    weights = (groups.T @ (g * shape).sum(1)) / (groups.T @ shape.square().sum(1)).clamp(min=_TINY)
    return {"weights": (weights / (weights @ rows / rows.sum())).tolist(), "rows": rows.tolist()}


def join_weights(known: dict[str, list[float]], found: dict[str, list[float]]) -> dict[str, list[float]]:
    """The `class_weights` of several batches: the sum of their rows, and the mean of their weights by rows.

    Each is scaled so that the class which is the most frequent one in both counts alike.

    Example:
        >>> known = {"weights": [1.2, 0.6, 0.0], "rows": [4.0, 2.0, 0.0]}
        >>> joined = join_weights(known, {"weights": [1.4, 0.0, 0.35], "rows": [5.0, 0.0, 3.0]})
        >>> joined["rows"], [round(weight / joined["weights"][0], 3) for weight in joined["weights"]]
        ([9.0, 2.0, 3.0], [1.0, 0.5, 0.25])
    """
    if not known or not found or len(known["rows"]) != len(found["rows"]):
        return known or found
    (w, rows), (v, more) = (
        [torch.tensor(one[name]).double() for name in ("weights", "rows")] for one in (known, found)
    )
    common = int(torch.minimum(rows, more).argmax())
    if not min(rows[common], more[common]) > 0:
        return known
    total = rows + more
    weights = (w / w[common] * rows + v / v[common] * more) / total.clamp(min=_TINY)
    return {"weights": (weights / (weights @ total / total.sum())).tolist(), "rows": total.tolist()}


def _count_labels(name: str, g: Tensor) -> Tensor | None:
    if name.startswith("bce"):
        return torch.bincount((g < 0).flatten().long(), minlength=2) if g.shape[1] == 1 else None
    if name in _EXACT:
        return None  # the smallest entry need not be the label
    return torch.bincount(g.argmin(1), minlength=g.shape[1])


def labels_of_rows(gradient: Tensor) -> Tensor:
    """The label of each row of an output, by the gradient of a cross-entropy; NaN where there is none."""
    g = as_rows(gradient.detach()).double()
    labels = (g[:, 0] < 0).double() if g.shape[1] == 1 else g.argmin(1).double()
    return labels.where((g != 0).any(1), torch.nan)


def _shows_one_class(g: Tensor, misfit: float, rounding: float) -> bool:
    """True if no error of a regression has this gradient, too, as it may where outputs and targets are nearly equal.

    The absolute error has a constant gradient, and any other error nearly so if its outputs hardly differ.
    """
    constant = _misfit(g, g.sign()) if g.shape[1] == 1 else math.inf
    return misfit < min(_MAX_ROUNDINGS * rounding, constant / _FACTOR)


def predicted_share(o: Tensor, gradient: Tensor) -> float | None:
    """Share of the class that is predicted most, among the rows with a gradient; None without any."""
    o, _ = _finite_live_rows(o, gradient)
    predicted = (o[:, 0] > 0).long() if o.shape[1] == 1 else o.argmax(1)
    return float(predicted.bincount().max() / len(o)) if len(o) else None


def separation(o: Tensor, gradient: Tensor) -> float | None:
    """How well outputs separate the most frequent class from the others: the AUC; None if there is only one class."""
    o, g = _finite_live_rows(o, gradient)
    if not len(o):
        return None
    labels = (g[:, 0] < 0).long() if o.shape[1] == 1 else g.argmin(1)
    frequent = int(labels.bincount().argmax())
    scores = o[:, 0] * (2 * frequent - 1) if o.shape[1] == 1 else o[:, frequent]
    inside, others = scores[labels == frequent], scores[labels != frequent].sort().values
    if not len(others):
        return None
    below = torch.searchsorted(others, inside) + torch.searchsorted(others, inside, right=True)
    return float(below.double().mean() / 2 / len(others))


def cross_entropy(o: Tensor, gradient: Tensor) -> float:
    """Mean cross-entropy of the rows with a gradient, whatever the loss is scaled by; logits of one column are of two.

    Rows whose label is certain have a gradient of zero, so it may be too high, but not too low.
    """
    o, g = _finite_live_rows(o, gradient)
    if o.shape[1] == 1:
        o, g = torch.cat([torch.zeros_like(o), o], 1), torch.cat([-g, g], 1)
    return float(F.cross_entropy(o, g.argmin(1)))


def scale_of_mean(name: str, o: Tensor, gradient: Tensor) -> float:
    """What a loss is times the mean over its rows: 1 for the mean, the number of rows for the sum.

    Rows whose label is certain have no gradient and do not count.

    Args:
        name: Of the loss, one of `ON_LOGITS`.
        o: The output.
        gradient: That of the output.
    """
    o, g = _finite_live_rows(o, gradient)
    if not len(g):
        return float("nan")
    shape = _gradient_shapes(o, g)[name]
    count = g.numel() if name.startswith("bce") else len(g)
    return float((g * shape).sum() / shape.square().sum().clamp(min=_TINY)) * count


def add_losses(known: Mapping[str, float], cross_entropy: float, scale: float) -> dict[str, float]:
    """The sum of the cross-entropies of several outputs, as of positive and negative pairs, as a mean and its factor.

    Example:
        >>> add_losses({"first_cross_entropy": 0.5, "loss_scale": 1.0}, 1.5, 1.0)
        {'first_cross_entropy': 1.0, 'loss_scale': 2.0}
    """
    if not known.get("loss_scale", 0.0) > 0 or not scale > 0:
        return {"first_cross_entropy": cross_entropy, "loss_scale": scale} | {
            name: known[name] for name in ("first_cross_entropy", "loss_scale") if name in known
        }
    total = known["loss_scale"] + scale
    return {
        "first_cross_entropy": (known["first_cross_entropy"] * known["loss_scale"] + cross_entropy * scale) / total,
        "loss_scale": total,
    }


def binary_targets(o: Tensor, gradient: Tensor, loss: float) -> dict[str, float]:
    """The targets of a binary cross-entropy with logits, whatever numbers they are; empty if the loss is another one.

    Its gradient is s (sigmoid(o) - y) and its value s times the sum of log(1 + exp(o)) - y o, with s one over the
    number of entries or of rows, or one: where a target y that follows from the first gives the second, it is that.
    Large outputs saturate the sigmoid, and other losses have such gradients there; near zero a cross-entropy of two
    classes has this gradient and value, but for the square of the output.

    Returns:
        "low" and "high", the smallest and the largest target; "outside", the share of those below 0 or above 1.

    Example:
        >>> o, y = torch.linspace(-1, 2, 9)[:, None], torch.arange(9.0)[:, None] % 3
        >>> loss = F.binary_cross_entropy_with_logits(o, y)
        >>> found = binary_targets(o, (o.sigmoid() - y) / 9, float(loss))
        >>> round(found["high"], 3), round(found["outside"], 3)
        (2.0, 0.333)
    """
    o, g = _finite_live_rows(o, gradient)
    if g.numel() < _MIN_COUNTING_ROWS or float(o.abs().max()) > _MAX_LOGIT or float(o.square().mean()) < _MIN_SQUARE:
        return {}
    entropy = float((F.softplus(o) - o.sigmoid() * o).sum())  # without which any loss that is linear has this value
    for count in {g.numel(), len(g), 1}:
        y, is_telling = o.sigmoid() - g * count, entropy > _TELLING_PART * abs(loss) * count
        if is_telling and math.isclose(float((F.softplus(o) - y * o).sum()) / count, loss, rel_tol=_TARGET_ERROR):
            outside = (y < -_LOSS_ERROR) | (y > 1 + _LOSS_ERROR)
            return {"low": float(y.min()), "high": float(y.max()), "outside": float(outside.double().mean())}
    return {}


def columns_entropy(gradient: Tensor) -> float:
    """Mean entropy of the labels of each column, which a binary cross-entropy makes negative where they are one.

    Example:
        >>> round(columns_entropy(torch.tensor([[-0.1, 0.1], [0.2, 0.3]])), 3)  # one half of the first, none
        0.347
    """
    share = (as_rows(gradient.detach()) < 0).double().mean(0)
    return float(-(torch.xlogy(share, share) + torch.xlogy(1 - share, 1 - share)).mean())


def _is_of_mean_or_sum(name: str, o: Tensor, gradient: Tensor) -> bool:
    scale = scale_of_mean(name, o, gradient)
    return any(math.isclose(scale, one, rel_tol=_MAX_MISFIT) for one in (1, len(gradient)))


def implied_target_statistics(o: Tensor, gradient: Tensor) -> dict[str, float]:
    """The loss, and moments of the targets y = o - n dL/do / 2, if the loss is mean (o - y)^2."""
    o, g = _finite_live_rows(o, gradient)
    if not len(g):
        return {}
    y = o - g * g.numel() / 2
    return {
        "implied_mse": float((o - y).square().mean()),
        "implied_variance": float((y - y.mean(0)).square().mean()),
        "implied_mean": float(y.mean()),
        "implied_square": float(y.square().mean()),
        "implied_entries": g.numel(),
    }


def target_sums(o: Tensor, gradient: Tensor, loss: float) -> Tensor | None:
    """Number, sum and sum of squares of the targets of each column, (3, columns), if the loss is mean (o - y)^2.

    Args:
        o: The output.
        gradient: That of the output.
        loss: Its value, which shows whether it is this one.

    Example:
        >>> o, y = torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])
        >>> target_sums(o, o - y, 5.0).tolist()
        [[2.0], [4.0], [10.0]]
    """
    o, g = _finite_live_rows(o, gradient)
    y = o - g * g.numel() / 2
    if not len(y) or not math.isclose(float((o - y).square().mean()), loss, rel_tol=_LOSS_ERROR):
        return None
    return torch.stack([torch.full_like(y[0], len(y)), y.sum(0), y.square().sum(0)])


def column_errors(o: Tensor, gradient: Tensor) -> dict[str, list[float]]:
    """Spread of the targets and error of the output, column by column, if the loss is mean (o - y)^2.

    Returns:
        "spread": standard deviations of the targets; "error": root mean squares of o - y. Empty for one column, for
        many, and for few rows.

    Example:
        >>> o, y = torch.zeros(4, 2), torch.tensor([[1.0, 30.0], [-1.0, -30.0], [1.0, -30.0], [-1.0, 30.0]])
        >>> column_errors(o, 2 * (o - y) / 8)
        {'spread': [1.0, 30.0], 'error': [1.0, 30.0]}
    """
    o, g = _finite_live_rows(o, gradient)
    if not 1 < g.shape[1] <= _MAX_COLUMNS or len(g) <= g.shape[1]:
        return {}
    y = o - g * g.numel() / 2
    spread, error = (y - y.mean(0)).square().mean(0).sqrt(), (o - y).square().mean(0).sqrt()
    return {"spread": spread.tolist(), "error": error.tolist()}


def side_of_targets(gradient: Tensor) -> str:
    """Whether every target is "above" its output, or "below", as the sign of dL/do shows for any error; else ""."""
    g = gradient.detach()
    g = g[g != 0]  # rows that the loss leaves out have none
    if g.numel() < _MIN_COUNTING_ROWS:
        return ""
    return "above" if bool((g < 0).all()) else "below" if bool((g > 0).all()) else ""


def common_target(o: Tensor, gradient: Tensor) -> dict[str, float]:
    """The target t that all rows share, if the loss is a squared error of one output per row.

    If outputs of shape [N, 1] and targets of shape [N] are broadcast to [N, N], each output is compared with all
    targets, and dL/do depends on their mean t alone: 2 (o - t) / N for the mean of all squares, 2 N (o - t) for their
    sum, or half of that.

    Returns:
        "target": t; "spread": of the rows' targets around it, infinite if they differ; "loss": the squared error
        between the outputs and t. Empty if none of this can be told.
    """
    o, g = _finite_live_rows(o, gradient)
    if g.shape[1] != 1 or len(g) < 3:
        return {}
    few, max_spread = slice(_MAX_FITTED_ROWS), _MAX_TARGET_SPREAD * float(o.std())
    for slope in (2 / len(g), 1 / len(g), 2 * len(g), len(g)):
        if all((spread := float((o[rows] - g[rows] / slope).std())) < max_spread for rows in (few, slice(None))):
            t = float((o - g / slope).mean())
            return {"target": t, "spread": spread, "loss": slope / 2 * float((o - t).square().sum())}
    return {"target": math.nan, "spread": math.inf, "loss": math.nan}


def counted_targets(o: Tensor, gradient: Tensor) -> int:
    """Number of values of dL/do if it counts the targets of all rows below and above each output; else 0.

    So it does for the absolute error if [N, 1] and [N] are broadcast to [N, N]: it is the number of targets below minus
    that above, over N^2 for the mean. Otherwise it has two values.
    """
    o, g = as_rows(o.detach()), as_rows(gradient.detach())
    if g.shape[1] != 1:
        return 0
    o, g = o[:, 0], g[:, 0].double()
    for rows in (slice(None), g != 0):  # without a mask, and with one
        seen = g[rows]
        n = len(seen)
        for scale in (n**2, 1) if n >= _MIN_COUNTING_ROWS else ():
            if not all(_may_count(part * scale, n) for part in (seen[:_MAX_FITTED_ROWS], seen)):
                continue
            counts = (seen * scale).round()[o[rows].argsort()]
            if bool((counts.diff() >= 0).all()) and (values := len(counts.unique())) > 2:
                return values
    return 0


def _may_count(x: Tensor, n: int) -> bool:
    """True if each entry can be the difference of two numbers whose sum is n."""
    exact = x.round()
    return bool((((x - exact).abs() < _MAX_COUNT_ERROR) & (exact.abs() <= n) & ((exact - n) % 2 == 0)).all())


def _finite_live_rows(o: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The rows with a gradient, as float64; none if one is not finite."""
    o, g = as_rows(o.detach()).double(), as_rows(gradient.detach()).double()
    live = (g != 0).any(1)
    o, g = o[live], g[live]
    return (o, g) if bool(o.isfinite().all()) and bool(g.isfinite().all()) else (o[:0], g[:0])


def edge_statistics(edges: Tensor, nodes: int) -> dict[str, float]:
    """Number of edges and of self-loops, and the share of the nodes that have an edge to another node."""
    between = edges[:, edges[0] != edges[1]]
    has_edge = torch.zeros(nodes, dtype=torch.bool, device=edges.device)
    has_edge[between.flatten()] = True
    loops = edges.shape[1] - between.shape[1]
    return {"edges": edges.shape[1], "loops": loops, "connected": float(has_edge.double().mean())}


def _gradient_shapes(o: Tensor, g: Tensor) -> dict[str, Tensor]:
    """Name -> gradient of each loss at the output, up to a factor."""
    target, p = (g < 0).double(), o.sigmoid()
    shapes = {"bce-logits": p - target, "bce-logits-of-sigmoid": p * (1 - p) * (p.sigmoid() - target)}
    if bool((o >= 0).all()) and bool((o <= 1).all()):
        shapes["bce"] = (o - target) / (o * (1 - o)).clamp(min=1e-12)
    if g.shape[1] < 2:
        return shapes
    onehot, p = _onehot(g), o.softmax(1)
    target = _onehot(g / p.clamp(min=_TINY))
    shapes |= {
        "cross-entropy": p - onehot,
        "uniform-targets": p - 1 / g.shape[1],
        "nll": -onehot,
        "error-of-softmax": _through_softmax(p, -target),
        "mse-of-softmax": _through_softmax(p, p - target),
        "cross-entropy-of-softmax": _through_softmax(p, p.softmax(1) - target),
    }
    if bool((o >= 0).all()):
        shapes["nll-of-p"] = -onehot / o.clamp(min=1e-30)
    return shapes


def _through_softmax(p: Tensor, gradient: Tensor) -> Tensor:
    """dL/do, given dL/dp of p = softmax(o)."""
    return p * (gradient - (p * gradient).sum(1, keepdim=True))


def _onehot(g: Tensor) -> Tensor:
    """1 at the smallest entry of each row, 0 elsewhere."""
    return torch.zeros_like(g).scatter_(1, g.argmin(1, keepdim=True), 1.0)


def _misfit(g: Tensor, shape: Tensor, groups: Tensor | None = None) -> float:
    """Norm of g without its projection on the shape, relative to g; infinite if the projection is negative.

    Args:
        g: (rows, columns).
        shape: (rows, columns).
        groups: (rows, groups), with a 1 in the group of each row, which are projected apart; by default all rows are
            one group.
    """
    groups = g.new_ones(len(g), 1) if groups is None else groups
    common, size = (groups.T @ (each * shape).sum(1) for each in (g, shape))
    factor = groups @ (common / size.clamp(min=_TINY))
    left = g - factor[:, None] * shape
    return float(left.norm() / g.norm().clamp(min=_TINY)) if bool((factor > 0).all()) else float("inf")


def zero_column_fraction(x: Tensor) -> Tensor | None:
    """Share of the columns of a non-negative matrix that are zero, 0-d; NaN or None for any other tensor."""
    if x.shape[0] < 2 or x.shape[1] < 2 or (x.is_cpu and not float(x.amin()) >= 0):
        return None
    return torch.where(x.amin() >= 0, (x.sum(0) == 0).double().mean(), torch.nan)
