"""The actions of remedies: changes to a fresh model, to the optimizer's steps, or to the model's inputs."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from inspect import signature
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.optim.adam import adam
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gatdiag.diagnosis import Action
from gatdiag.diagnosis.fixes import USUAL_EPS
from gatdiag.errors import InputError, ModelError
from gatdiag.names import join_names
from gatdiag.remedies import Skip, initialize_, insert_after_, leaky_relu_, register_, rescale_output_
from gatdiag.remedies.standardize import column_statistics


@dataclass
class TreatedModel:
    """A fresh model, and the changes that actions made to it and will make to its training.

    Attributes:
        model: The model.
        inputs: Positional inputs of a forward pass; empty if they are not known.
        keywords: Keyword inputs of a forward pass.
        most_decay: Weight decay that Adam, instead of the optimizer, may have at most.
        settings: Names of settings of the optimizer, each with its value in a group and its place.
        contexts: Entered while the model is trained.
        changes: A description of each change.
    """

    model: nn.Module
    inputs: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    most_decay: float = math.inf
    settings: list[tuple[str, Callable[[dict[str, Any], int], Any]]] = field(default_factory=list)
    contexts: ExitStack = field(default_factory=ExitStack)
    changes: list[str] = field(default_factory=list)


def apply_actions(treated: TreatedModel, actions: Sequence[Action]) -> None:
    """Apply actions in order.

    Raises:
        InputError: An action is unknown, or its settings do not fit.
        ModelError: The model cannot be changed this way.
    """
    for action in actions:
        if action.name not in ACTIONS:
            raise InputError(f"Expected one of {join_names(ACTIONS)}, got {action.name!r}")
        try:
            ACTIONS[action.name](treated, **action.settings)
        except TypeError as error:
            raise InputError(f"{action}: its settings do not fit: {error}") from error


# --- the model --------------------------------------------------------------------------------------------------------


def _initialize(treated: TreatedModel, scheme: str, inputs: Sequence[str] = ()) -> None:
    given, named = (treated.inputs, treated.keywords) if inputs else ((), {})
    if inputs and not (given or named):
        raise ModelError("the inputs of a forward pass are needed: gatdiag.treat(make_model, train, x, edge_index)")
    applied = initialize_(treated.model, scheme, *given, **named)
    treated.changes.append(f"weights initialized with {scheme}: {len(applied.changes)} parameters")


def _draw(treated: TreatedModel, parameters: Sequence[str], vectors: Sequence[str] = ()) -> None:
    for name in parameters:
        nn.init.xavier_normal_(treated.model.get_parameter(name))
    for name in vectors:
        nn.init.xavier_normal_(treated.model.get_parameter(name).data[None])
    treated.changes.append(f"weights initialized with xavier_normal: {join_names([*parameters, *vectors], 4)}")


def _insert_after(
    treated: TreatedModel, layers: Sequence[str], module: str, width: int = 0, scale: float = 1.0
) -> None:
    if module not in _MODULES:
        raise InputError(f"Expected one of {join_names(_MODULES)} to insert, got {module!r}")
    for name in layers:
        insert_after_(treated.model, name, _MODULES[module](width, scale))
    inserted = f"{module}({scale:g})" if scale != 1.0 else module
    treated.changes.append(f"{inserted} inserted after {join_names(layers, 2)}")


_MODULES: Final[Mapping[str, Callable[[int, float], nn.Module]]] = MappingProxyType(
    {
        "Skip": lambda width, scale: Skip(scale),
        "ReLU": lambda width, scale: nn.ReLU(),
        "LayerNorm": lambda width, scale: nn.LayerNorm(width),
    }
)


def _replace_batch_norms(treated: TreatedModel, norms: Sequence[str]) -> None:
    for name in norms:
        norm = treated.model.get_submodule(name)
        device = next((tensor.device for tensor in (*norm.parameters(), *norm.buffers())), None)
        treated.model.set_submodule(name, nn.GroupNorm(1, norm.num_features, device=device))  # type: ignore[arg-type]
    treated.changes.append(f"batch normalizations replaced by normalizations of rows: {join_names(norms, 4)}")


def _norm_momentum(treated: TreatedModel, value: float) -> None:
    for module in treated.model.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = value
    treated.changes.append(f"momentum of batch normalizations {value:g}")


def _leaky_relu(treated: TreatedModel, slope: float) -> None:
    treated.changes += map(str, leaky_relu_(treated.model, slope).changes)


def _unfreeze(treated: TreatedModel) -> None:
    frozen = [name for name, parameter in treated.model.named_parameters() if not parameter.requires_grad]
    treated.model.requires_grad_(True)
    treated.changes.append(f"frozen parameters are trained: {join_names(frozen, 4)}")


def _single_precision(treated: TreatedModel, inputs: Sequence[str] = ()) -> None:
    def as_single(value: Any) -> Any:
        return _replace(value, lambda _, x: x.float() if x.is_floating_point() else x, "")

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(as_single, args)), {name: as_single(x) for name, x in kwargs.items()}

    treated.model.float()
    treated.contexts.callback(treated.model.register_forward_pre_hook(hook, with_kwargs=True).remove)
    treated.changes.append("parameters and inputs in single precision")


def _register(treated: TreatedModel, tensors: Sequence[str] = ()) -> None:
    treated.changes += map(str, register_(treated.model, *tensors).changes)


def _dropout(treated: TreatedModel, attributes: Sequence[str], rate: float) -> None:
    for name in attributes:
        path, _, attribute = name.rpartition(".")
        setattr(treated.model.get_submodule(path), attribute, rate)
    treated.changes.append(f"dropout rate {rate:g}: {join_names(attributes, 4)}")


def _rescale_output(treated: TreatedModel, scale: float, shift: float) -> None:
    treated.changes += map(str, rescale_output_(treated.model, scale, shift).changes)


# --- the optimizer ----------------------------------------------------------------------------------------------------


def _learning_rate(treated: TreatedModel, factor: float, optimizer: Any = None) -> None:
    _change_setting(treated, "lr", lambda group, _: group["lr"] * factor)
    treated.changes.append(f"learning rate times {factor:.3g}")


def _constant_rate(treated: TreatedModel, value: float, rates: Sequence[float] = ()) -> None:
    def rate_of(_: dict[str, Any], place: int) -> float:
        return rates[place] if place < len(rates) else value

    _change_setting(treated, "lr", rate_of)
    treated.changes.append(f"learning rate {value:g} at every step, instead of the schedule")


def _weight_decay(treated: TreatedModel, value: float, optimizer: Any = None) -> None:
    _change_setting(treated, "weight_decay", lambda group, _: min(group["weight_decay"], value))
    treated.most_decay = min(treated.most_decay, value)
    treated.changes.append(f"weight decay {value:g}")


def _setting(treated: TreatedModel, name: str, value: Any, optimizer: Any = None) -> None:
    _change_setting(treated, name, lambda *_: value)
    treated.changes.append(f"{name} {value}")


def _optimize_all(treated: TreatedModel, optimizer: Any) -> None:
    def before(chosen: Optimizer, args: Any, kwargs: Any) -> None:
        first, *others = (group["params"] for group in chosen.param_groups)
        elsewhere = {id(p) for params in others for p in params}
        own = [p for p in treated.model.parameters() if p.requires_grad and id(p) not in elsewhere]
        if not {*map(id, own)} <= {*map(id, first)}:  # in place, as some optimizers keep this list
            first[:] = [*own, *(p for p in first if id(p) not in {*map(id, own)})]

    treated.contexts.callback(register_optimizer_step_pre_hook(before).remove)
    treated.changes.append("the optimizer holds all parameters")


def _keep_optimizer(treated: TreatedModel, optimizer: Any) -> None:
    """A new optimizer of the same class continues with what the one before it remembered."""
    memory: dict[type[Optimizer], Any] = {}

    def before(chosen: Optimizer, args: Any, kwargs: Any) -> None:
        chosen.state = memory.setdefault(type(chosen), chosen.state)

    treated.contexts.callback(register_optimizer_step_pre_hook(before).remove)
    treated.changes.append("one optimizer makes all steps")


def _adam(treated: TreatedModel, lr: float, weight_decay: float = 0.0, optimizer: Any = None) -> None:
    treated.contexts.enter_context(_steps_of_adam(treated, lr, weight_decay))
    treated.changes.append(f"Adam with learning rate {lr:g} instead of the optimizer")


@contextmanager
def _steps_of_adam(treated: TreatedModel, lr: float, weight_decay: float) -> Iterator[None]:
    """Replace the steps of the model's optimizers by those of Adam; schedules scale its learning rate."""
    before: dict[Tensor, Tensor] = {}
    moments: dict[Tensor, list[Tensor]] = {}
    first_rates: dict[int, float] = {}

    def keep(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        own = {*treated.model.parameters()}
        before.update((p, p.detach().clone()) for group in optimizer.param_groups for p in group["params"] if p in own)

    def replace(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for place, group in enumerate(optimizer.param_groups):
            rate = lr * float(group["lr"]) / (first_rates.setdefault(place, float(group["lr"])) or 1.0)
            for p in [p for p in group["params"] if p in before]:
                with torch.no_grad():
                    p.copy_(before.pop(p))
                if p.grad is not None:
                    decay = min(weight_decay, treated.most_decay)
                    _step_of_adam(p, moments.setdefault(p, _no_moments(p)), rate, decay)

    handles = register_optimizer_step_pre_hook(keep), register_optimizer_step_post_hook(replace)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _no_moments(p: Tensor) -> list[Tensor]:
    return [torch.zeros_like(p), torch.zeros_like(p), torch.zeros((), device=p.device)]


def _step_of_adam(p: Tensor, moments: Sequence[Tensor], lr: float, weight_decay: float) -> None:
    mean, square, step = moments
    settings = {"amsgrad": False, "beta1": 0.9, "beta2": 0.999, "eps": USUAL_EPS, "maximize": False}
    # the function, since hooks of all optimizers, those of the recorder among them, would see steps of an object
    with torch.no_grad():
        adam([p], [p.grad], [mean], [square], [], [step], lr=lr, weight_decay=weight_decay, **settings)  # type: ignore[arg-type, list-item]


def _clear_gradients(treated: TreatedModel) -> None:
    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        own = {id(parameter) for parameter in treated.model.parameters()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in own:
                    parameter.grad = None

    treated.contexts.callback(register_optimizer_step_post_hook(after).remove)
    treated.changes.append("gradients are cleared after each step")


def _change_setting(treated: TreatedModel, name: str, value: Callable[[dict[str, Any], int], Any]) -> None:
    if not treated.settings:
        treated.contexts.enter_context(_changed_settings(treated))
    treated.settings.append((name, value))


@contextmanager
def _changed_settings(treated: TreatedModel) -> Iterator[None]:
    """Change settings, in order, during each step of the model's optimizers; schedulers see the original values."""
    originals: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def restore(*_: Any) -> None:
        while originals:
            group, old = originals.pop()
            group.update(old)

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        restore()  # if the last step raised
        own = {id(parameter) for parameter in treated.model.parameters()}
        for place, group in enumerate(optimizer.param_groups):
            if own.isdisjoint(map(id, group["params"])):
                continue
            settings = [(name, value) for name, value in treated.settings if name in group]
            originals.append((group, {name: group[name] for name, _ in settings}))
            for name, value in settings:
                group[name] = value(group, place)

    handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(restore)
    try:
        yield
    finally:
        restore()
        for handle in handles:
            handle.remove()


# --- the inputs -------------------------------------------------------------------------------------------------------


def _standardize_inputs(treated: TreatedModel, names: Sequence[str]) -> None:
    known: dict[str, tuple[Tensor, Tensor]] = {}

    def standardize(name: str, x: Tensor) -> Tensor:
        if name not in known:
            known[name] = column_statistics(x.detach())  # later batches come after this one's backward pass
        mean, deviation = known[name]
        return (x - mean) / deviation

    # statistics of all nodes if the inputs are known, else of the first batch
    for name, value in (*_named(treated.model, treated.inputs), *treated.keywords.items()):
        _replace(value, lambda key, x: standardize(key, x) if key in names else x, name)
    _change_inputs(treated, standardize, names)
    treated.changes.append(f"columns of {join_names(names)} standardized to mean 0 and variance 1")


def _replace_non_finite_inputs(treated: TreatedModel, names: Sequence[str]) -> None:
    def replace_non_finite(_: str, x: Tensor) -> Tensor:
        known = x[x.isfinite()]
        if not len(known):
            return torch.zeros_like(x)
        low, high = known.aminmax()  # beyond the finite values, so that infinity stays distinct
        return torch.nan_to_num(x, nan=0.0, posinf=high.item() + 1, neginf=low.item() - 1)

    _change_inputs(treated, replace_non_finite, names)
    treated.changes.append(f"NaN in {join_names(names)} replaced by 0, infinity by a value beyond all finite ones")


def _absolute_inputs(treated: TreatedModel, names: Sequence[str]) -> None:
    _change_inputs(treated, lambda _, x: x.abs(), names)
    treated.changes.append(f"absolute values of {join_names(names)}")


def _change_inputs(treated: TreatedModel, change: Callable[[str, Tensor], Tensor], names: Sequence[str]) -> None:
    """Change the floating-point tensors of these names among the arguments of each forward pass."""
    is_used = False

    def change_one(name: str, x: Tensor) -> Tensor:
        nonlocal is_used
        if name not in names or not x.is_floating_point():
            return x
        is_used = True
        return change(name, x)

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        changed = [_replace(value, change_one, name) for name, value in _named(treated.model, args)]
        return tuple(changed), {name: _replace(value, change_one, name) for name, value in kwargs.items()}

    def refuse_unused(kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not is_used:
            raise ModelError(
                f"{join_names(names)} of {type(treated.model).__name__}.forward was never a floating-point tensor, so "
                "it could not be changed: change the data instead"
            )

    treated.contexts.push(refuse_unused)
    treated.contexts.callback(treated.model.register_forward_pre_hook(hook, with_kwargs=True).remove)


def _named(model: nn.Module, args: Sequence[Any]) -> list[tuple[str, Any]]:
    """Positional arguments of the forward pass, with the names that a diagnosis gives them."""
    known = [*signature(model.forward).parameters]
    rest = (f"argument {place}" for place in range(len(known), len(args)))
    return [*zip([*known, *rest], args, strict=False)]


def _replace(value: Any, change: Callable[[str, Tensor], Tensor], name: str) -> Any:
    """The value with each tensor changed: in containers, by names such as "x['paper']", and in the data of PyG."""
    if isinstance(value, Tensor):
        return change(name, value)
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update({key: _replace(item, change, f"{name}[{key!r}]") for key, item in value.items()})
        return made
    if isinstance(value, list | tuple):
        parts = [_replace(item, change, f"{name}[{place}]") for place, item in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    made = copy.copy(value) if hasattr(value, "stores") else value
    for store in getattr(made, "stores", ()):
        store.update({key: change(key, item) for key, item in store.items() if isinstance(item, Tensor)})
    return made


ACTIONS: Final[Mapping[str, Callable[..., None]]] = MappingProxyType(
    {
        "initialize": _initialize,
        "draw": _draw,
        "insert_after": _insert_after,
        "leaky_relu": _leaky_relu,
        "unfreeze": _unfreeze,
        "single_precision": _single_precision,
        "register": _register,
        "dropout": _dropout,
        "rescale_output": _rescale_output,
        "learning_rate": _learning_rate,
        "constant_rate": _constant_rate,
        "setting": _setting,
        "weight_decay": _weight_decay,
        "adam": _adam,
        "optimize_all": _optimize_all,
        "keep_optimizer": _keep_optimizer,
        "clear_gradients": _clear_gradients,
        "replace_batch_norms": _replace_batch_norms,
        "norm_momentum": _norm_momentum,
        "standardize_inputs": _standardize_inputs,
        "replace_non_finite_inputs": _replace_non_finite_inputs,
        "absolute_inputs": _absolute_inputs,
    }
)
"""Name of an action -> function that applies it, called with a `TreatedModel` and the settings."""
