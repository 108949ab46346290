"""Identify the initialization whose distribution a weight has.

About one freshly drawn weight in a thousand is not recognized (`FALSE_REJECTION`). A weight that is recognized need not
be untrained: training that hardly moves it, or scales all of it, keeps the distribution. Orthogonal and looks-linear
matrices, zeros, ones and constants are recognized exactly.
"""

import math
from typing import Final, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

Initialization: TypeAlias = Literal[
    "zeros",
    "ones",
    "constant",
    "looks-linear",
    "orthogonal",
    "Xavier uniform",
    "Kaiming uniform",
    "uniform 1/sqrt(fan_in)",
    "Xavier normal",
    "Kaiming normal",
    "standard normal",
]

FALSE_REJECTION: Final = 1e-3  # split evenly between the two tests of each distribution

_TYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SAMPLE: Final = 1 << 12  # evenly spaced entries that are tested
_MIN_ENTRIES: Final = 32  # distributions cannot be told apart with fewer
_EXACT: Final = 1e-5  # relative tolerance of orthogonality and symmetry in float32
_KS: Final = math.sqrt(math.log(4 / FALSE_REJECTION) / 2)  # Kolmogorov's distribution: P(sqrt(n) D > t) = 2 exp(-2 t^2)
_NORMAL: Final = math.sqrt(2) * float(torch.erfinv(torch.tensor(1 - FALSE_REJECTION / 2, dtype=torch.float64)))


def identify_initialization(tensor: Tensor) -> tuple[Initialization, ...]:
    """The initializations consistent with a weight; several where they agree, as for square matrices.

    A uniform draw on [-b, b] must have its largest entry between b p^(1/n) and b, and pass the Kolmogorov-Smirnov
    test. A normal draw must pass the Kolmogorov-Smirnov test and a chi-squared test of its variance (cube-root
    approximation).

    Returns:
        Names of initializations; empty if none fits, if there are fewer than 32 entries that are not constant, for
        non-finite entries and for dtypes other than float16, bfloat16, float32 and float64.

    Source:
        Glorot & Bengio (2010); He et al. (2015); Saxe et al. (2014) for orthogonal; Balduzzi et al. (2017) for
        looks-linear. Fans as torch counts them, and for attention vectors also as PyG's `glorot` does. Wilson &
        Hilferty (1931) for chi squared; Stephens (1970) for the finite-sample form of Kolmogorov-Smirnov.

    Example:
        >>> weight = torch.nn.init.xavier_uniform_(torch.empty(64, 32), generator=torch.Generator().manual_seed(0))
        >>> identify_initialization(weight), identify_initialization(weight.sin())
        (('Xavier uniform',), ())
    """
    tensor = tensor.detach()
    if tensor.dtype not in _TYPES or not tensor.numel():
        return ()
    flat = tensor.reshape(-1)
    sample = flat[:: -(-flat.numel() // _SAMPLE)].double()
    if bool((sample == sample[0]).all()):
        return _identify_constant(flat)
    if not bool(sample.isfinite().all()) or flat.numel() < _MIN_ENTRIES:
        return ()
    structured = _identify_structured(tensor) if tensor.dim() == 2 else ()
    return structured or _identify_uniform(tensor, sample) or _identify_normal(tensor, sample)


def _identify_constant(flat: Tensor) -> tuple[Initialization, ...]:
    value = float(flat[0])
    if not math.isfinite(value) or not bool((flat == value).all()):
        return ()
    return ("zeros",) if value == 0 else ("ones",) if value == 1 else ("constant",)


def _identify_structured(matrix: Tensor) -> tuple[Initialization, ...]:
    if _has_mirrored_rows(matrix) or _has_mirrored_rows(matrix.T):
        return ("looks-linear",)
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    if min(short.shape) < 4 or matrix.dtype not in (torch.float32, torch.float64):
        return ()
    first, second = short[:2].double()
    if float(first @ second) ** 2 > _EXACT * float(first @ first) * float(second @ second):  # a cheap early exit
        return ()
    probe = torch.randn(len(short), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(matrix.dtype)
    short = short / short.abs().max()  # squares of extreme entries would over- or underflow
    image = short @ (short.T @ probe)  # W W^T v = g^2 v for every v
    gain = image @ probe / (probe @ probe)
    return ("orthogonal",) if bool((image - gain * probe).norm() <= _EXACT * image.norm()) else ()


def _has_mirrored_rows(matrix: Tensor) -> bool:
    """True if the lower half of the rows is the negated upper half; with an odd number, the last row is missing."""
    half = -(-len(matrix) // 2)
    lower, upper = matrix[half:], matrix[: len(matrix) - half]
    if len(lower) < 2 or not bool(torch.isclose(lower[0], -upper[0], rtol=_EXACT, atol=0).all()):
        return False
    return bool(torch.isclose(lower, -upper, rtol=_EXACT, atol=0).all())


def _fans(shape: torch.Size) -> list[tuple[int, int]]:
    """(fan_in, fan_out) as in torch, and for three or more axes also the pair that PyG's `glorot` uses."""
    if len(shape) < 2:
        return []
    field = math.prod(shape[2:])
    fans = (shape[1] * field, shape[0] * field)
    return [fans, (shape[-1], shape[-2])] if len(shape) > 2 else [fans]


def _identify_uniform(tensor: Tensor, sample: Tensor) -> tuple[Initialization, ...]:
    fans = _fans(tensor.shape)
    bounds: list[tuple[Initialization, float]] = [("Xavier uniform", math.sqrt(6 / sum(pair))) for pair in fans]
    if fans:
        bounds.append(("uniform 1/sqrt(fan_in)", 1 / math.sqrt(fans[0][0])))
        bounds += [("Kaiming uniform", math.sqrt(6 / fan)) for fan in fans[0]]
    largest, rounding = float(sample.abs().max()), 1 + float(torch.finfo(tensor.dtype).eps)
    found = [
        name
        for name, bound in bounds
        if bound * (FALSE_REJECTION / 2) ** (1 / len(sample)) <= largest <= bound * rounding
        and max(map(abs, map(float, tensor.aminmax()))) <= bound * rounding
        and _kolmogorov_smirnov((sample / bound + 1) / 2) <= _KS
    ]
    return tuple(dict.fromkeys(found))


def _identify_normal(tensor: Tensor, sample: Tensor) -> tuple[Initialization, ...]:
    fans = _fans(tensor.shape)
    deviations: list[tuple[Initialization, float]] = [("standard normal", 1.0)]
    deviations += [("Xavier normal", math.sqrt(2 / sum(pair))) for pair in fans]
    deviations += [("Kaiming normal", math.sqrt(2 / fan)) for pair in fans[:1] for fan in pair]
    variance = 2 / (9 * len(sample))
    found = []
    for name, deviation in deviations:
        scaled = sample / deviation
        z = (float(scaled.square().mean()) ** (1 / 3) - (1 - variance)) / math.sqrt(variance)
        if abs(z) <= _NORMAL and _kolmogorov_smirnov(torch.special.ndtr(scaled)) <= _KS:
            found.append(name)
    return tuple(dict.fromkeys(found))


def _kolmogorov_smirnov(values: Tensor) -> float:
    """Finite-sample form of sqrt(n) D, where D is the distance of the values from the uniform distribution on [0, 1].

    Importing scipy.stats would take longer than a whole inspection.
    """
    n = len(values)
    ordered = np.sort(values.numpy())
    steps = np.arange(n + 1) / n
    distance = float(np.maximum(steps[1:] - ordered, ordered - steps[:-1]).max())
    return (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
