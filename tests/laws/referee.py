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

from tests.laws.many_draws import gradients

TINY_EPS = 1e-24
LARGE_EPS = 0.1
LARGEST_GUARD = 1e-2
SMALLEST_GAP = 1e4
ZERO = 1e-9  # a singular value below ZERO times the largest is a candidate for zero
LOSSES_A_DRAW = 4
ALIKE = 1e-11  # rows of unit length that agree to rounding
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
        eps: replaces the `eps` of every normalization layer (every float attribute of that name below 0.01).
        seed: of the random draws.

    Raises:
        UnclearGapError: the two groups of singular values are less than a factor 1e4 apart.
    """
    return spectrum(model, args, kwargs, eps=eps, seed=seed).laws


def count_kinds(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> tuple[int, int]:
    """How many laws there are, and how many of them do not need any eps of the model to be small."""
    every = exact = 0
    unclear: UnclearGapError | None = None
    for seed in range(3):  # one draw in thousands is so badly conditioned that it blurs the gap
        try:
            every = every or count_laws(model, args, kwargs, seed=seed)
            if not every or not with_eps(model):
                return every, every
            exact = count_laws(model, args, kwargs, eps=LARGE_EPS, seed=seed)
        except UnclearGapError as error:
            unclear = error
            continue
        if exact <= every:  # draws that miss a kink altogether show laws that are none, more than there are in all
            return every, exact
    raise unclear or UnclearGapError(f"more exact laws than laws, {exact} and {every}, at every seed")


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
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = list(self.named.values())
        self.entries = sum(p.numel() for p in self.parameters)
        self.reached = torch.zeros(self.entries, dtype=torch.bool)
        self.rows: list[Tensor] = []
        self.kept = self.refused = 0
        self.guarded = with_eps(model)
        self.vectorizes: bool | None = None  # whether many draws can be made at once; None before it was tried
        self.set_eps(eps)

    def set_eps(self, eps: float) -> None:
        """Replace every small eps of the model."""
        for module in self.guarded:
            module.eps = eps

    def add(self, losses: int) -> None:
        """Draw weights and inputs once and losses several times; keep the rows that can be trusted.

        Where a channel is constant (all of its units are dead) a normalization divides rounding noise by
        sqrt(eps).  Such a draw is told by its gradients depending on eps, and refused.
        """
        set_weights(self.parameters, [values[0] for values in generic(self.parameters, 1)])
        args, kwargs, state = redraw(self.args), redraw(self.kwargs), torch.get_rng_state()
        rows = self.one_draw(args, kwargs, losses)
        trusted = bool(torch.isfinite(rows).all())
        if trusted and self.guarded and self.eps <= TINY_EPS:
            torch.set_rng_state(state)
            self.set_eps(100 * self.eps)
            trusted = torch.allclose(rows, self.one_draw(args, kwargs, losses), rtol=0, atol=ALIKE)
            self.set_eps(self.eps)
        self.keep(rows if trusted else rows[:0], int(trusted), int(not trusted))

    def keep(self, rows: Tensor, kept: int, refused: int) -> None:
        """Note the rows of draws that can be trusted, and how many could not."""
        self.kept, self.refused = self.kept + kept, self.refused + refused
        if self.refused > 20 and self.refused > 20 * self.kept:
            raise UnclearGapError(f"{self.refused} of {self.refused + self.kept} random draws gave no usable gradient")
        self.rows += [row for row in rows if row.any()]

    def add_many(self, draws: int) -> None:
        """`add(1)` as often as that, all at once where torch can vectorize the model."""
        if self.vectorizes is not False:
            try:
                rows, trusted = self.at_once(draws)
            except RuntimeError:  # no rule for an operation, or the first draw came out otherwise
                self.vectorizes = False
                self.set_eps(self.eps)
            else:
                self.keep(rows[trusted], int(trusted.sum()), int((~trusted).sum()))
                return
        for _ in range(draws):
            self.add(1)

    def at_once(self, draws: int) -> tuple[Tensor, Tensor]:
        """What `add` draws, and which rows can be trusted; the very first must be what the model gives by itself."""
        weights = dict(zip(self.named, generic(self.parameters, draws), strict=True))
        inputs = [(redraw(self.args), redraw(self.kwargs)) for _ in range(draws)]
        args, kwargs = inputs[0]
        set_weights(self.parameters, [values[0] for values in weights.values()])
        outputs = list(leaves(self.model(*args, **kwargs)))
        trained = [y.requires_grad for y in outputs]
        random = torch.randn(draws, 3, sum(y.numel() for y, counts in zip(outputs, trained, strict=True) if counts))

        def loss(output: Any, numbers: Tensor) -> Tensor:
            flat = [y.reshape(-1) for y, counts in zip(leaves(output), trained, strict=True) if counts]
            return random_loss(torch.cat(flat).double(), numbers)

        def rows_of() -> Tensor:
            found = gradients(self.model, weights, inputs, random, loss)
            rows = torch.cat([(weights[name] * found[name]).reshape(draws, -1) for name in weights], 1)
            return rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-200)

        state = torch.get_rng_state()
        rows = rows_of()
        if self.vectorizes is None:
            alone = torch.autograd.grad(
                loss(self.model(*args, **kwargs), random[0]), self.parameters, allow_unused=True
            )
            if not torch.allclose(rows[0], self.one_row(alone), rtol=0, atol=ALIKE, equal_nan=True):
                raise RuntimeError("many draws at once are not what one draw is")
            self.vectorizes = True
        trusted = rows.isfinite().all(1)
        if self.guarded and self.eps <= TINY_EPS:
            torch.set_rng_state(state)
            self.set_eps(100 * self.eps)
            trusted &= ((rows - rows_of()).abs() <= ALIKE).all(1)
            self.set_eps(self.eps)
        return rows, trusted

    def one_draw(self, args: tuple[Any, ...], kwargs: dict[str, Any], losses: int) -> Tensor:
        """One row a random smooth loss of all outputs, each of unit length unless it vanishes."""
        outputs = torch.cat([y.reshape(-1) for y in leaves(self.model(*args, **kwargs)) if y.requires_grad]).double()
        rows = []
        for _ in range(min(losses, outputs.numel())):
            loss = random_loss(outputs, torch.randn(3, outputs.numel()))
            rows.append(self.one_row(torch.autograd.grad(loss, self.parameters, retain_graph=True, allow_unused=True)))
        return torch.stack(rows)

    def one_row(self, found: tuple[Tensor | None, ...]) -> Tensor:
        """Flatten w * dLoss/dw over all parameters and normalize it."""
        pairs = list(zip(self.parameters, found, strict=True))
        self.reached |= torch.cat([torch.full((p.numel(),), g is not None) for p, g in pairs])
        parts = [torch.zeros(p.numel()) if g is None else (p.detach() * g.to_dense()).reshape(-1) for p, g in pairs]
        row = torch.cat([part.double() for part in parts])
        return row / row.norm().clamp(min=1e-200)


def converge(draws: Draws) -> Spectrum:
    """Draw until many fresh draws add nothing to the rank: a kink that is met rarely must not pass for a law."""
    while len(draws.rows) < draws.entries + 10:
        if draws.vectorizes is False or not draws.kept:
            draws.add(LOSSES_A_DRAW)
        else:
            draws.add_many(FRESH_DRAWS)
    counts: list[int] = []
    while len(counts) < MOST_ROUNDS:
        draws.add_many(FRESH_DRAWS)
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


def random_loss(outputs: Tensor, random: Tensor) -> Tensor:
    """A smooth loss of all outputs, of which the sizes are taken out: linear, quadratic and mixed terms."""
    linear, quadratic, mixed = random
    outputs = outputs / outputs.detach().norm().clamp(min=1e-6)
    return linear @ outputs + quadratic @ outputs.square() + (mixed @ outputs).square()


def generic(parameters: list[nn.Parameter], draws: int) -> list[Tensor]:
    """Weights, (draws, ...): both signs, none near zero, matrices such that activations neither vanish nor explode.

    The size of biases and other vectors varies from draw to draw, so that every kink is met on both of its sides.
    """
    vectors = 10 ** (-1.5 * torch.rand(draws))
    drawn = []
    for p in parameters:
        each = (draws, *[1] * p.ndim)
        scale = p[0].numel() ** -0.5 if p.ndim > 1 else vectors.view(each)
        size = (0.3 + torch.rand(draws, *p.shape)) * (0.2 + 1.2 * torch.rand(each)) * scale
        drawn.append(torch.where(torch.rand_like(size) < 0.5, -size, size))
    return drawn


@torch.no_grad()
def set_weights(parameters: list[nn.Parameter], values: list[Tensor]) -> None:
    """Give the parameters these values."""
    for p, value in zip(parameters, values, strict=True):
        p.copy_(value)


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
