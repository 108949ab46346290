"""The numerical side of finding laws: gradients at a random point, and what the output does not depend on."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatdiag.errors import ModelError
from gatdiag.laws.kinks import Kinks
from gatdiag.laws.outputs import floating_tensors
from gatdiag.laws.spill import spilled
from gatdiag.structure.replica import Replica

# Only parameters with entries whose gradient is this small beside the largest of their layer are looked at closely.
_SUSPECT = 1e-6
# By how much the loss is moved to tell rounding from a gradient, and how often: rounding repeats itself now and then.
_NUDGE = 1e-9
_NUDGES = 2

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Point:
    """Weights and the gradients of a random loss there, of every trainable parameter that reaches the output."""

    weights: Tensors
    gradients: Tensors


@dataclass(frozen=True)
class Evidence:
    """What forward and backward passes at a random point show.

    Attributes:
        point: The point, near the model's own weights.
        unreached: Trainable parameters that never reach the output.
        annihilated: Name -> mask of entries that take part in the computation but cancel out of the output.
        unsearched: Why such entries could not be looked for, if they could not.
    """

    point: Point
    unreached: tuple[str, ...]
    annihilated: Tensors
    unsearched: str | None = None


def gather(replica: Replica, layer_of: Mapping[str, str]) -> Evidence:
    """Move a replica's weights and inputs to a random point, and look at the gradients there.

    The point is the model's own weights times random factors near one, with zeros made small numbers, so that nothing
    overflows or vanishes however deep the network is; it falls back to the model's own weights where even that does.

    Args:
        replica: A replica in the precision wanted; its weights and inputs are changed.
        layer_of: Name of a parameter -> its layer. Only what is small beside the rest of its layer is suspected to
            vanish.

    Raises:
        ModelError: The forward pass fails, no output depends on a trainable parameter, or gradients are not finite.
    """
    trainable = _trainable(replica)
    generator = torch.Generator().manual_seed(0)
    replica.perturb_inputs(generator)
    own = {name: tensor.detach().clone() for name, tensor in trainable.items()}
    point = _moved(replica, own, generator, signs=False) or _point(replica, own)
    if point is None:
        raise ModelError(
            "The gradients of the model are not finite, at its own weights and near them, so no law can be checked. "
            "Give weights and inputs for which the forward and backward pass are finite."
        )
    suspects = {name: trainable[name] for name in _suspects(point.gradients, layer_of)}
    annihilated: Tensors = {}
    unsearched = None
    if suspects and point.weights and next(iter(point.weights.values())).dtype != torch.float64:
        unsearched = "the model does not run in float64, and rounding is not told from a gradient otherwise"
    elif suspects:
        annihilated, unsearched = _cancelled(replica, suspects, generator)
    unreached = tuple(name for name in trainable if name not in point.gradients)
    return Evidence(point, unreached, annihilated, unsearched)


def _cancelled(replica: Replica, suspects: Tensors, generator: torch.Generator) -> tuple[Tensors, str | None]:
    """Masks of the entries that cancel before the first kink, or why they cannot be told."""
    try:
        with Kinks(generator) as kinks:
            first, *again = _gradients(replica, suspects, [0.0] + _NUDGES * [_NUDGE], kinks.projections)
    except (ModelError, RuntimeError) as error:
        return {}, f"{type(error).__name__}: {error}"
    return _noise(first, again), None


def further_points(replica: Replica, evidence: Evidence, count: int, *, near: bool = False) -> Iterator[Point]:
    """Other points, far from the model's own weights: each sign is random. Those that are not finite are left out.

    Args:
        replica: What was used to gather the evidence.
        evidence: What was gathered.
        count: How many points to try.
        near: Begin with the point of the evidence.
    """
    generator = torch.Generator().manual_seed(1)
    if near and (point := _point(replica, evidence.point.weights)):
        yield point
    for _ in range(count):
        if point := _moved(replica, evidence.point.weights, generator, signs=True):
            yield point


def _trainable(replica: Replica) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in replica.parameters.items() if tensor.requires_grad}


def _moved(replica: Replica, weights: Tensors, generator: torch.Generator, *, signs: bool) -> Point | None:
    moved = {name: _near(weight, generator) for name, weight in weights.items()}
    if signs:
        for weight in moved.values():
            weight *= 2 * torch.randint(2, weight.shape, generator=generator).to(weight) - 1
    return _point(replica, moved)


def _point(replica: Replica, weights: Tensors) -> Point | None:
    """The point at those weights, None if its gradients are not finite. The replica stays there."""
    trainable = _trainable(replica)
    with torch.no_grad():
        for name, weight in weights.items():
            trainable[name].copy_(weight)
    (gradients,) = _gradients(replica, trainable, [0.0])
    if not all(bool(gradient.isfinite().all()) for gradient in gradients.values()):
        return None
    return Point({name: weights[name] for name in gradients}, gradients)


def _near(weight: Tensor, generator: torch.Generator) -> Tensor:
    """The weight times random factors in [0.7, 1.3]; small numbers in place of zeros."""
    if not weight.numel():
        return weight.clone()
    factor, noise = (torch.rand(weight.shape, generator=generator).to(weight) for _ in range(2))
    size = float(weight.norm()) / weight.numel() ** 0.5 or 1.0
    small = 0.1 * size / max(1, weight.shape[-1] if weight.ndim else 1) ** 0.5
    moved = torch.where(weight == 0, small * (2 * noise - 1), weight * (0.7 + 0.6 * factor))
    if weight.ndim > 1 and bool(weight.any()):
        empty = ~weight.flatten(1).any(dim=1)
        moved[empty] = 0  # the padding row of an embedding stays what it is
    return moved


def _gradients(
    replica: Replica, parameters: Tensors, nudges: Sequence[float], also: Sequence[Tensor] = ()
) -> list[Tensors]:
    """Gradients of a random linear function of all outputs, once for each nudge of its coefficients.

    Args:
        replica: What is run, once.
        parameters: The parameters wanted; those that do not reach the output are left out of the results.
        nudges: Largest relative changes of the coefficients, which are the same at every call.
        also: Further tensors for the function to depend on, filled while the replica runs.
    """
    try:
        with spilled():
            return _differentiated(replica, parameters, nudges, also)
    except ModelError as error:
        if "saved tensor hooks" not in str(error):  # torch.func inside the forward pass does not bear them
            raise
    return _differentiated(replica, parameters, nudges, also)


def _differentiated(
    replica: Replica, parameters: Tensors, nudges: Sequence[float], also: Sequence[Tensor]
) -> list[Tensors]:
    with torch.enable_grad():
        outputs = [output for output in floating_tensors(replica.run()) if output.requires_grad]
        if not any(output.numel() for output in (*outputs, *also)):
            raise ModelError(
                "Expected a forward pass whose output has entries that depend on a trainable parameter; got none. "
                "Check that the inputs are not empty, that parameters have requires_grad=True and that the output is "
                "not detached."
            )
        last = len(nudges) - 1
        return [
            _pulled_back([*outputs, *also], parameters, nudge, turn, retain=turn < last)
            for turn, nudge in enumerate(nudges)
        ]


def _pulled_back(outputs: Sequence[Tensor], parameters: Tensors, nudge: float, turn: int, *, retain: bool) -> Tensors:
    fixed, moving = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2 + turn)
    cotangents = []
    for output in outputs:
        cotangent = torch.randn(output.shape, generator=fixed, dtype=output.dtype)
        change = torch.rand(output.shape, generator=moving, dtype=cotangent.real.dtype)
        cotangents.append((cotangent * (1 + nudge * change)).to(output.device))
    return _accumulated(outputs, cotangents, parameters, retain=retain)


def _accumulated(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], parameters: Tensors, *, retain: bool
) -> Tensors:
    """Vector-Jacobian products, added into memory that is laid out beforehand.

    Small results allocated one by one between large temporaries would pin those and fragment the heap.
    """
    reached: set[str] = set()
    found = {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in parameters.items()}
    handles = [
        tensor.register_post_accumulate_grad_hook(lambda _, name=name: reached.add(name))
        for name, tensor in parameters.items()
    ]
    try:
        for name, tensor in parameters.items():
            tensor.grad = found[name]
        try:
            torch.autograd.backward(outputs, cotangents, retain_graph=retain, inputs=list(parameters.values()))
        except RuntimeError as error:
            if "use_reentrant" not in str(error):
                raise
            # Activations checkpointed in the old way bear no choice of inputs; it only saves what nobody asked for.
            torch.autograd.backward(outputs, cotangents, retain_graph=retain)
    finally:
        for handle in handles:
            handle.remove()
        for tensor in parameters.values():
            tensor.grad = None
    return {name: gradient for name, gradient in found.items() if name in reached}


def _suspects(gradients: Tensors, layer_of: Mapping[str, str]) -> list[str]:
    """Parameters with entries small enough, beside the others of their layer, to be nothing but rounding.

    A parameter alone in its layer is compared with the whole model.
    """
    sizes = {name: float(gradient.abs().max()) if gradient.numel() else 0.0 for name, gradient in gradients.items()}
    layers: dict[str, list[float]] = defaultdict(list)
    for name, size in sizes.items():
        layers[layer_of[name]].append(size)
    overall = max(sizes.values(), default=0.0)
    found = []
    for name, gradient in gradients.items():
        beside = layers[layer_of[name]]
        standard = max(beside) if len(beside) > 1 and max(beside) > 0 else overall
        if _counts(gradient.abs() <= _SUSPECT * standard):
            found.append(name)
    return found


def _counts(mask: Tensor) -> bool:
    """Whether a mask is of interest. In a matrix single entries are not: they are unused inputs, a matter of data."""
    is_vector = sum(length > 1 for length in mask.shape) <= 1
    return bool(mask.any()) and (is_vector or bool(mask.all()))


def _noise(first: Tensors, again: Sequence[Tensors]) -> Tensors:
    """Masks of entries with hardly a digit in common although the loss moved only in the ninth.

    A gradient that exists changes, in its ninth digit; a sum that cancels is left with rounding, which changes
    altogether or not at all. This needs no scale, which a deep network would not have. A parameter that shows nothing
    but exact zeros (dead units) is not among them.
    """
    masks = {}
    for name in again[0]:
        changes = torch.stack([(first[name] - second[name]).abs() for second in again])
        sizes = torch.stack([torch.maximum(first[name].abs(), second[name].abs()) for second in again])
        jumps = changes > 1e-2 * sizes
        rounding = jumps | ((changes == 0) & (first[name] != 0))
        mask = ~((changes > 0) & ~jumps).any(dim=0)
        if bool(rounding.any()) and _counts(mask):
            masks[name] = mask
    return masks
