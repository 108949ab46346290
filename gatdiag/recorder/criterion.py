"""What tensors at the edges of a model say: statistics of its inputs and outputs, and the loss that made dL/dout.

The gradient at the output gives the loss away: k (softmax(o) - onehot) is that of cross-entropy on logits o, and
-k onehot that of `nll_loss`; its smallest entry is the label. Nothing is asked of the loss itself. A softmax or sigmoid
between the output and a loss that squashes once more is a part of that gradient, too.
"""

from typing import Any, Final

import torch
from torch import Tensor

from gatdiag.metrics.smoothing import as_rows

_FITS: Final = 1e-2  # misfit relative to dL/dout
_CLEARLY: Final = 10.0  # times better than all else, roundings apart, a loss fits that squashes twice: near o = 0,
# and of one row with one or two entries, it is alike to one that does it once
_EXACTLY: Final = 1e3  # roundings; a loss that squashes twice fits to these, and others come near by chance
_ROWS: Final = 3  # that carry the gradient: with fewer, any loss may fit one that squashes twice by chance
_CARRIES: Final = 0.1  # of the largest row's norm
_MOST: Final = 5000  # rows whose labels are looked at; spread, for in link prediction all that are linked come first
_SOME: Final = 500  # of these, whose gradient is compared with that of losses
_CHUNK: Final = 2**18  # entries that fit into a cache
_TINY: Final = 1e-300
# Losses on logits that are given probabilities -> what makes them of the output.
TWICE: Final = {"cross-entropy-of-softmax": "softmax", "bce-logits-of-sigmoid": "sigmoid"}
_UNNAMED: Final = ("error-of-softmax", "mse-of-softmax")  # which nearly fit, too: 1 - p[y], and (p - onehot)^2
_VIEWS: Final = ("View", "Squeeze", "Index", "Unsqueeze", "Reshape", "Clone", "Select", "Slice", "ToCopy", "Alias")


