"""Rebalance a model every few steps while it trains."""

from typing import Any, get_args

from torch import nn
from torch.optim import Optimizer

from gatdiag.errors import InputError, ModelError
from gatdiag.laws import find_laws
from gatdiag.remedies.applied import Applied, unwrap_model
from gatdiag.remedies.least_norm import Orbit, solve_balance
from gatdiag.remedies.rebalance import Towards, optimizer_powers, rescale_
from gatdiag.remedies.verification import find_verified_rescaling


class Rebalance(Applied):
    """Rebalance a model every few steps of its optimizer, without changing its function.

    Gradient flow conserves c, but Adam, momentum and weight decay change it, and relative gradients do not stay in
    balance: `rebalance_` balances them once, this class repeatedly. Laws are found and outputs checked once, at the
    start; each rebalancing then needs only the weights.

    It runs as a pre-hook of the optimizer's step: weights are multiplied, gradients divided and moments rescaled
    (`gatdiag.remedies.moments`) before the step is taken.

    The laws are those of the model at the start: apply other remedies before this one, and undo them after it.

    It is an `Applied`, so a context manager; `undo` stops it and keeps the weights as trained.

    Args:
        model: Any module whose laws can be found.
        args: Positional inputs of its forward pass.
        optimizer: The optimizer of the model.
        every: Number of steps between rebalancings, starting with the first step.
        towards: ``c`` for the norms of incoming and outgoing weights, the paper's norm ratio; or
            ``relative-gradients`` for squared relative gradients, entry by entry, its gradient ratio. The paper uses
            ten sweeps over the layers; this is what such sweeps converge to. See `rebalance_`.
        kwargs: Keyword inputs of the forward pass.

    Attributes:
        times: Number of rebalancings so far.

    Raises:
        InputError: An argument is invalid.
        OptimizerError: The state of the optimizer cannot be rescaled.
        ModelError: No laws can be found, or none that leaves the outputs unchanged.

    Source:
        "Dynamic Rescaling for Training GNNs" (Mustafa, Burkholz, NeurIPS 2024), which rebalances every 10 epochs by
        the norm ratio or the gradient ratio, and does not rescale Adam's moments.

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
        towards: Towards = "c",
        **kwargs: Any,
    ) -> None:
        super().__init__("rebalance")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InputError(f"Expected every to be a positive number of steps, got {every!r}")
        if towards not in get_args(Towards):
            raise InputError(f"Expected towards to be {' or '.join(map(repr, get_args(Towards)))}, got {towards!r}")
        user = unwrap_model(model)
        self._powers = optimizer_powers(user, optimizer)
        laws = find_laws(user, *args, **kwargs)
        checked, _, _ = find_verified_rescaling(user, laws, None, args, kwargs)
        if not checked.balanced:
            reasons = "; ".join(map(str, (*checked.skipped, *laws.excluded)))
            raise ModelError(
                f"Expected a model with laws that can be balanced, got none ({reasons or 'one layer only'})"
            )
        self._orbit, self._parameters = Orbit([laws[number] for number in checked.balanced]), laws.parameters
        self._every, self._uses_gradients = every, towards == "relative-gradients"
        self._steps = self.times = 0
        what = f"{len(checked.balanced)} laws, towards {towards}, every {every} steps"
        self.add_change(type(user).__name__, what, optimizer.register_step_pre_hook(self._before_step).remove)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._steps += 1
        if (self._steps - 1) % self._every:
            return
        weights = self._parameters
        gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
        coordinates, _skipped = solve_balance(self._orbit, weights, gradients if self._uses_gradients else None)
        rescale_(weights, self._orbit.factors(coordinates.numpy()), optimizer, self._powers)
        self.times += 1
