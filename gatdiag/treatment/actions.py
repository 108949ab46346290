"""What each action of a remedy does: to a fresh model, to the optimizer's steps, or to the model's inputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from inspect import signature
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gatdiag.diagnosis import Action
from gatdiag.errors import InputError, ModelError
from gatdiag.names import join_names
from gatdiag.remedies import Skip, initialize_, insert_after_, leaky_relu_


@dataclass
class Dose:
    """A model that is about to be trained, and what actions did to it.

    Attributes:
        model: It.
        inputs: Of a forward pass, as far as they are known.
        during: Contexts that hold while it is trained.
        changes: What was changed, a line each.
    """

    model: nn.Module
    inputs: tuple[Any, ...] = ()
    during: ExitStack = field(default_factory=ExitStack)
    changes: list[str] = field(default_factory=list)


def apply(dose: Dose, actions: Sequence[Action]) -> None:
    """Do them, in order.

    Raises:
        InputError: There is no such action, or its settings do not fit.
        ModelError: The model cannot be changed like that.
    """
    for action in actions:
        if action.name not in ACTIONS:
            raise InputError(f"Expected one of {join_names(ACTIONS)}, got {action.name!r}")
        try:
            ACTIONS[action.name](dose, **action.settings)
        except TypeError as error:
            raise InputError(f"{action}: its settings do not fit: {error}") from error


# --- the model --------------------------------------------------------------------------------------------------------


def _initialize(dose: Dose, scheme: str, with_inputs: bool = False) -> None:
    if with_inputs and not dose.inputs:
        raise ModelError("it takes the inputs of a forward pass: gatdiag.treat(make_model, train, x, edge_index)")
    applied = initialize_(dose.model, scheme, *(dose.inputs if with_inputs else ()))
    dose.changes.append(f"fresh weights, {scheme}: {len(applied.changes)} parameters")


def _draw(dose: Dose, parameters: Sequence[str]) -> None:
    with torch.no_grad():
        for name in parameters:
            nn.init.xavier_normal_(dose.model.get_parameter(name))
    dose.changes.append(f"fresh weights by Xavier: {join_names(parameters, 4)}")


def _insert_after(dose: Dose, layers: Sequence[str], module: str, width: int = 0, scale: float = 1.0) -> None:
    if module not in _MODULES:
        raise InputError(f"Expected one of {join_names(_MODULES)} to insert, got {module!r}")
    for name in layers:
        insert_after_(dose.model, name, _MODULES[module](width, scale))
    said = f"{module}({scale:g})" if scale != 1.0 else module
    dose.changes.append(f"{said} after {len(layers)} layers: {join_names(layers, 4)}")


_MODULES: Final[Mapping[str, Callable[[int, float], nn.Module]]] = MappingProxyType(
    {
        "Skip": lambda width, scale: Skip(scale),
        "ReLU": lambda width, scale: nn.ReLU(),
        "LayerNorm": lambda width, scale: nn.LayerNorm(width),
    }
)


def _leaky_relu(dose: Dose, slope: float) -> None:
    dose.changes += map(str, leaky_relu_(dose.model, slope).changes)


def _unfreeze(dose: Dose) -> None:
    frozen = [name for name, parameter in dose.model.named_parameters() if not parameter.requires_grad]
    dose.model.requires_grad_(True)
    dose.changes.append(f"parameters are trained that were frozen: {join_names(frozen, 4)}")


# --- the optimizer ----------------------------------------------------------------------------------------------------


def _learning_rate(dose: Dose, factor: float) -> None:
    dose.during.enter_context(_settings(dose.model, "lr", lambda group: group["lr"] * factor))
    dose.changes.append(f"learning rate times {factor:.3g}")


def _constant_rate(dose: Dose, value: float) -> None:
    dose.during.enter_context(_settings(dose.model, "lr", lambda group: value))
    dose.changes.append(f"learning rate {value:g} in all steps, whatever the schedule says")


def _weight_decay(dose: Dose, value: float) -> None:
    dose.during.enter_context(_settings(dose.model, "weight_decay", lambda group: value))
    dose.changes.append(f"weight decay {value:g}")


def _clear_gradients(dose: Dose) -> None:
    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        own = {id(parameter) for parameter in dose.model.parameters()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in own:
                    parameter.grad = None

    dose.during.callback(register_optimizer_step_post_hook(after).remove)
    dose.changes.append("gradients are cleared after each step")


@contextmanager
def _settings(model: nn.Module, name: str, value: Callable[[dict[str, Any]], Any]) -> Iterator[None]:
    """A setting of the groups that hold parameters of the model, changed during each step: schedulers see their own."""
    kept: list[tuple[dict[str, Any], Any]] = []

    def restore(*_: Any) -> None:
        while kept:
            group, old = kept.pop()
            group[name] = old

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        restore()  # a step that raised
        own = {id(parameter) for parameter in model.parameters()}
        for group in optimizer.param_groups:
            if name in group and not own.isdisjoint(map(id, group["params"])):
                kept.append((group, group[name]))
                group[name] = value(group)

    handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(restore)
    try:
        yield
    finally:
        restore()
        for handle in handles:
            handle.remove()


# --- the inputs -------------------------------------------------------------------------------------------------------


def _standardize_inputs(dose: Dose, names: Sequence[str]) -> None:
    known: dict[str, tuple[Tensor, Tensor]] = {}

    def standardized(name: str, x: Tensor) -> Tensor:
        if name not in known:
            known[name] = (x.mean(0), x.std(0).clamp(min=1e-6))
        mean, deviation = known[name]
        return (x - mean) / deviation

    _Inputs(dose, standardized, names)(dose.model, dose.inputs, {})  # the statistics of all nodes, if they are there
    _change_inputs(dose, standardized, names)
    dose.changes.append(f"columns of {join_names(names)} have mean 0 and variance 1")


def _replace_non_finite_inputs(dose: Dose, names: Sequence[str]) -> None:
    def finite(_: str, x: Tensor) -> Tensor:
        known = x[x.isfinite()]
        if not len(known):
            return torch.zeros_like(x)
        low, high = known.aminmax()  # beyond them, so that what was infinite can still be told from the rest
        return torch.nan_to_num(x, nan=0.0, posinf=high.item() + 1, neginf=low.item() - 1)

    _change_inputs(dose, finite, names)
    dose.changes.append(f"NaN in {join_names(names)} is zero, infinity just beyond all other values")


class _Inputs:
    """A hook that changes tables among the arguments of a forward pass, by their names."""

    def __init__(self, dose: Dose, change: Callable[[str, Tensor], Tensor], names: Sequence[str]) -> None:
        self._change, self._names, self.used = change, names, False
        self._arguments = [*signature(dose.model.forward).parameters]

    def __call__(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as the model gets them."""
        rest = (f"argument {place}" for place in range(len(self._arguments), len(args)))
        named = zip([*self._arguments[: len(args)], *rest], args, strict=True)
        return tuple(self._changed(*one) for one in named), {name: self._changed(name, x) for name, x in kwargs.items()}

    def _changed(self, name: str, x: Any) -> Any:
        if name not in self._names or not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
            return x
        self.used = True
        return self._change(name, x)


def _change_inputs(dose: Dose, change: Callable[[str, Tensor], Tensor], names: Sequence[str]) -> None:
    hook = _Inputs(dose, change, names)

    def refuse_unused(kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not hook.used:
            raise ModelError(
                f"{join_names(names)} of {type(dose.model).__name__}.forward was never a tensor of floating-point "
                "numbers, so that it could not be changed on its way: change the data"
            )

    dose.during.push(refuse_unused)
    dose.during.callback(dose.model.register_forward_pre_hook(hook, with_kwargs=True).remove)


ACTIONS: Final[Mapping[str, Callable[..., None]]] = MappingProxyType(
    {
        "initialize": _initialize,
        "draw": _draw,
        "insert_after": _insert_after,
        "leaky_relu": _leaky_relu,
        "unfreeze": _unfreeze,
        "learning_rate": _learning_rate,
        "constant_rate": _constant_rate,
        "weight_decay": _weight_decay,
        "clear_gradients": _clear_gradients,
        "standardize_inputs": _standardize_inputs,
        "replace_non_finite_inputs": _replace_non_finite_inputs,
    }
)
"""Name of an action -> what does it, called with a `Dose` and the settings."""
