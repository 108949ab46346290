"""The initialization whose distribution a weight has: named where simple statistics fit, "" otherwise.

A fresh draw misses its own name in about one case of a thousand (`FALSE_REJECTION`). A weight that is named need not be
fresh: training that moved it little, or all of it alike, keeps the distribution. Orthogonal and looks-linear matrices,
zeros, ones and constants are recognized by what they are exactly.
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

FALSE_REJECTION: Final = 1e-3  # shared evenly by the two tests that each distribution has to pass

_TYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SAMPLE: Final = 1 << 12  # entries that the distribution is judged by, evenly spaced
_SMALLEST: Final = 32  # entries below which distributions look alike
_EXACT: Final = 1e-5  # relative: what rounding leaves of orthogonality and symmetry in single precision
_KS: Final = math.sqrt(math.log(4 / FALSE_REJECTION) / 2)  # Kolmogorov's distribution: P(sqrt(n) D > t) = 2 exp(-2 t^2)
_NORMAL: Final = math.sqrt(2) * float(torch.erfinv(torch.tensor(1 - FALSE_REJECTION / 2, dtype=torch.float64)))


def matching_initialization(tensor: Tensor) -> tuple[Initialization, ...]:
    """The initializations that a weight is consistent with; more than one where they agree, as on square matrices.

    A uniform draw on [-b, b] must have its largest entry between b p^(1/n) and b, and pass the test of Kolmogorov and
    Smirnov. A normal one must pass that test too, and that of chi squared on its variance, by the cube-root
    approximation.

    Args:
        tensor: A weight matrix or an attention vector.

    Returns:
        No name also for fewer than 32 entries that are not constant, for number types other than float16 to float64,
        and for entries that are not finite.

    Source:
        Glorot & Bengio (2010); He et al. (2015); Saxe et al. (2014) for orthogonal; Balduzzi et al. (2017) for
        looks-linear. Fans as torch counts them, and for attention vectors also as PyG's `glorot` does. Wilson &
        Hilferty (1931) for chi squared; Stephens (1970) for the finite-sample form of the other test.

    Example:
        >>> weight = torch.nn.init.xavier_uniform_(torch.empty(64, 32), generator=torch.Generator().manual_seed(0))
        >>> matching_initialization(weight), matching_initialization(weight.sin())
        (('Xavier uniform',), ())
    """
    tensor = tensor.detach()
    if tensor.dtype not in _TYPES or not tensor.numel():
        return ()
    flat = tensor.reshape(-1)
    sample = flat[:: -(-flat.numel() // _SAMPLE)].double()
    if bool((sample == sample[0]).all()):
        return _constant(flat)
    if not bool(sample.isfinite().all()) or flat.numel() < _SMALLEST:
        return ()
    structured = _structured(tensor) if tensor.dim() == 2 else ()
    return structured or _uniform(tensor, sample) or _normal(tensor, sample)


def _constant(flat: Tensor) -> tuple[Initialization, ...]:
    value = float(flat[0])
    if not math.isfinite(value) or not bool((flat == value).all()):
        return ()
    return ("zeros",) if value == 0 else ("ones",) if value == 1 else ("constant",)


def _structured(matrix: Tensor) -> tuple[Initialization, ...]:
    if _mirrored(matrix) or _mirrored(matrix.T):
        return ("looks-linear",)
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    if min(short.shape) < 4 or matrix.dtype not in (torch.float32, torch.float64):
        return ()
    one, other = short[:2].double()
    if float(one @ other) ** 2 > _EXACT * float(one @ one) * float(other @ other):  # as of most, which saves the rest
        return ()
    probe = torch.randn(len(short), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(matrix.dtype)
    short = short / short.abs().max()  # so that squares of very small or large entries are numbers still
    image = short @ (short.T @ probe)  # W W^T v = g^2 v for every v
    gain = image @ probe / (probe @ probe)
    return ("orthogonal",) if bool((image - gain * probe).norm() <= _EXACT * image.norm()) else ()


def _mirrored(matrix: Tensor) -> bool:
    """True where the lower rows are the upper ones with their signs turned; of an odd number the last was left out."""
    half = -(-len(matrix) // 2)
    lower, upper = matrix[half:], matrix[: len(matrix) - half]
    if len(lower) < 2 or not bool(torch.isclose(lower[0], -upper[0], rtol=_EXACT, atol=0).all()):
        return False
    return bool(torch.isclose(lower, -upper, rtol=_EXACT, atol=0).all())


def _fans(shape: torch.Size) -> list[tuple[int, int]]:
    """(fan_in, fan_out) as torch counts them, and the pair that PyG sums for tensors of three axes and more."""
    if len(shape) < 2:
        return []
    field = math.prod(shape[2:])
    of_torch = (shape[1] * field, shape[0] * field)
    return [of_torch, (shape[-1], shape[-2])] if len(shape) > 2 else [of_torch]


def _uniform(tensor: Tensor, sample: Tensor) -> tuple[Initialization, ...]:
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
        and _distance((sample / bound + 1) / 2) <= _KS
    ]
    return tuple(dict.fromkeys(found))


def _normal(tensor: Tensor, sample: Tensor) -> tuple[Initialization, ...]:
    fans = _fans(tensor.shape)
    deviations: list[tuple[Initialization, float]] = [("standard normal", 1.0)]
    deviations += [("Xavier normal", math.sqrt(2 / sum(pair))) for pair in fans]
    deviations += [("Kaiming normal", math.sqrt(2 / fan)) for pair in fans[:1] for fan in pair]
    spread = 2 / (9 * len(sample))
    found = []
    for name, deviation in deviations:
        scaled = sample / deviation
        z = (float(scaled.square().mean()) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
        if abs(z) <= _NORMAL and _distance(torch.special.ndtr(scaled)) <= _KS:
            found.append(name)
    return tuple(dict.fromkeys(found))


def _distance(levels: Tensor) -> float:
    """sqrt(n) D of Kolmogorov and Smirnov, D the distance of values from uniform on [0, 1], for any number n.

    By hand because importing scipy.stats would take longer than all of an inspection.
    """
    number = len(levels)
    ordered = np.sort(levels.numpy())
    steps = np.arange(number + 1) / number
    distance = float(np.maximum(steps[1:] - ordered, ordered - steps[:-1]).max())
    return (math.sqrt(number) + 0.12 + 0.11 / math.sqrt(number)) * distance
