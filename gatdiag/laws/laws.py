"""The laws of a model, with their values: delta from gradients, c from weights."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from gatdiag.laws.law import Exclusion, Law, Term
from gatdiag.laws.prediction import Update, updates
from gatdiag.laws.sums import Marginal, Sums

Tensors = Mapping[str, Tensor]


class Laws:
    """The conservation laws of one model, found by `gatdiag.find_laws`.

    A sequence of `Law`, and their values as vectors with one entry a law, in the same order. The values are float64, on
    the device of the (first) parameter, take a few kernels however many neurons there are, and never wait for the
    device.

    Attributes:
        parameters: Name -> parameter of the model the laws belong to.
        excluded: What has no law, and why.
    """

    def __init__(self, laws: Sequence[Law], parameters: Tensors, excluded: Sequence[Exclusion] = ()) -> None:
        """Laws over named parameters, which are kept by reference."""
        self._laws = tuple(laws)
        self.parameters = dict(parameters)
        self.excluded = tuple(excluded)
        self._sums = Sums({_marginal(term): None for law in self._laws for term in law.terms}, self.parameters)
        numbers, slots, exponents = [], [], []
        for number, law in enumerate(self._laws):
            for term in law.terms:
                marginal = _marginal(term)
                numbers += [number] * len(term.indices)
                slots += [self._sums.start(marginal) + marginal.position(index) for index in term.indices]
                exponents += [float(term.exponent)] * len(term.indices)
        device = next((tensor.device for tensor in self.parameters.values()), torch.device("cpu"))
        self._law = torch.tensor(numbers, dtype=torch.int64, device=device)
        self._slot = torch.tensor(slots, dtype=torch.int64, device=device)
        self._exponent = torch.tensor(exponents, dtype=torch.float64, device=device)
        self._lone = torch.bincount(self._law, minlength=len(self)) == 1

    def __len__(self) -> int:
        """How many laws there are."""
        return len(self._laws)

    def __getitem__(self, number: int) -> Law:
        """The law at a position."""
        return self._laws[number]

    def __iter__(self) -> Iterator[Law]:
        """The laws in order."""
        return iter(self._laws)

    def __repr__(self) -> str:
        """How many, in how many layers."""
        return f"Laws({len(self)} laws in {len(self.by_layer())} layers, {len(self.excluded)} exclusions)"

    def by_layer(self) -> dict[str, list[int]]:
        """Layer -> positions of its laws, in order of execution."""
        layers: dict[str, list[int]] = {}
        for number, law in enumerate(self._laws):
            layers.setdefault(law.layer, []).append(number)
        return layers

    def delta(self, gradients: Tensors | None = None) -> Tensor:
        """delta = sum_k e_k <w_k, dL/dw_k>: zero to rounding where the law holds, whatever the optimiser.

        Args:
            gradients: Name -> gradient; the parameters' own ``.grad`` if left out. What is missing counts as zero.

        Returns:
            Float64 of shape (laws,), in units of the loss. A value far from rounding means that the gradients are not
            those of the traced function (another mode, a clipped or scaled gradient, other layers).

        Source:
            Equation 7 of "Are GATs Out of Balance?".
        """
        return self._combined(self._sums(self.parameters, self._gradients(gradients)))

    def c(self, weights: Tensors | None = None) -> Tensor:
        """c = sum_k e_k ||w_k||^2, conserved by gradient flow; zero where incoming and outgoing weights balance.

        Args:
            weights: Name -> weight; the model's own if left out.

        Returns:
            Float64 of shape (laws,). Positive: the incoming weights of the neuron outweigh attention and outgoing ones.

        Source:
            Equation 5 of "Are GATs Out of Balance?".
        """
        weights = self.parameters if weights is None else weights
        return self._combined(self._sums(weights, weights))

    def observe(
        self, gradients: Tensors | None = None, optimizer: Optimizer | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """delta, c, and c as predicted from it for after the optimiser's coming step, for less than the price of three.

        Args:
            gradients: As in `delta`.
            optimizer: As in `predict`; None: no prediction.

        Raises:
            OptimizerError: As in `predict`.
        """
        gradients = self._gradients(gradients)
        steps = None if optimizer is None else self._steps(gradients, optimizer)
        plain = None if steps is None else _plain(steps)
        wanted = [(0, 1), (0, 0), (1, 1)] if plain is not None else [(0, 1), (0, 0)]
        delta, c, *squares = map(self._combined, self._sums.products([self.parameters, gradients], wanted))
        if plain is not None:
            keep, length = plain
            return delta, c, keep**2 * c + length**2 * squares[0]
        return delta, c, None if steps is None else self._predicted(c, gradients, steps)

    def normalised_delta(self, gradients: Tensors | None = None) -> Tensor:
        """|delta| / sum over terms of |e_k <w_k, dL/dw_k>|: about 1e-6 for float32 gradients, 1e-15 for float64.

        For a law with a single term, whose every numerator would be its own denominator, the denominator is
        sum |e_k| |w_k dL/dw_k| entry by entry. Zero where all gradients are.
        """
        gradients = self._gradients(gradients)
        sums = self._sums(self.parameters, gradients)
        entrywise = self._sums(self.parameters, gradients, absolute=True)
        scale = torch.where(self._lone, self._magnitude(entrywise), self._magnitude(sums))
        return _ratio(self._combined(sums).abs(), scale)

    def normalised_c(self, weights: Tensors | None = None) -> Tensor:
        """c / sum |e_k| ||w_k||^2, in [-1, 1]: +1 where only incoming weights are left, 0 where the neuron balances."""
        weights = self.parameters if weights is None else weights
        sums = self._sums(weights, weights)
        return _ratio(self._combined(sums), self._magnitude(sums))

    def residual(self, gradients: Tensors | None = None) -> Tensor:
        """|delta| / sum |e_k| |w_k dL/dw_k|, entry by entry: how far from zero compared with what cancels.

        NaN where every gradient is zero, as with a dead unit: such a point says nothing about the law.
        """
        gradients = self._gradients(gradients)
        scale = self._magnitude(self._sums(self.parameters, gradients, absolute=True))
        return self.delta(gradients).abs() / scale

    def predict(self, c: Tensor, gradients: Tensors | None, optimizer: Optimizer) -> Tensor:
        """The value of c after the optimiser's coming step, granted that delta is zero.

        A step w' = k w - a g - r (see `gatdiag.laws.prediction.Update`) changes c = sum e w^2 into

            k^2 c + sum e (a g + r)^2 - 2 k sum e w r - 2 k a delta.

        With delta = 0 this is, for SGD with learning rate eta and weight decay lambda,
        c' = (1 - eta lambda)^2 c + eta^2 sum e g^2: plain gradient descent drifts at order eta^2 a step. Momentum
        enters through its buffer, Adam through its whole step, which no law ties to the gradient: it drifts at order
        eta. Parameter groups with their own rate or decay break the cancellation; what is left is computed from weights
        and gradients. A measured c that leaves the prediction is a true violation.

        Args:
            c: Values before the step, shape (laws,): measured ones, or the last prediction to follow many steps.
            gradients: Name -> gradient the step will use; the parameters' own ``.grad`` if None.
            optimizer: `SGD`, `Adam` or `AdamW` in the state before its ``step()``.

        Returns:
            Float64 of shape (laws,).

        Raises:
            OptimizerError: Another optimiser.

        Source:
            Discrete counterpart of theorem 2.2 and corollary 2.3 of "Are GATs Out of Balance?"; exact, no expansion.
        """
        gradients = self._gradients(gradients)
        return self._predicted(c, gradients, self._steps(gradients, optimizer))

    def _steps(self, gradients: Tensors, optimizer: Optimizer) -> Mapping[str, Update]:
        by_id = updates(optimizer, {id(self.parameters[name]): gradient for name, gradient in gradients.items()})
        at_rest = Update()
        return {name: by_id.get(id(tensor), at_rest) for name, tensor in self.parameters.items()}

    def _predicted(self, c: Tensor, gradients: Tensors, steps: Mapping[str, Update]) -> Tensor:
        plain = _plain(steps)
        if plain is not None:
            kept, length = plain
            return kept**2 * c + length**2 * self._combined(self._sums(gradients, gradients))
        weights = {name: tensor.detach().to(torch.float64) for name, tensor in self.parameters.items()}
        change: dict[str, Tensor] = {}
        for name, step in steps.items():
            moved = step.rest if step.rest is not None else torch.zeros_like(weights[name])
            cross = -2 * step.keep * weights[name] * moved
            if name in gradients:
                moved = moved + step.step * gradients[name].to(torch.float64)
            change[name] = moved * moved + cross
        keep, product = self._reference(steps)
        result = keep**2 * c + self._combined(self._sums(change))
        if len({(step.keep, step.step) for step in steps.values()}) > 1:
            result = result + self._uneven(weights, gradients, steps, keep, product)
        return result

    def _reference(self, steps: Mapping[str, Update]) -> tuple[Tensor, Tensor]:
        """k and k a of one parameter of each law."""
        chosen = [steps[law.terms[0].parameter] for law in self._laws]
        table = [(step.keep, step.keep * step.step) for step in chosen]
        columns = torch.tensor(table, dtype=torch.float64, device=self._law.device).reshape(len(self), 2)
        return columns[:, 0], columns[:, 1]

    def _uneven(
        self, weights: Tensors, gradients: Tensors, steps: Mapping[str, Update], keep: Tensor, product: Tensor
    ) -> Tensor:
        """What parameter groups with rates of their own add: zero for a law inside one group."""
        decayed = {name: steps[name].keep ** 2 * tensor * tensor for name, tensor in weights.items()}
        stepped = {
            name: steps[name].keep * steps[name].step * weights[name] * gradient.to(torch.float64)
            for name, gradient in gradients.items()
        }
        shrunk = self._combined(self._sums(decayed)) - keep**2 * self._combined(self._sums(weights, weights))
        pushed = self._combined(self._sums(stepped)) - product * self._combined(self._sums(weights, gradients))
        return shrunk - 2 * pushed

    def _gradients(self, gradients: Tensors | None) -> Tensors:
        if gradients is not None:
            return gradients
        return {name: tensor.grad for name, tensor in self.parameters.items() if tensor.grad is not None}

    def _combined(self, sums: Tensor) -> Tensor:
        return self._total(self._exponent * sums[self._slot])

    def _magnitude(self, sums: Tensor) -> Tensor:
        return self._total((self._exponent * sums[self._slot]).abs())

    def _total(self, values: Tensor) -> Tensor:
        return torch.zeros(len(self), dtype=torch.float64, device=values.device).index_add_(0, self._law, values)


def _marginal(term: Term) -> Marginal:
    return Marginal(term.parameter, term.shape, term.axes)


def _plain(steps: Mapping[str, Update]) -> tuple[float, float] | None:
    """keep and step of an update that is the same everywhere and has no rest; None for any other."""
    kinds = {id(step): step for step in steps.values()}
    pairs = {(step.keep, step.step) for step in kinds.values()}
    return pairs.pop() if len(pairs) == 1 and all(step.rest is None for step in kinds.values()) else None


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Zero where both are."""
    return torch.where(denominator == 0, numerator, numerator / denominator.where(denominator != 0, 1.0))
