"""The referee: how many conservation laws a model has, counted without knowing anything about its operations.

A law sum_k e_k <w_k, dLoss/dw_k> = 0 is a vector e that is orthogonal to w * dLoss/dw for every choice of weights,
inputs and loss.  So the laws are the null space of a matrix that has one column a trainable entry and one row
w * dLoss/dw a random draw.  In float64 its singular values fall into two groups, with a wide gap between them; the
number of small ones is the number of laws.

Only the counting is done here: no operation, layer or architecture is named, except that every small float attribute
`eps` can be replaced.  A tiny eps counts the exact and the approximate laws together, a large one the exact ones.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, functionalize, grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

TINY_EPS = 1e-24
LARGE_EPS = 0.1
LARGEST_GUARD = 1e-2
SMALLEST_GAP = 1e4
ZERO = 1e-9  # a singular value below ZERO times the largest is a candidate for zero
LOSSES_A_DRAW = 4
ALIKE = 1e-11  # rows of unit length that agree to rounding
FRESH_DRAWS = 50
ROUNDS_ALIKE = 3
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


Function = Callable[..., Tensor]
Drawn = tuple[list[Tensor], list[Any]]  # weights, (draws, ...); what each draw has in the place of each input


class Draws:
    """Random rows w * dLoss/dw of one model, and which entries ever had a gradient."""

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], eps: float) -> None:
        self.model, self.eps = model, eps
        self.inputs, self.structure = tree_flatten((args, kwargs))
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = list(self.named.values())
        self.entries = sum(p.numel() for p in self.parameters)
        self.reached = torch.zeros(self.entries, dtype=torch.bool)
        self.rows = torch.zeros(0, self.entries)
        self.kept = self.refused = 0
        self.guarded = with_eps(model)
        self.set_eps(eps)

    def set_eps(self, eps: float) -> None:
        """Replace every small eps of the model."""
        for module in self.guarded:
            module.eps = eps

    def reach(self, rows: int, losses: int = 1) -> None:
        """Draw until there are as many rows as that."""
        while (missing := rows - len(self.rows)) > 0:
            self.add(missing, losses)

    def add(self, rows: int, losses: int = 1) -> None:
        """Draw weights, inputs and losses as often as that; keep the rows that can be trusted.

        A model that torch cannot vectorize runs once for so many losses.

        Where a channel is constant (all of its units are dead) a normalization divides rounding noise by
        sqrt(eps).  Such a draw is told by its gradients depending on eps, and refused.
        """
        if self.vectorized:
            make = partial(self.at_once, self.drawn(rows), self.vectorized)
        else:
            make = partial(self.one_by_one, self.drawn(-(-rows // losses)), losses)
        state = torch.get_rng_state()
        found = make()
        trusted = found.isfinite().all(1)
        if self.guarded and self.eps <= TINY_EPS:
            torch.set_rng_state(state)
            self.set_eps(100 * self.eps)
            trusted &= ((found - make()).abs() <= ALIKE).all(1)
            self.set_eps(self.eps)
        self.kept, self.refused = self.kept + int(trusted.sum()), self.refused + int((~trusted).sum())
        if self.refused > 20 and self.refused > 20 * self.kept:
            raise UnclearGapError(f"{self.refused} of {self.refused + self.kept} random draws gave no usable gradient")
        self.rows = torch.cat([self.rows, found[trusted & found.any(1)]])

    @cached_property
    def vectorized(self) -> Callable[[Function], Function] | None:
        """What makes the model one that torch has vectorizing rules for, so that a draw comes out as by itself.

        Most models need nothing; made functional, one may also write into tensors that it makes.
        """
        drawn = self.drawn(2)
        for prepared in (lambda loss: loss, functionalize):
            try:
                self.at_once(drawn, prepared)
                state = torch.get_rng_state()
                row = self.at_once(drawn, prepared, randomness="same")[0]
            except RuntimeError:
                continue
            torch.set_rng_state(state)
            if torch.allclose(row, self.one_by_one(drawn, 1)[0], rtol=0, atol=ALIKE, equal_nan=True):
                return prepared
        return None

    def drawn(self, draws: int) -> Drawn:
        """Random weights and inputs."""
        return generic(self.parameters, draws), [redraw(leaf, draws) for leaf in self.inputs]

    def at_once(self, drawn: Drawn, prepared: Callable[[Function], Function], randomness: str = "different") -> Tensor:
        """A row a draw; buffers stay as they are."""
        weights, inputs = drawn
        draws = len(weights[0])
        varies = [isinstance(leaf, Tensor) for leaf in inputs]
        named = dict(zip(self.named, weights, strict=True))
        buffers = {name: buffer.expand(draws, *buffer.shape).clone() for name, buffer in self.model.named_buffers()}

        def loss(of: dict[str, Tensor], state: dict[str, Tensor], leaves: list[Any]) -> Tensor:
            args, kwargs = tree_unflatten(leaves, self.structure)
            # With tie_weights torch would leave what it puts into a module that has two names there for ever.
            return random_loss(functional_call(self.model, {**of, **state}, args, kwargs, tie_weights=False))

        axes = (0, 0, [0 if many else None for many in varies])
        leaves = [leaf if many else leaf[0] for leaf, many in zip(inputs, varies, strict=True)]
        found = vmap(grad(prepared(loss)), axes, randomness=randomness)(named, buffers, leaves)
        return unit(torch.cat([(named[name] * found[name]).flatten(1) for name in named], 1))

    def one_by_one(self, drawn: Drawn, losses: int) -> Tensor:
        """A row a draw and loss."""
        rows = []
        for number in range(len(drawn[0][0])):
            weights, inputs = ([values[number] for values in of] for of in drawn)
            set_weights(self.parameters, weights)
            args, kwargs = tree_unflatten(inputs, self.structure)
            output = self.model(*args, **kwargs)
            for _ in range(losses):
                found = torch.autograd.grad(random_loss(output), self.parameters, retain_graph=True, allow_unused=True)
                pairs = list(zip(weights, found, strict=True))
                self.reached |= torch.cat([torch.full((w.numel(),), g is not None) for w, g in pairs])
                parts = [torch.zeros_like(w) if g is None else w * g.to_dense() for w, g in pairs]
                rows.append(torch.cat([part.flatten() for part in parts]))
        return unit(torch.stack(rows))


def converge(draws: Draws) -> Spectrum:
    """Draw until many fresh draws add nothing to the rank: a kink that is met rarely must not pass for a law."""
    many = draws.entries + 10
    draws.reach(many + (ROUNDS_ALIKE * FRESH_DRAWS if draws.vectorized else 0), LOSSES_A_DRAW)
    counts: list[int] = []
    while len(counts) < MOST_ROUNDS:
        many += FRESH_DRAWS
        draws.reach(many)
        found = cut(draws.rows[:many, draws.reached])
        counts.append(found.laws)
        if found.laws == 0 or counts[-ROUNDS_ALIKE:] == [found.laws] * ROUNDS_ALIKE:
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


def random_loss(output: Any) -> Tensor:
    """A smooth loss of all outputs, of which the sizes are taken out: linear, quadratic and mixed terms."""
    outputs = torch.cat([y.reshape(-1) for y in leaves(output)]).double()
    outputs = outputs / outputs.detach().norm().clamp(min=1e-6)
    linear, quadratic, mixed = torch.randn(3, outputs.numel())
    return linear @ outputs + quadratic @ outputs.square() + (mixed @ outputs).square()


def unit(rows: Tensor) -> Tensor:
    """Rows of length 1; rows of zeros stay."""
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-200)


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


def redraw(leaf: Any, draws: int) -> Any:
    """New floating values for each draw; zeros of a non-negative tensor stay (it may be an adjacency)."""
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return [leaf] * draws
    if leaf.layout is torch.sparse_coo:
        leaf = leaf.coalesce()
        values = redraw(leaf.values(), draws)
        return [torch.sparse_coo_tensor(leaf.indices(), new, leaf.shape).coalesce() for new in values]
    if leaf.layout is torch.sparse_csr:
        values = redraw(leaf.values(), draws)
        return [torch.sparse_csr_tensor(leaf.crow_indices(), leaf.col_indices(), new, leaf.shape) for new in values]
    if leaf.numel() and (leaf >= 0).all():
        return (leaf > 0) * (0.2 + 0.8 * torch.rand(draws, *leaf.shape))
    return torch.randn(draws, *leaf.shape) * (0.5 + 2 * torch.rand(draws, *[1] * leaf.ndim))


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
