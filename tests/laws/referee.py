"""The referee: how many conservation laws a model has, counted without knowing anything about its operations.

A law sum_k e_k <w_k, dLoss/dw_k> = 0 is a vector e that is orthogonal to w * dLoss/dw for every choice of weights,
inputs and loss.  So the laws are the null space of a matrix that has one column a trainable entry and one row
w * dLoss/dw a random draw.  In float64 its singular values fall into two groups, with a wide gap between them; the
number of small ones is the number of laws.

Only the counting is done here: no operation, layer or architecture is named, except that every small float attribute
`eps` can be replaced.  A tiny eps counts the exact and the approximate laws together, a large one the exact ones.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

TINY_EPS = 1e-24
LARGE_EPS = 0.1
LARGEST_GUARD = 1e-2
SMALLEST_GAP = 1e4
ZERO = 1e-9  # a singular value below ZERO times the largest is a candidate for zero
LOSSES_A_DRAW = 4
FRESH_DRAWS = 50
MOST_ROUNDS = 20


class UnclearGapError(RuntimeError):
    """The singular values do not separate into zero and non-zero ones."""


@dataclass(frozen=True)
class Spectrum:
    """The evidence of one count: how many laws, out of how many entries, and how clear the cut is."""

    laws: int
    entries: int
    smallest_nonzero: float
    largest_zero: float

    @property
    def gap(self) -> float:
        """Ratio of the two singular values beside the cut; infinite when nothing lies on one side."""
        return self.smallest_nonzero / self.largest_zero if self.largest_zero > 0 else float("inf")


def count_laws(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    eps: float = TINY_EPS,
    seed: int = 0,
) -> int:
    """The number of independent laws of `model`; the model is used up (its weights and precision change).

    Args:
        model: any module, in the mode (training or evaluation) that is to be judged.
        args: example positional inputs; floating ones are drawn anew, integer and boolean ones are kept.
        kwargs: example keyword inputs, treated alike.
        eps: replaces the `eps` of every normalisation layer (every float attribute of that name below 0.01).
        seed: of the random draws.

    Raises:
        UnclearGapError: the two groups of singular values are less than a factor 1e4 apart.
    """
    return spectrum(model, args, kwargs, eps=eps, seed=seed).laws


def count_kinds(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> tuple[int, int]:
    """How many laws there are, and how many of them do not need any eps of the model to be small."""
    every = count_laws(model, args, kwargs)
    if not every or not with_eps(model):
        return every, every
    for seed in range(3):  # draws that miss a kink altogether show laws that are none, more than there are in all
        exact = count_laws(model, args, kwargs, eps=LARGE_EPS, seed=seed)
        if exact <= every:
            return every, exact
    raise UnclearGapError(f"more exact laws than laws, {exact} and {every}, at every seed")


def spectrum(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    eps: float = TINY_EPS,
    seed: int = 0,
) -> Spectrum:
    """As `count_laws`, with the singular values beside the cut."""
    precision, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)  # models make tensors of their own in forward
    torch.set_num_threads(1)  # the tensors are tiny
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return converge(Draws(model.double(), args, dict(kwargs or {}), eps))
    finally:
        torch.set_default_dtype(precision)
        torch.set_num_threads(threads)


class Draws:
    """Random rows w * dLoss/dw of one model, and which entries ever had a gradient."""

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], eps: float) -> None:
        self.model, self.args, self.kwargs, self.eps = model, args, kwargs, eps
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.entries = sum(p.numel() for p in self.parameters)
        self.reached = torch.zeros(self.entries, dtype=torch.bool)
        self.rows: list[Tensor] = []
        self.kept = self.refused = 0
        self.guarded = with_eps(model)
        self.set_eps(eps)

    def set_eps(self, eps: float) -> None:
        """Replace every small eps of the model."""
        for module in self.guarded:
            module.eps = eps

    def add(self, losses: int) -> None:
        """Draw weights and inputs once and losses several times; keep the rows that can be trusted.

        Where a channel is constant (all of its units are dead) a normalisation divides rounding noise by
        sqrt(eps).  Such a draw is told by its gradients depending on eps, and refused.
        """
        redraw_weights(self.parameters)
        args, kwargs, state = redraw(self.args), redraw(self.kwargs), torch.get_rng_state()
        rows = self.one_draw(args, kwargs, losses)
        trusted = bool(torch.isfinite(rows).all())
        if trusted and self.guarded and self.eps <= TINY_EPS:
            torch.set_rng_state(state)
            self.set_eps(100 * self.eps)
            trusted = torch.allclose(rows, self.one_draw(args, kwargs, losses), rtol=0, atol=1e-11)
            self.set_eps(self.eps)
        self.kept, self.refused = self.kept + trusted, self.refused + (not trusted)
        if self.refused > 20 and self.refused > 20 * self.kept:
            raise UnclearGapError(f"{self.refused} of {self.refused + self.kept} random draws gave no usable gradient")
        self.rows += [row for row in rows if row.any()] if trusted else []

    def one_draw(self, args: tuple[Any, ...], kwargs: dict[str, Any], losses: int) -> Tensor:
        """One row a random smooth loss of all outputs, each of unit length unless it vanishes."""
        outputs = torch.cat([y.reshape(-1) for y in leaves(self.model(*args, **kwargs)) if y.requires_grad]).double()
        outputs = outputs / outputs.detach().norm().clamp(min=1e-6)
        rows = []
        for _ in range(min(losses, outputs.numel())):
            linear, quadratic, mixed = torch.randn(3, outputs.numel())
            loss = linear @ outputs + quadratic @ outputs.square() + (mixed @ outputs).square()
            gradients = torch.autograd.grad(loss, self.parameters, retain_graph=True, allow_unused=True)
            rows.append(self.one_row(gradients))
        return torch.stack(rows)

    def one_row(self, gradients: tuple[Tensor | None, ...]) -> Tensor:
        """Flatten w * dLoss/dw over all parameters and normalise it."""
        pairs = list(zip(self.parameters, gradients, strict=True))
        self.reached |= torch.cat([torch.full((p.numel(),), g is not None) for p, g in pairs])
        parts = [torch.zeros(p.numel()) if g is None else (p.detach() * g.to_dense()).reshape(-1) for p, g in pairs]
        row = torch.cat([part.double() for part in parts])
        return row / row.norm().clamp(min=1e-200)


def converge(draws: Draws) -> Spectrum:
    """Draw until many fresh draws add nothing to the rank: a kink that is met rarely must not pass for a law."""
    while len(draws.rows) < draws.entries + 10:
        draws.add(LOSSES_A_DRAW)
    counts: list[int] = []
    while len(counts) < MOST_ROUNDS:
        for _ in range(FRESH_DRAWS):
            draws.add(1)
        found = cut(torch.stack(draws.rows)[:, draws.reached])
        counts.append(found.laws)
        if found.laws == 0 or counts[-3:] == [found.laws] * 3:
            return found
    raise UnclearGapError(f"the number of laws still falls after {draws.kept} draws: {counts}")


def with_eps(model: nn.Module) -> list[nn.Module]:
    """The modules with a small float `eps` that guards a division or a logarithm (a large one is a hyperparameter)."""
    return [
        module
        for module in model.modules()
        if isinstance(getattr(module, "eps", None), float)
        and module.eps < LARGEST_GUARD
        and not type(module).__module__.startswith("torch.nn.utils")  # changing it would change nothing but buffers
    ]


def redraw_weights(parameters: list[nn.Parameter]) -> None:
    """Generic weights: both signs, none near zero, matrices scaled so that activations neither vanish nor explode.

    The size of biases and other vectors varies from draw to draw, so that every kink is met on both of its sides.
    """
    vectors = 10 ** (-1.5 * torch.rand(()))
    with torch.no_grad():
        for p in parameters:
            scale = p[0].numel() ** -0.5 if p.ndim > 1 else vectors
            size = (0.3 + torch.rand_like(p)) * (0.2 + 1.2 * torch.rand(())) * scale
            p.copy_(torch.where(torch.rand_like(p) < 0.5, -size, size))


def redraw(tree: Any) -> Any:
    """The same structure with new floating values; zeros of a non-negative tensor stay (it may be an adjacency)."""
    if isinstance(tree, Tensor):
        return redraw_tensor(tree)
    if isinstance(tree, Mapping):
        return {key: redraw(value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(redraw(value) for value in tree)
    if hasattr(tree, "to_dict") and hasattr(tree, "apply"):  # graph data objects
        return tree.clone().apply(redraw_tensor)
    return tree


def redraw_tensor(tensor: Tensor) -> Tensor:
    """See `redraw`."""
    if not tensor.is_floating_point():
        return tensor
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return torch.sparse_coo_tensor(tensor.indices(), redraw_tensor(tensor.values()), tensor.shape).coalesce()
    if tensor.layout is torch.sparse_csr:
        values = redraw_tensor(tensor.values())
        return torch.sparse_csr_tensor(tensor.crow_indices(), tensor.col_indices(), values, tensor.shape)
    tensor = tensor.double()
    if tensor.numel() and (tensor >= 0).all():
        return (tensor > 0) * (0.2 + 0.8 * torch.rand_like(tensor))
    return torch.randn_like(tensor) * (0.5 + 2 * torch.rand(()))


def leaves(tree: Any) -> Iterator[Tensor]:
    """The floating tensors of an output: a tensor, a tuple, a dictionary, a data object or a nest of these."""
    if isinstance(tree, Tensor):
        if tree.is_floating_point():
            yield tree.to_dense() if tree.layout is not torch.strided else tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from leaves(value)
    elif hasattr(tree, "to_dict") and not inspect.isclass(tree):
        yield from leaves(tree.to_dict())


def cut(rows: Tensor) -> Spectrum:
    """Separate zero from non-zero singular values; entries whose gradient is always zero are one law each."""
    norms = rows.norm(dim=0)
    order = norms.sort(descending=True).values
    alive = norms > ZERO * order[0]
    count = int(alive.sum())
    check(order, count, "lengths of the columns")
    values = torch.linalg.svdvals(rows[:, alive] / norms[alive])
    rank = int((values > ZERO * values[0]).sum())
    check(values, rank, "singular values")
    zero = max(float(values[rank]) if rank < count else 0.0, float(order[count]) if count < len(order) else 0.0)
    return Spectrum(
        laws=rows.shape[1] - rank, entries=rows.shape[1], smallest_nonzero=float(values[rank - 1]), largest_zero=zero
    )


def check(values: Tensor, rank: int, what: str) -> None:
    """Refuse a cut that is not clear."""
    if rank < len(values) and values[rank - 1] < SMALLEST_GAP * values[rank]:
        beside = [f"{value:.1e}" for value in values[max(0, rank - 3) : rank + 3].tolist()]
        raise UnclearGapError(f"no clear gap in the {what} after {rank} of {len(values)}: {', '.join(beside)}")
