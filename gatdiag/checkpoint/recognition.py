"""Which initialization a weight still shows: named where a test says so, "trained or unknown" otherwise.

A fresh weight is not named in one case of a thousand (`FALSE_REJECTION`), for so the tests are set; normal ones of 448
entries in one of a hundred, of 256 in one of nine, of 128 in one of two. How often a trained one is taken for fresh
depends on the scheme:

- A draw in single precision leaves a fingerprint, which one gradient step destroys, however small. On a CPU torch draws
  multiples of 2^-24. Stretched to [-b, b], entries near zero still show it; of normal ones it shows in the largest of
  the pairs that the transform of Box and Muller makes, of which a small matrix may hold too few: then it is not named.
  Draws made on other devices or by other libraries lack it, and are not recognized. In other number types nothing but
  the distribution can be judged: its name then says only that the weights did not move far.
- Orthogonal and looks-linear matrices, zeros, ones and constants are recognized by what they are exactly.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gatdiag.checkpoint.measures import Measured
from gatdiag.checkpoint.stacking import Stacking
from gatdiag.structure import Structure

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
    "trained or unknown",
]

FALSE_REJECTION: Final = 1e-3  # shared evenly by the two tests that each distribution has to pass

_UNKNOWN: Final[tuple[Initialization, ...]] = ("trained or unknown",)
_TYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SAMPLE: Final = 1 << 12  # entries that the distribution is judged by, evenly spaced
_PAIRED: Final = 1 << 13  # entries that are searched for the fingerprint of a normal draw
_BY_CHANCE: Final = 0.02  # of all that a trained weight can pass for, this is but the last test
_SMALLEST: Final = 32  # entries below which no distribution can be told
_EXACT: Final = 1e-5  # relative: what rounding leaves of orthogonality and symmetry in single precision
_BALANCED: Final = 1e-4  # of c relative to its terms
_KS: Final = math.sqrt(math.log(4 / FALSE_REJECTION) / 2)  # Kolmogorov's distribution: P(sqrt(n) D > t) = 2 exp(-2 t^2)
_NORMAL: Final = math.sqrt(2) * float(torch.erfinv(torch.tensor(1 - FALSE_REJECTION / 2, dtype=torch.float64)))


def recognize(tensor: Tensor, *, fan_in: int | None = None) -> tuple[Initialization, ...]:
    """The initializations that a weight is consistent with; more than one where they agree, as on square matrices.

    A uniform draw on [-b, b] must have its largest entry between b p^(1/n) and b, and pass the test of Kolmogorov and
    Smirnov. A normal one must pass that test too, and that of chi squared on its variance, by the cube-root
    approximation. In single precision both must show their fingerprint (see the module).

    Args:
        tensor: A weight matrix, attention vector or bias.
        fan_in: Inputs of its layer; for a bias, whose shape does not tell it.

    Returns:
        One name or more; ("trained or unknown",) also for fewer than 32 entries that are not constant, for number
        types other than float16 to float64, and for entries that are not finite.

    Source:
        Glorot & Bengio (2010); He et al. (2015); Saxe et al. (2014) for orthogonal; Balduzzi et al. (2017) for
        looks-linear. Fans as torch counts them, and for attention vectors also as PyG's `glorot` does. Wilson &
        Hilferty (1931) for chi squared; Stephens (1970) for the finite-sample form of the other test.

    Example:
        >>> weight = torch.nn.init.xavier_uniform_(torch.empty(64, 32), generator=torch.Generator().manual_seed(0))
        >>> recognize(weight)
        ('Xavier uniform',)
        >>> recognize(weight - 1e-3 * weight.sin())
        ('trained or unknown',)
    """
    tensor = tensor.detach()
    if tensor.dtype not in _TYPES or tensor.layout is not torch.strided or not tensor.numel() or tensor.is_meta:
        return _UNKNOWN
    flat = tensor.reshape(-1)
    sample = flat[:: -(-flat.numel() // _SAMPLE)].double()
    if bool((sample == sample[0]).all()):
        return _constant(flat)
    if not bool(sample.isfinite().all()) or flat.numel() < _SMALLEST:
        return _UNKNOWN
    structured = _structured(tensor) if tensor.dim() == 2 else ()
    return structured or _uniform(tensor, flat, sample, fan_in) or _normal(tensor, flat, sample) or _UNKNOWN


def recognize_all(tensors: Mapping[str, Tensor], structure: Structure) -> dict[str, tuple[Initialization, ...]]:
    """`recognize` for every parameter; a bias is judged with the fan of the weight beside it.

    Args:
        tensors: Name -> tensor.
        structure: From `find_layers(tensors)`.
    """
    found = {}
    for info in structure.parameters:
        beside = tensors.get(f"{info.module}.weight".lstrip("."))
        has_fan = info.role == "bias" and beside is not None and beside.dim() > 1
        found[info.name] = recognize(
            tensors[info.name], fan_in=beside.shape[1] if has_fan and beside is not None else None
        )
    return found


def balanced(stacking: Stacking, measured: Mapping[str, Measured]) -> tuple[str, ...]:
    """The layers each of whose neurons is balanced: c is zero, to rounding, as after a balanced initialization.

    Gradient descent conserves c, so a small learning rate does not unbalance them.

    Args:
        stacking: From `find_stacking`.
        measured: Name -> `measure(tensor)`.

    Returns:
        Paths of layers, of those that have laws.
    """
    values = stacking.c(measured)
    found = []
    for link, following in stacking.pairs:
        outgoing = following.read_squares(measured)
        c = values[link.path]
        if (
            bool(c.isfinite().all())
            and bool((c.abs() <= _BALANCED * (c + 2 * outgoing)).all())
            and bool(outgoing.any())
        ):
            found.append(link.path)
    return tuple(found)


def _constant(flat: Tensor) -> tuple[Initialization, ...]:
    if not bool((flat == flat[0]).all()):
        return _UNKNOWN
    value = float(flat[0])
    if not math.isfinite(value):
        return _UNKNOWN
    return ("zeros",) if value == 0 else ("ones",) if value == 1 else ("constant",)


def _structured(matrix: Tensor) -> tuple[Initialization, ...]:
    if _mirrored(matrix) or _mirrored(matrix.T):
        return ("looks-linear",)
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    if min(short.shape) < 4 or matrix.dtype not in (torch.float32, torch.float64):
        return ()
    probe = torch.randn(len(short), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(matrix.dtype)
    short = short / short.abs().max()  # so that squares of very small or large entries are numbers still
    image = short @ (short.T @ probe)  # W W^T v = g^2 v for every v
    gain = image @ probe / (probe @ probe)
    return ("orthogonal",) if bool((image - gain * probe).norm() <= _EXACT * image.norm()) else ()


def _mirrored(matrix: Tensor) -> bool:
    """Whether the lower rows are the upper ones with their signs turned; of an odd number the last one was left out."""
    half = -(-len(matrix) // 2)
    lower, upper = matrix[half:], matrix[: len(matrix) - half]
    if len(lower) < 2 or not bool(torch.isclose(lower[0], -upper[0], rtol=_EXACT, atol=0).all()):
        return False
    return bool(torch.isclose(lower, -upper, rtol=_EXACT, atol=0).all())


def _fans(shape: torch.Size) -> Iterator[tuple[int, int]]:
    """(fan_in, fan_out) as torch counts them, and the pair that PyG sums for tensors of three axes and more."""
    field = math.prod(shape[2:])
    yield shape[1] * field, shape[0] * field
    if len(shape) > 2:
        yield shape[-1], shape[-2]


def _uniform(tensor: Tensor, flat: Tensor, sample: Tensor, fan_in: int | None) -> tuple[Initialization, ...]:
    bounds: dict[float, list[Initialization]] = {}
    fans = list(_fans(tensor.shape)) if tensor.dim() > 1 else []
    for inside, outside in fans:
        bounds.setdefault(math.sqrt(6 / (inside + outside)), []).append("Xavier uniform")
    if fans or fan_in:
        bounds.setdefault(1 / math.sqrt(fan_in or fans[0][0]), []).append("uniform 1/sqrt(fan_in)")
    for fan in fans[0] if fans else ():
        bounds.setdefault(math.sqrt(6 / fan), []).append("Kaiming uniform")
    largest = float(sample.abs().max())
    rounding = float(torch.finfo(tensor.dtype).eps)
    for bound, names in bounds.items():
        if not bound * (FALSE_REJECTION / 2) ** (1 / len(sample)) <= largest <= bound * (1 + rounding):
            continue
        if float(flat.abs().max()) > bound * (1 + rounding) or _distance((sample / bound + 1) / 2) > _KS:
            continue
        if tensor.dtype != torch.float32 or _is_drawn_uniform(sample, bound):
            return tuple(dict.fromkeys(names))
    return ()


def _is_drawn_uniform(sample: Tensor, bound: float) -> bool:
    """Whether the entries near zero are where a generator of 24 bits puts them, or too few to tell."""
    bound = float(torch.tensor(bound, dtype=torch.float32))
    small = sample[sample.abs() < bound / 16]
    ticks = (small + bound) / (2 * bound) * 2.0**24
    fused = bool(((ticks - ticks.round()).abs() < 0.1).all())
    quantum = small / 2.0 ** (math.floor(math.log2(bound)) - 24)  # where the product is rounded before the sum
    return fused or bool((quantum == quantum.round()).all())


def _normal(tensor: Tensor, flat: Tensor, sample: Tensor) -> tuple[Initialization, ...]:
    deviations: dict[float, list[Initialization]] = {1.0: ["standard normal"]}
    fans = list(_fans(tensor.shape)) if tensor.dim() > 1 else []
    for inside, outside in fans:
        deviations.setdefault(math.sqrt(2 / (inside + outside)), []).append("Xavier normal")
    for fan in fans[0] if fans else ():
        deviations.setdefault(math.sqrt(2 / fan), []).append("Kaiming normal")
    number = len(sample)
    found: list[Initialization] = []
    for deviation, names in deviations.items():
        spread = 2 / (9 * number)
        z = (float((sample / deviation).square().mean()) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
        fits = abs(z) <= _NORMAL and _distance(torch.special.ndtr(sample / deviation)) <= _KS
        if fits and (tensor.dtype != torch.float32 or _is_drawn_normal(flat, deviation)):
            found += names
    return tuple(dict.fromkeys(found))


def _is_drawn_normal(flat: Tensor, deviation: float) -> bool:
    """Whether x^2 + y^2 of pairs is where a generator of 24 bits puts it, in more pairs than would be by chance.

    Box and Muller: x^2 + y^2 = -2 deviation^2 log(u), u a multiple of 2^-24; in each 16 entries x comes 8 before y.
    """
    pairs = flat[: min(len(flat), _PAIRED) // 16 * 16].reshape(-1, 2, 8).double()
    deviation = float(torch.tensor(deviation, dtype=torch.float32))
    squares = pairs.square().sum(1) / deviation**2
    ticks = torch.exp(-squares / 2) * 2.0**24
    error = 0.01 + 2e-7 * squares * ticks  # what rounding of x and y makes of a tick: 740,000 pairs went no further
    legible = error < 0.25
    hits = ((ticks - ticks.round()).abs() < error)[legible]
    by_chance = float((2 * error[legible][hits]).prod())  # that any other numbers hit as often
    return by_chance < _BY_CHANCE and float(hits.double().mean()) > 0.9


def _distance(levels: Tensor) -> float:
    """sqrt(n) D of Kolmogorov and Smirnov, D the distance of values from uniform on [0, 1], for any number n."""
    number = len(levels)
    ordered = torch.from_numpy(np.sort(levels.numpy()))  # ten times as fast as torch's on a few thousand entries
    steps = torch.arange(number + 1, dtype=torch.float64) / number
    distance = float(torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max())
    return (math.sqrt(number) + 0.12 + 0.11 / math.sqrt(number)) * distance
