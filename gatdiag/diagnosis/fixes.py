"""Fixes print themselves: the code to paste is made of the same settings that `gatdiag.treat` executes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

REPLACES: Final = "instead of yours, before schedulers are created"
USUAL_EPS: Final = 1e-8
_DEFAULTS: Final[dict[str, Any]] = {  # of torch's optimizers, in the order in which settings are written
    "lr": None, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "betas": [0.9, 0.999], "eps": USUAL_EPS,
    "weight_decay": 0.0, "amsgrad": False, "maximize": False,
}  # fmt: skip
_OTHER_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "AdamW": {"weight_decay": 0.01},
    "RMSprop": {"alpha": 0.99, "centered": False},
    "Adagrad": {"eps": 1e-10},
    "Adadelta": {"eps": 1e-6},
}
_OF_TORCH: Final = frozenset({
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam", "RMSprop",
    "Rprop", "SGD", "SparseAdam",
})  # fmt: skip


@dataclass(frozen=True)
class Action:
    """A fix that `gatdiag.treat` can execute.

    Attributes:
        name: A stable name, a key of `gatdiag.treatment.ACTIONS`.
        settings: Keyword arguments of the action.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """The action as a call.

        Example:
            >>> print(Action("weight_decay", {"value": 5e-4}))
            weight_decay(value=0.0005)
        """
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"

    @property
    def code(self) -> str:
        """What the user pastes to do the same.

        Example:
            >>> print(Action("unfreeze").code)
            model.requires_grad_(True)  # before the optimizer is created
        """
        return _PRINTED[self.name](**self.settings) if self.name in _PRINTED else f"# {self}"


@dataclass(frozen=True)
class Manual:
    """A fix that only the user can make, as text."""

    code: str


@dataclass(frozen=True, init=False)
class Remedy:
    """What removes a cause: fixes, of which `gatdiag.treat` executes the actions. Text is a fix to be made by hand.

    Example:
        >>> print(Remedy(Action("clear_gradients"), "# look at the labels, too").code)
        optimizer.zero_grad()  # in every step, before loss.backward()
        # look at the labels, too
    """

    fixes: tuple[Action | Manual, ...]

    def __init__(self, *fixes: Action | Manual | str) -> None:
        made = tuple(Manual(fix) if isinstance(fix, str) else fix for fix in fixes if fix)
        object.__setattr__(self, "fixes", made)

    @property
    def code(self) -> str:
        """What the user pastes."""
        return "\n".join(dict.fromkeys(fix.code for fix in self.fixes))  # several may be settings of one optimizer

    @property
    def actions(self) -> tuple[Action, ...]:
        """What `gatdiag.treat` executes."""
        return tuple(fix for fix in self.fixes if isinstance(fix, Action))


GLOROT: Final = Remedy(Action("initialize", {"scheme": "xavier_uniform"}))
"""Fresh weights of the usual size."""


def merge_optimizers(actions: Sequence[Action]) -> str:
    """The line that creates the optimizer with the settings of all actions, the later ones first; "" without any."""
    known = [action for action in actions if action.settings.get("optimizer")]
    if not known:
        return ""
    last = dict(known[-1].settings["optimizer"])
    changed = {name: value for action in known for name, value in action.settings["optimizer"]["changed"].items()}
    return optimizer_code({**last, "changed": changed})


def optimizer_code(optimizer: Mapping[str, Any]) -> str:
    """The line that creates an optimizer: its class, the settings of the run, and those that are changed.

    Settings that have torch's default value are left out; without a class only what is changed is said.
    """
    name, changed = optimizer["class"], optimizer["changed"]
    if not name:
        return f"# in the optimizer: {', '.join(f'{key}={value:g}' for key, value in changed.items())}"
    defaults, known = _DEFAULTS | _OTHER_DEFAULTS.get(name, {}), optimizer["settings"]
    kept = {key for key in defaults if key in known and known[key] != defaults[key]} | {*changed}
    settings = {key: (known | changed)[key] for key in defaults if key in kept}
    arguments = ["model.parameters()", *(f"{key}={_literal(value)}" for key, value in settings.items())]
    return f"optimizer = {'torch.optim.' if name in _OF_TORCH else ''}{name}({', '.join(arguments)})"


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_literal, value))})"
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)


def _initialize(scheme: str, inputs: Sequence[str] = ()) -> str:
    given = f", {', '.join(inputs)}" if inputs else ""
    zero = "" if scheme.startswith("balanced") else "; this also sets biases to zero"
    return f'gatdiag.remedies.initialize_(model, "{scheme}"{given})  # before training{zero}'


