"""What is recorded of the model: settled at its first training forward, and followed when parts are replaced."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import nn
from torch.optim import Optimizer

from gatdiag.errors import InputError
from gatdiag.names import listed
from gatdiag.recorder.binding import Binding, holds_none_of
from gatdiag.recorder.groups import Selection
from gatdiag.recorder.guard import Guard
from gatdiag.recorder.plan import Plan, rebound, settle, settle_laws, without_disproved
from gatdiag.recorder.tape import Tape
from gatdiag.structure.program import Program

Inputs: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]  # positional and keyword inputs of a forward pass


class Subject:
    """The model that is recorded.

    Args:
        model: The model, unwrapped.
        selection: What is measured.
        keeps: Which layers.
        guard: Contains failures.
        begin: Takes the plan before anything is recorded; returns whether it can be.
        follow: Called when the laws of the plan, or tensors and modules of the model, have become others.

    Attributes:
        plan: None before it is settled, and where nothing can be recorded.
        tape: Follows training that does not call the model's own forward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        selection: Selection,
        keeps: Callable[[str], bool],
        guard: Guard,
        begin: Callable[[Plan], bool],
        follow: Callable[[], None],
    ) -> None:
        """Nothing is settled."""
        self.plan: Plan | None = None
        self._model, self._selection, self._keeps, self._guard = model, selection, keeps, guard
        self._begin, self._follow = begin, follow
        self._binding = Binding(model)
        self._is_settled = False  # whether the plan was made, or failed
        self._wants_inputs = True  # whether the model's inputs are needed, and were not seen yet
        self._candidate: Inputs | None = None
        self.tape = Tape(model, self._on_program)

    def forget(self) -> None:
        """Recording has ended."""
        self.plan = self._candidate = None
        self._wants_inputs = False

    def on_forward(self, inputs: Inputs) -> None:
        """The model's forward pass has ended."""
        if not self._wants_inputs:
            return
        if self._model.training and self._binding.holds() and not self.tape.is_rolling:
            self._settle(inputs)
        else:  # perhaps an evaluation with gradients enabled, or with parameters lent for this call; a step will tell
            self._candidate = inputs

    def on_step(self, step: int, optimizers: Sequence[Optimizer]) -> None:
        """A step is about to be made."""
        if self.tape.is_rolling and (program := self.tape.stop()) is not None:
            self._candidate = (program,), {}
        if not self._is_settled or (self._wants_inputs and self._candidate is not None):
            self._settle(self._candidate)
        if not self._binding.holds():
            self._guard("all measurements", self._bind_anew, step, optimizers)

    def _on_program(self, program: Program) -> None:
        """The backward pass is about to begin, after training has called parts of the model by themselves."""
        if self._wants_inputs and self._binding.holds():
            self._settle(((program,), {}))

    def _settle(self, inputs: Inputs | None) -> None:
        """Layers in order of execution, laws, initial weights: once, at the first training forward.

        If a step comes before it, the laws alone have to wait for it.
        """
        self._candidate = None
        self._wants_inputs = False
        if inputs is not None:
            self.tape.stop()
        if self._is_settled:
            self.plan = self._guard("laws", settle_laws, self.plan, self._model, inputs, self._selection) or self.plan
            self._follow()
            return
        self._is_settled = True
        self._binding = Binding(self._model)
        plan: Plan | None = self._guard(
            "all measurements", settle, self._model, inputs, self._selection, self._keeps, self._unseen()
        )
        if plan is None or not self._begin(plan):
            return
        self.plan = plan
        self._wants_inputs = inputs is None and "balance" in self._selection.every
        if not self._wants_inputs:
            self.tell_of_laws()

    def _unseen(self) -> str:
        """Why no inputs are known, if none are."""
        parts = list(self.tape.called)
        if not parts:
            return (
                "no training forward of the model itself was seen: its forward must be called through the model, as in "
                "model(x, edge_index), for its inputs to be known"
            )
        names = listed(parts)
        return (
            f"training calls {names} and not the model's forward pass, and what it computes with them could not be "
            f"followed: {self.tape.reason or 'no backward pass depends on it'}; call the model itself, as in "
            "model(x, edge_index), for its inputs to be known"
        )

    def check_laws(self, *, is_rough: bool) -> None:
        """A backward pass of the first step has ended: laws that its gradients disobey are none of this training."""
        if self.plan is not None:
            self.plan, message = without_disproved(self.plan, is_rough=is_rough)
            if message is not None:
                self._guard.tell("laws", message)
                self._follow()

    def tell_of_laws(self) -> None:
        """Say why there are no laws, if there are none."""
        if self.plan is not None and self.plan.error is not None:
            self._guard.tell("laws", f"no conservation laws are recorded: {self.plan.error}")

    def _bind_anew(self, step: int, optimizers: Sequence[Optimizer]) -> None:
        """Modules or parameters were replaced: those of the same names and shapes are followed from now on."""
        self._binding = Binding(self._model)
        before = self.plan
        try:
            self.plan = None if before is None else rebound(before, self._model)
        except InputError as error:
            self.plan = None
            message = f"nothing is recorded of the model from step {step} on, since {error}; watch it anew"
            self._guard.tell("replaced", message)
        self._follow()
        if self.plan is not before and self.plan is not None:
            self._guard.note("replaced", f"parameters were replaced by others of the same shapes before step {step}")
        if optimizers and holds_none_of(optimizers, self._model.parameters()):
            self._guard.tell(
                "replaced parameters",
                f"the optimizer of step {step} moves parameters that the model no longer has: make a new one from "
                "model.parameters(). Steps are recorded again when there is one",
            )
