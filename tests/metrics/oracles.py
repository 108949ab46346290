"""Slow definitions, in float64 and as the papers write them, of what `gatdiag.metrics` computes quickly."""

import math

import numpy as np
import torch

from gatdiag.quantities import LEVELS


def drawn(*shape, seed=0, dtype=torch.float64):
    """Normal numbers, the same at each call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def five_numbers(x):
    """Norm, mu, relative mu, dead fraction and count of entries that are not finite."""
    broken = float((~x.isfinite()).sum())
    rows = x.double()
    dead = (rows == 0).all(0).double().mean().item() if not x.isnan().any() else math.nan
    if broken:
        return [torch.linalg.vector_norm(rows).item(), math.nan, math.nan, dead, broken]
    largest = rows.abs().max().item() or 1.0  # squares of float64 over- and underflow
    rows = rows / largest
    centered = rows - rows[:1]  # so that equal rows are exactly zero
    centered = centered - centered.mean(0)
    mu, norm = (torch.linalg.vector_norm(values).item() for values in (centered, rows))
    return [norm * largest, mu * largest, mu / norm if norm else math.nan, dead, 0.0]


def frobenius_norm(x):
    return five_numbers(x.flatten().unsqueeze(1))[0] if x.numel() else 0.0


def attention_entropies(alpha, target):
    """Mean entropy over the nodes and heads, and the mean of it relative to the logarithm of the degree."""
    alpha = alpha.detach().double().reshape(len(target), -1)
    absolute, relative = [], []
    for head in range(alpha.shape[1]):
        for node in target.unique().tolist():
            shares = alpha[target == node, head].tolist()
            absolute.append(-math.fsum(share * math.log(share) for share in shares if share > 0))
            if len(shares) > 1:
                relative.append(absolute[-1] / math.log(len(shares)))
    return np.mean(absolute), np.mean(relative)


def changes(initial, trained, absolute=False):
    """The fractions unchanged, changed by more than 0.05 and 0.5, and of entries that count, entry by entry."""
    pairs = list(zip(initial.double().flatten().tolist(), trained.double().flatten().tolist(), strict=True))
    if not all(math.isfinite(value) for pair in pairs for value in pair) or not pairs:
        return [math.nan] * 4
    counted = [(a, b) for a, b in pairs if absolute or abs(b) >= 1e-4]
    sizes = [abs(b - a) / (1.0 if absolute else abs(b)) for a, b in counted]
    beyond = [sum(s > at for s in sizes) / len(sizes) if sizes else math.nan for at in (0.05, 0.5)]
    return [sum(a == b for a, b in pairs) / len(pairs), *beyond, len(counted) / len(pairs)]


def quantiles(values):
    """At `LEVELS`: quantile q of n sorted values is at position q (n - 1), between two of them in proportion."""
    ordered = sorted(values)
    if not ordered or any(math.isnan(value) for value in ordered):
        return [math.nan] * len(LEVELS)
    found = []
    for level in LEVELS:
        position = level * (len(ordered) - 1)
        low, high = ordered[math.floor(position)], ordered[math.ceil(position)]
        apart = position - math.floor(position)
        found.append(low if low == high or not apart else low + apart * (high - low))
    return found


def change_quantiles(initial, trained):
    """Of relative change over the weights of at least 1e-4, then of absolute change over all."""
    pairs = list(zip(initial.double().flatten().tolist(), trained.double().flatten().tolist(), strict=True))
    moved = [abs(b - a) for a, b in pairs]
    relative = [0.0 if m == 0 else m / abs(b) if math.isfinite(b) or math.isnan(b) else m / b * 0
                for m, (_, b) in zip(moved, pairs, strict=True) if abs(b) >= 1e-4]  # fmt: skip
    return [quantiles(relative), quantiles(moved)]