def input_statistics(name: str, x: Tensor) -> dict[str, Any]:
    """Scale, unevenness and variation of a floating-point input."""
    x = as_rows(x.detach())
    found: dict[str, Any] = {"name": name, "rows": x.shape[0], "columns": x.shape[1], "non_finite": 0}
    if not x.numel():
        return {**found, "largest_column": 0.0, "smallest_column": 0.0, "row_norm": 0.0, "relative_mu": 0.0}
    sums = torch.zeros(2, x.shape[1], dtype=torch.float64, device=x.device)
    for piece in x.split(max(1, _CHUNK // x.shape[1])):  # a tenth of the time of torch's sums in float64 of float32
        exact = piece.double()
        sums += torch.stack([exact.sum(0), exact.square().sum(0)])
    if not bool(sums.isfinite().all()) and bool((bad := ~x.isfinite()).any()):
        return {**found, "non_finite": int(bad.sum()), "first": bad.nonzero()[0].tolist()}
    mean, size = sums[0] / len(x), (sums[1] / len(x)).sqrt()
    some = size[size > 0]
    common = (mean / size.norm().clamp(min=_TINY)).square().sum()  # share of the squared norm that all rows have
    return {
        **found,
        "largest_column": float(size.max()),
        "smallest_column": float(some.min()) if len(some) else 0.0,
        "row_norm": float(size.norm()),
        "relative_mu": float((1 - common).clamp(min=0).sqrt()) if len(some) else 0.0,
    }


def output_statistics(o: Tensor) -> dict[str, float]:
    """Range of an output, and how far its rows are from summing to one; empty if it is not finite."""
    o = as_rows(o.detach()).double()
    if not o.numel() or not bool(o.isfinite().all()):
        return {}
    off = float((o.sum(1) - 1).abs().max()) if o.shape[1] > 1 else float("nan")
    return {"min": float(o.min()), "max": float(o.max()), "row_sum_error": off}


def last_operation(o: Tensor) -> str:
    """Name of the autograd operation that made an output, views and the like looked through; "" without a graph."""
    node: Any = o.grad_fn
    while node is not None and type(node).__name__.startswith(_VIEWS) and node.next_functions:
        node = node.next_functions[0][0]
    return "" if node is None else type(node).__name__


def criterion(o: Tensor, gradient: Tensor) -> tuple[str, float, Tensor | None]:
    """The loss whose gradient at the output this is, from the two alone, its misfit, and how often labels occur."""
    o, g = as_rows(o.detach()), as_rows(gradient.detach())
    live = (g != 0).any(1)
    rounding = max(torch.finfo(kind).eps for kind in (g.dtype, torch.float32))
    o, g = o[live], g[live]
    every = max(1, -(-len(g) // _MOST))
    o, g = o[::every].double(), g[::every].double()
    if not len(g) or not bool(o.isfinite().all()) or not bool(g.isfinite().all()):
        return "", float("nan"), None
    misfits = {name: _misfit(g[:_SOME], shape) for name, shape in _shapes(o[:_SOME], g[:_SOME]).items()}
    rare = (*TWICE, *_UNNAMED)
    best = min(misfits, key=lambda name: _CLEARLY * max(misfits[name], rounding) if name in rare else misfits[name])
    fits = min(_FITS, _EXACTLY * rounding) if best in TWICE else _FITS
    sizes = g[:_SOME].norm(dim=1)
    is_chance = best in TWICE and int((sizes > _CARRIES * sizes.max()).sum()) < _ROWS
    if best in _UNNAMED or is_chance or not misfits[best] < fits:
        return "", misfits[best], None
    return best, misfits[best], _labels(best, g)


def _labels(name: str, g: Tensor) -> Tensor | None:
    """How often each occurs, where the gradient tells."""
    if name.startswith("bce"):
        return torch.bincount((g < 0).flatten().long(), minlength=2) if g.shape[1] == 1 else None
    if name in TWICE:
        return None  # the smallest entry need not be the label
    return torch.bincount(g.argmin(1), minlength=g.shape[1])


def implied_target_statistics(o: Tensor, gradient: Tensor) -> dict[str, float]:
    """The loss and the variance of the targets y, if the loss were the mean of (o - y)^2: then y = o - n dL/do / 2."""
    o, g = as_rows(o.detach()).double(), as_rows(gradient.detach()).double()
    live = (g != 0).any(1)
    o, g = o[live], g[live]
    if not len(g) or not bool(o.isfinite().all()) or not bool(g.isfinite().all()):
        return {}
    y = o - g * g.numel() / 2
    return {
        "implied_mse": float((o - y).square().mean()),
        "implied_variance": float((y - y.mean(0)).square().mean()),
    }


def _shapes(o: Tensor, g: Tensor) -> dict[str, Tensor]:
    """Each loss's gradient up to a factor."""
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
        "nll": -onehot,
        "error-of-softmax": _through_softmax(p, -target),
        "mse-of-softmax": _through_softmax(p, p - target),
        "cross-entropy-of-softmax": _through_softmax(p, p.softmax(1) - target),
    }
    if bool((o >= 0).all()):
        shapes["nll-of-p"] = -onehot / o.clamp(min=1e-30)
    return shapes


def _through_softmax(p: Tensor, gradient: Tensor) -> Tensor:
    """dL/do, if this is dL/dp of p = softmax(o)."""
    return p * (gradient - (p * gradient).sum(1, keepdim=True))


def _onehot(g: Tensor) -> Tensor:
    """One where the smallest entry of a row is."""
    return torch.zeros_like(g).scatter_(1, g.argmin(1, keepdim=True), 1.0)


def _misfit(g: Tensor, shape: Tensor) -> float:
    """What is left of g without its part along the shape, as a share of g; infinite where that points backwards."""
    factor = (g * shape).sum() / shape.square().sum().clamp(min=_TINY)
    return float((g - factor * shape).norm() / g.norm().clamp(min=_TINY)) if factor > 0 else float("inf")


def zero_column_fraction(x: Tensor) -> float | None:
    """Share of the columns of a non-negative matrix that are zero in each row; None of any other tensor."""
    x = as_rows(x.detach())
    if x.shape[0] < 2 or x.shape[1] < 2 or not float(x.amin()) >= 0:
        return None
    return float((x.sum(0) == 0).double().mean())
