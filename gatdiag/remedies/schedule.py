"""Rebalancing again and again while a model trains."""

from typing import Any, get_args

from torch import nn
from torch.optim import Optimizer

from gatdiag.errors import InputError, ModelError
from gatdiag.remedies.applied import Applied, module_of
from gatdiag.remedies.least_norm import balanced_point
from gatdiag.remedies.orbit import Orbit
from gatdiag.remedies.rebalance import Towards, checked_powers, repeatable_laws, rescale_
from gatdiag.remedies.verification import verified_balancing


class Rebalance(Applied):
    """Rebalances a model every so many steps of its optimizer; the function it computes stays the same each time.

    Gradient flow conserves c, but the steps of Adam, momentum and weight decay move it, and relative gradients leave
    their balance at once: `rebalance_` brings them back for a moment, this keeps them there. Laws are found, and that
    the outputs stay is checked, once, when it is made; then each rebalancing is a matter of the weights alone.

    It acts where a step of the optimizer begins, when gradients are there and weights have not moved: weights are
    multiplied, gradients divided, moments carried along (`gatdiag.remedies.moments`), and the step is taken from there.

    Laws are those of the model as it was then: apply other remedies before this one, and undo them after it.

    As an `Applied` it is a context manager, and `undo` ends it; weights stay as training has made them.

    Args:
        model: Any module whose laws can be found.
        args: Positional inputs of its forward pass.
        optimizer: The optimizer that trains it.
        every: Steps from one rebalancing to the next; the first step is one.
        criterion: ``c``: the norms of what leads into a neuron and out of it, the paper's norm ratio; or
            ``relative-gradients``: squared gradients relative to the weights, entry by entry, its gradient ratio. The
            paper sweeps over the layers ten times; this is where such sweeps end. See `rebalance_`.
        kwargs: Keyword inputs of the forward pass.

    Attributes:
        times: How often it has rebalanced.

    Raises:
        InputError: An argument does not fit.
        OptimizerError: The state of this optimizer is not known.
        ModelError: No laws can be found, or none that leaves the outputs as they are; and at a step of the optimizer,
            if the layers of the model have changed.

    Source:
        "Dynamic Rescaling for Training GNNs" (Mustafa, Burkholz, NeurIPS 2024), which rebalances every 10 epochs, by
        the norm ratio or the gradient ratio, and leaves Adam's moments as they are.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> x, optimizer = torch.randn(9, 4), torch.optim.Adam(model.parameters())
        >>> with Rebalance(model, x, optimizer=optimizer, every=2) as schedule:
        ...     for _ in range(4):
        ...         optimizer.zero_grad()
        ...         model(x).square().mean().backward()
        ...         optimizer.step()
        >>> schedule.times
        2
    """

    def __init__(
        self,
        model: nn.Module,
        *args: Any,
        optimizer: Optimizer,
        every: int = 10,
        criterion: Towards = "c",
        **kwargs: Any,
    ) -> None:
        super().__init__("rebalance")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InputError(f"every= is a number of steps: a whole number from 1 was expected, got {every!r}")
        if criterion not in get_args(Towards):
            raise InputError(f"Expected criterion {' or '.join(map(repr, get_args(Towards)))}, got {criterion!r}")
        user = module_of(model)
        self._powers = checked_powers(user, optimizer)
        laws = repeatable_laws(user, args, kwargs)
        checked, _, _ = verified_balancing(user, laws, None, args, kwargs)
        if not checked.balanced:
            reasons = "; ".join(map(str, (*checked.skipped, *laws.excluded)))
            raise ModelError(f"Expected a model with laws to rebalance along, got none ({reasons or 'one layer only'})")
        self._orbit, self._parameters = Orbit([laws[number] for number in checked.balanced]), laws.parameters
        self._every, self._is_of_gradients = every, criterion == "relative-gradients"
        self._model, self._kinds = user, [type(module) for module in user.modules()]
        self._steps = self.times = 0
        what = f"{len(checked.balanced)} laws, towards {criterion}, every {every} steps"
        self.record(type(user).__name__, what, optimizer.register_step_pre_hook(self._before_step).remove)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        due = self._steps % self._every == 0
        self._steps += 1
        if not due:
            return
        if [type(module) for module in self._model.modules()] != self._kinds:
            raise ModelError(
                "The model is not the one whose laws were found: a layer was added, replaced or changed by a remedy. "
                "Undo Rebalance and make it again."
            )
        weights = self._parameters
        gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
        found, _skipped = balanced_point(self._orbit, weights, gradients if self._is_of_gradients else None)
        rescale_(weights, self._orbit.factors(found.numpy()), optimizer, self._powers)
        self.times += 1