def _draw(parameters: Sequence[str]) -> str:
    return (
        f"for name in {[*parameters]}:  # before training\n    torch.nn.init.xavier_normal_(model.get_parameter(name))"
    )


def _insert_after(layers: Sequence[str], module: str, width: int = 0, scale: float = 1.0) -> str:
    made = {
        "LayerNorm": f"torch.nn.LayerNorm({width})",
        "ReLU": "torch.nn.ReLU()",
        "Skip": f"gatdiag.remedies.Skip({scale:g})",
    }
    loop, name = _loop(layers)
    return (
        f"{loop}  # before the optimizer is created\n"
        f"    gatdiag.remedies.insert_after_(model, {name}, {made.get(module, module)})"
    )


def _loop(names: Sequence[str]) -> tuple[str, str]:
    """The head of a loop over layers, and the expression for their names in its body."""
    stem, _, first = names[0].rpartition(".")
    if stem and first.isdecimal() and tuple(names) == tuple(f"{stem}.{int(first) + n}" for n in range(len(names))):
        return f"for i in range({first}, {int(first) + len(names)}):", f'f"{stem}.{{i}}"'
    return f"for name in {[*names]}:", "name"


def _replace_batch_norms(norms: Sequence[str]) -> str:
    return (
        f"for name in {[*norms]}:  # before the optimizer is created; in each row instead of over the batch\n"
        "    width = model.get_submodule(name).num_features\n"
        "    model.set_submodule(name, torch.nn.GroupNorm(1, width))"
    )


def _norm_momentum(value: float) -> str:
    return (
        "for module in model.modules():\n"
        "    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):\n"
        f"        module.momentum = {value:g}"
    )


def _standardize(names: Sequence[str]) -> str:
    return "\n".join(
        f"{of} = gatdiag.remedies.standardize({of})  # before training" for of in map(_where_input_is, names)
    )


def _replace_non_finite(names: Sequence[str]) -> str:
    lines = (
        f"low, high = {of}[{of}.isfinite()].aminmax()  # also find out where they come from\n"
        f"{of} = torch.nan_to_num({of}, nan=0.0, posinf=high.item() + 1, neginf=low.item() - 1)"
        for of in map(_where_input_is, names)
    )
    return "\n".join(lines)


def _constant_rate(value: float, rates: Sequence[float] = ()) -> str:
    where = "  # after scheduler.step(), or instead of the scheduler"
    if rates:
        known = ", ".join(map(_literal, rates))
        return f"for group, rate in zip(optimizer.param_groups, [{known}]):\n    group['lr'] = rate{where}"
    return f"for group in optimizer.param_groups:\n    group['lr'] = {value:g}{where}"


def _single_precision(inputs: Sequence[str] = ()) -> str:
    given = [f"{of} = {of}.float()" for of in map(_where_input_is, inputs)]
    return "\n".join(["model = model.float()  # before the optimizer is created", *given])


def _where_input_is(name: str) -> str:
    """An input by the name of the forward pass's argument; PyG's data hold features and edges under these names."""
    return f"data.{name}" if name in ("x", "edge_attr", "edge_weight", "pos") else name


_PRINTED: Final[Mapping[str, Callable[..., str]]] = {
    "initialize": _initialize,
    "draw": _draw,
    "insert_after": _insert_after,
    "leaky_relu": lambda slope: (
        f"gatdiag.remedies.leaky_relu_(model, {slope:g})  # or use leaky_relu instead of relu in forward"
    ),
    "unfreeze": lambda: "model.requires_grad_(True)  # before the optimizer is created",
    "clear_gradients": lambda: "optimizer.zero_grad()  # in every step, before loss.backward()",
    "learning_rate": lambda factor, optimizer=None: (
        f"{optimizer_code(optimizer)}  # {REPLACES}" if optimizer else f"# the learning rate times {factor:g}"
    ),
    "weight_decay": lambda value, optimizer=None: (
        f"{optimizer_code(optimizer)}  # {REPLACES}" if optimizer else f"# in the optimizer: weight_decay={value:g}"
    ),
    "adam": lambda lr, weight_decay=0.0, optimizer=None: f"{optimizer_code(optimizer)}  # {REPLACES}",
    "constant_rate": _constant_rate,
    "setting": lambda name, value, optimizer=None: (
        f"{optimizer_code(optimizer)}  # {REPLACES}" if optimizer else (f"# in the optimizer: {name}={_literal(value)}")
    ),
    "replace_batch_norms": _replace_batch_norms,
    "norm_momentum": _norm_momentum,
    "single_precision": _single_precision,
    "standardize_inputs": _standardize,
    "replace_non_finite_inputs": _replace_non_finite,
}
"""Name of an action -> function that prints its code, called with its settings."""
