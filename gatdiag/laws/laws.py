"""The laws of a model, with their values: delta from gradients, c from weights."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.card import card
from gatdiag.errors import OptimizerError
from gatdiag.law import Exclusion, Law
from gatdiag.laws.prediction import Update, predict_updates
from gatdiag.laws.sums import Sums, Tensors


class Laws:
    """The conservation laws of one model, found by `gatdiag.find_laws`.

    A sequence of `Law`, and their values as vectors with one entry per law, in the same order. The values are float64,
    on the device of the (first) parameter, take a few kernels however many neurons there are, and do not synchronize
    with the device.

    Attributes:
        parameters: Name -> parameter of the model the laws belong to.
        names: Names of the parameters that occur in a law.
        excluded: What has no law, and why.
    """

    def __init__(self, laws: Sequence[Law], parameters: Tensors, excluded: Sequence[Exclusion] = ()) -> None:
        self._laws = tuple(laws)
        self.parameters = dict(parameters)
        self.excluded = tuple(excluded)
        terms = [term for law in self._laws for term in law.terms]
        self._sums = Sums(dict.fromkeys((term.parameter, term.axes) for term in terms), self.parameters)
        self.names = tuple(dict.fromkeys(term.parameter for term in terms))
        position = {name: at for at, name in enumerate(self.names)}
        device = next((tensor.device for tensor in self.parameters.values()), torch.device("cpu"))
        counts = torch.tensor([len(term.indices) for term in terms], dtype=torch.int64)
        owners = torch.tensor([position[term.parameter] for term in terms], dtype=torch.int64)
        exponents = torch.tensor([float(term.exponent) for term in terms], dtype=torch.float64)
        laws_of_terms = torch.arange(len(self)).repeat_interleave(_integers(len(law.terms) for law in self._laws))
        # for each entry of a law: the term, the law, its position among the sums, its exponent, its parameter
        self._term = torch.arange(len(terms)).repeat_interleave(counts).to(device)
        self._law = laws_of_terms.to(device)[self._term]
        starts = ((self._sums.start[term.parameter, term.axes], term) for term in terms)
        self._slot = _integers(start + position for start, term in starts for position in term.positions()).to(device)
        self._exponent = exponents.to(device)[self._term]
        self._owner = owners.to(device)[self._term]
        # for each law: the parameter of its first term, whether it has a single entry
        self._first = _integers(position[law.terms[0].parameter] for law in self._laws).to(device)
        self._has_one_entry = torch.bincount(self._law, minlength=len(self)) == 1

    def __len__(self) -> int:
        """Number of laws."""
        return len(self._laws)

    def __getitem__(self, number: int) -> Law:
        """The law at a position."""
        return self._laws[number]

    def __iter__(self) -> Iterator[Law]:
        """The laws in order."""
        return iter(self._laws)

    def __repr__(self) -> str:
        """Number of laws and of layers."""
        return f"Laws({len(self)} laws in {len(self.by_layer())} layers, {len(self.excluded)} exclusions)"

    def _repr_html_(self) -> str:
        rows = [(layer, f"{len(found)} laws, such as {self[found[0]]}") for layer, found in self.by_layer().items()]
        return card(repr(self), rows=[*rows, *((one.what, one.reason) for one in self.excluded)])

    def by_layer(self) -> dict[str, list[int]]:
        """Layer -> positions of its laws, in order of execution."""
        layers: dict[str, list[int]] = {}
        for number, law in enumerate(self._laws):
            layers.setdefault(law.layer, []).append(number)
        return layers

    def delta(self, gradients: Tensors | None = None) -> Tensor:
        """delta = sum_k e_k <w_k, dL/dw_k>: zero to rounding where the law holds, whatever the optimizer.

        Args:
            gradients: Name -> gradient; by default the parameters' ``.grad``. A missing one counts as zero.

        Returns:
            Float64 of shape (laws,), in units of the loss. A value far from rounding means that the gradients are not
            those of the traced function (another mode, a clipped or scaled gradient, other layers).

        Source:
            Equation 7 of "Are GATs Out of Balance?".
        """
        return self._weighted_sum(self._products(self.parameters, self._gradients(gradients)))

    def c(self, weights: Tensors | None = None) -> Tensor:
        """c = sum_k e_k ||w_k||^2, conserved by gradient flow; zero where incoming and outgoing weights balance.

        Args:
            weights: Name -> weight; by default the model's own.

        Returns:
            Float64 of shape (laws,). Positive: the incoming weights of the neuron outweigh attention and outgoing ones.

        Source:
            Equation 5 of "Are GATs Out of Balance?".
        """
        weights = self.parameters if weights is None else weights
        return self._weighted_sum(self._products(weights, weights))

    def normalized_delta(self, gradients: Tensors | None = None) -> Tensor:
        """|delta| / sum over terms of |e_k <w_k, dL/dw_k>|: about 1e-6 for float32 gradients, 1e-15 for float64.

        For a law with a single term, where this would always be one, the denominator is sum |e_k| |w_k dL/dw_k| entry
        by entry. Zero where all gradients are.
        """
        gradients = self._gradients(gradients)
        sums = self._products(self.parameters, gradients)
        entrywise = self._products(self.parameters, gradients, absolute=True)
        scale = torch.where(self._has_one_entry, self._absolute_sum(entrywise), self._absolute_sum(sums))
        return _ratio(self._weighted_sum(sums).abs(), scale)

    def normalized_c(self, weights: Tensors | None = None) -> Tensor:
        """c / sum |e_k| ||w_k||^2, in [-1, 1]: +1 where only incoming weights are left, 0 where the neuron balances."""
        weights = self.parameters if weights is None else weights
        sums = self._products(weights, weights)
        return _ratio(self._weighted_sum(sums), self._absolute_sum(sums))

    def residual(self, gradients: Tensors | None = None, weights: Tensors | None = None) -> Tensor:
        """|delta| / sum |e_k| |w_k dL/dw_k|, entry by entry: how far from zero compared with what cancels.

        NaN where every gradient is zero, as with a dead unit: such a point does not test the law.
        """
        gradients, weights = self._gradients(gradients), self.parameters if weights is None else weights
        sums, sizes = self._sums.products_and_sizes(weights, gradients)[:, self._slot]
        return self._weighted_sum(sums).abs() / self._absolute_sum(sizes)

    def rescaling(self, steps: Tensor) -> dict[str, list[Tensor]]:
        """Name -> factors 2^(exponent * step of the law) of its rows, columns, ..., which broadcast against it."""
        device = self._law.device
        steps = steps.to(device)[self._law] * self._exponent
        factors = 2.0 ** self._sums.new_vector().to(device).index_add_(0, self._slot, steps)
        return {
            name: [part.to(self.parameters[name].device) for part in self._sums.split(name, factors)]
            for name in self.names
        }

    def largest_in_terms(self, values: Tensors) -> Tensor:
        """The largest absolute value among the entries of each term, those of the first law first."""
        largest = self._sums.new_vector().to(self._law.device)
        for name in self.names:
            for place in self._sums.split(name, largest):
                axes = [axis for axis, length in enumerate(values[name].shape) if place.shape[axis] != length]
                sizes = values[name].abs()
                place.copy_(sizes.amax(axes, keepdim=True) if axes else sizes)
        of_terms = largest.new_zeros(sum(len(law.terms) for law in self._laws))
        return of_terms.scatter_reduce_(0, self._term, largest[self._slot], "amax")

    def predict(self, c: Tensor, gradients: Tensors | None, optimizer: Optimizer | Iterable[Optimizer]) -> Tensor:
        """The value of c after the optimizer's next step, assuming that delta is zero.

        A step w' = k w - a g - r (see `gatdiag.laws.prediction.Update`) changes c = sum e w^2 into

            k^2 c + sum e (a g + r)^2 - 2 k sum e w r - 2 k a delta.

        With delta = 0 this is, for SGD with learning rate eta and weight decay lambda,
        c' = (1 - eta lambda)^2 c + eta^2 sum e g^2: plain gradient descent drifts at order eta^2 a step. Momentum
        enters through its buffer, Adam through its whole step, which no law ties to the gradient: it drifts at order
        eta. Parameter groups with their own rate or decay break the cancellation; the rest is computed from weights and
        gradients. A measured c that differs from it is a true violation.

        Args:
            c: Values before the step, shape (laws,): measured, or the last prediction to follow many steps.
            gradients: Name -> gradient the step will use; the parameters' own ``.grad`` if None.
            optimizer: `SGD`, `Adam` or `AdamW` in the state before its ``step()``; or several that share the step, each
                with parameters of its own. Other parameters do not change.

        Returns:
            Float64 of shape (laws,).

        Raises:
            OptimizerError: Another optimizer, or two that update the same parameter.

        Source:
            Discrete counterpart of theorem 2.2 and corollary 2.3 of "Are GATs Out of Balance?"; exact, no expansion.
        """
        gradients = self._gradients(gradients)
        updates: dict[str, Update] = {}
        for each in [optimizer] if isinstance(optimizer, Optimizer) else optimizer:
            self.add_updates(each, gradients, updates)
        return Observation(self, self.parameters, gradients, [updates]).predict(c)

    def add_updates(self, optimizer: Optimizer, gradients: Tensors, updates: dict[str, Update]) -> None:
        """Add the updates that an optimizer is about to make to those of others that share the step.

        Args:
            optimizer: In the state before its ``step()``.
            gradients: Name -> gradient, of its parameter's shape or flat.
            updates: Name -> update; those of the optimizer are added.

        Raises:
            OptimizerError: Its step cannot be predicted, or it updates what another updates.
        """
        names = {id(self.parameters[name]): name for name in self.names if name in gradients}
        found = predict_updates(optimizer, {key: gradients[name] for key, name in names.items()})
        for key, update in found.items():
            if names[key] in updates:
                raise OptimizerError(
                    f"{names[key]} is updated by two optimizers in one step, after which gatdiag cannot predict c. "
                    "Measure c before and after the step with laws.c() instead."
                )
            updates[names[key]] = update

    def _gradients(self, gradients: Tensors | None) -> Tensors:
        if gradients is not None:
            return gradients
        return {name: tensor.grad for name, tensor in self.parameters.items() if tensor.grad is not None}

    def _products(self, left: Tensors, right: Tensors, *, absolute: bool = False) -> Tensor:
        """Sums of left * right, one per entry of a law."""
        factors, positions = ([left], [0, 0]) if left is right else ([left, right], [0, 1])
        return self._sums.products(factors, [positions], absolute=absolute)[0][..., self._slot]

    def _weighted_sum(self, sums: Tensor) -> Tensor:
        return self._sum_by_law(self._exponent * sums)

    def _absolute_sum(self, sums: Tensor) -> Tensor:
        return self._sum_by_law((self._exponent * sums).abs())

    def _sum_by_law(self, values: Tensor) -> Tensor:
        """Sum the last axis (entries of laws) over the entries of each law."""
        points = math.prod(values.shape[:-1])
        rows = torch.arange(points, device=values.device).unsqueeze(1)
        places = self._law if points == 1 else (self._law + len(self) * rows).flatten()
        total = torch.zeros(points * len(self), dtype=torch.float64, device=values.device)
        return total.index_add_(0, places, values.flatten()).view(*values.shape[:-1], len(self))


class Observation:
    """delta and c just before a step, and the predicted c after it, for one step or a batch of steps.

    Several optimizers may share a step, each with parameters of its own: c is a sum over parameters, and the update of
    each is split as in `Laws.predict`.

    Args:
        laws: The laws.
        weights: Name -> weight, for a batch of steps with an axis for them in front.
        gradients: Name -> gradient, likewise.
        updates: For each step, name -> update of a parameter that an optimizer updates; None without prediction.

    Attributes:
        c: As in `Laws.c`, of shape (laws,) or (steps, laws).
        delta: As in `Laws.delta`, of the same shape.
        relative_delta: |delta| over the sum of the absolute values of its terms; NaN for a law with a single entry.
    """

    def __init__(
        self, laws: Laws, weights: Tensors, gradients: Tensors, updates: Sequence[Mapping[str, Update]] | None = None
    ) -> None:
        self._laws, self._updates = laws, updates
        rest = {} if updates is None else _stack_rests(updates, weights)
        pairs = [(0, 0), (0, 1)] + ([] if updates is None else [(1, 1)]) + ([(2, 2), (0, 2), (1, 2)] if rest else [])
        found = laws._sums.products([weights, gradients, rest][: 3 if rest else 2], pairs)
        # sums of w^2, w g, g^2, r^2, w r and g r
        self._squares, self._products, *self._others = (sums[..., laws._slot] for sums in found)
        self.c = laws._sum_by_law(laws._exponent * self._squares)
        self.delta = laws._sum_by_law(laws._exponent * self._products)
        relative = self.delta.abs() / laws._absolute_sum(self._products)
        self.relative_delta = relative.masked_fill(laws._has_one_entry, torch.nan)

    def predict(self, c: Tensor | None = None) -> Tensor:
        """c after the step, assuming that delta is zero: k^2 c + sum e (a g + r)^2 - 2 k sum e w r.

        Args:
            c: Values before the step; by default the measured ones.
        """
        laws, c = self._laws, self.c if c is None else c
        if self._updates is None:
            raise ValueError("Expected an Observation with updates, got one without, which cannot predict c")
        gradient_squares, *of_rest = self._others
        rows = [[updates.get(name, _NO_UPDATE) for name in laws.names] for updates in self._updates]
        table = torch.tensor([[(update.keep, update.step) for update in row] for row in rows], dtype=torch.float64)
        table = table.view(*c.shape[:-1], len(laws.names), 2)
        keep, step = table[..., laws._owner.cpu(), :].to(c.device).unbind(-1)
        keep_of_law, step_of_law = table[..., laws._first.cpu(), :].to(c.device).unbind(-1)
        # what does not cancel if the parameters of a law have different learning rates or weight decays
        decay = (keep**2 - keep_of_law[..., laws._law] ** 2) * self._squares
        cross = (keep * step - (keep_of_law * step_of_law)[..., laws._law]) * self._products
        change = step**2 * gradient_squares + decay - 2 * cross
        if of_rest:
            rest_squares, weights_rest, gradients_rest = of_rest
            change = change + rest_squares - 2 * keep * weights_rest + 2 * step * gradients_rest
        return keep_of_law**2 * c + laws._sum_by_law(laws._exponent * change)


_NO_UPDATE: Final = Update()  # of a parameter that no optimizer updates


def _stack_rests(updates: Sequence[Mapping[str, Update]], weights: Tensors) -> dict[str, Tensor]:
    """Name -> r, for the parameters that have one in any step, in the shapes of the weights."""
    found = {}
    names = [name for of_step in updates for name, update in of_step.items() if update.rest is not None]
    for name in dict.fromkeys(names):
        rests = [of_step.get(name, _NO_UPDATE).rest for of_step in updates]
        zeros = torch.zeros_like(next(rest for rest in rests if rest is not None))
        stacked = torch.stack([zeros if rest is None else rest for rest in rests])
        found[name] = stacked.view(weights[name].shape)
    return found


def _integers(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient, zero where both are zero."""
    return torch.where(denominator == 0, numerator, numerator / denominator.where(denominator != 0, 1.0))
