"""Fixes print themselves: the code to paste is made of the same settings that `gatdiag.treat` executes."""

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from keyword import iskeyword
from math import isclose, prod
from typing import Any, Final

REPLACES: Final = "instead of yours, before schedulers are created"
USUAL_EPS: Final = 1e-8
_DEFAULTS: Final[dict[str, Any]] = {  # of torch's optimizers, in the order in which settings are written
    "lr": None, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "betas": [0.9, 0.999], "eps": USUAL_EPS,
    "weight_decay": 0.0, "amsgrad": False, "decoupled_weight_decay": False, "maximize": False,
}  # fmt: skip
_OTHER_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "ASGD": {"lambd": 1e-4, "alpha": 0.75, "t0": 1e6},
    "Adadelta": {"rho": 0.9, "eps": 1e-6},
    "Adafactor": {"beta2_decay": -0.8, "eps": [None, 1e-3], "d": 1.0},
    "Adagrad": {"eps": 1e-10, "lr_decay": 0.0, "initial_accumulator_value": 0.0},
    "AdamW": {"weight_decay": 0.01, "decoupled_weight_decay": True},
    "LBFGS": {
        "max_iter": 20, "max_eval": 25, "tolerance_grad": 1e-7, "tolerance_change": 1e-9, "history_size": 100,
        "line_search_fn": None,
    },
    "Muon": {
        "weight_decay": 0.1, "momentum": 0.95, "nesterov": True, "ns_coefficients": [3.4445, -4.775, 2.0315],
        "eps": 1e-7, "ns_steps": 5, "adjust_lr_fn": None,
    },
    "NAdam": {"momentum_decay": 4e-3},
    "RMSprop": {"alpha": 0.99, "centered": False},
    "Rprop": {"etas": [0.5, 1.2], "step_sizes": [1e-6, 50]},
}  # fmt: skip
OF_TORCH: Final = frozenset({
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam", "RMSprop",
    "Rprop", "SGD", "SparseAdam",
})  # fmt: skip
_NO_VARIABLES: Final = frozenset({*dir(builtins), "args"})  # in a script
OF_DATA: Final = ("x", "edge_attr", "edge_weight", "pos")
"""Names of inputs that are attributes of the data of PyG."""


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
        *_, last = [None, *(fix for fix in self.actions if _creates_optimizer(fix))]
        shown = [fix for fix in self.fixes if fix is last or not _creates_optimizer(fix)]
        return _join(shown, _merge_optimizers(self.actions) if last else "")

    @property
    def actions(self) -> tuple[Action, ...]:
        """What `gatdiag.treat` executes."""
        return tuple(fix for fix in self.fixes if isinstance(fix, Action))


GLOROT: Final = Remedy(Action("initialize", {"scheme": "xavier_uniform"}))
"""Fresh weights of the usual size."""


def suit(remedy: Remedy, *, is_generated: bool = False, is_reparametrized: bool = False) -> Remedy:
    """The remedy for a model; what cannot be done to it becomes text that says when it can.

    Args:
        remedy: The remedy.
        is_generated: The model's forward pass is code that torch generated, which nothing can be added to.
        is_reparametrized: Some weights are computed from others, so that they cannot be set.
    """
    when: dict[str, str] = {}
    if is_generated:
        when |= dict.fromkeys(
            ("leaky_relu", "rescale_output"), "before torch.fx, torch.jit or to_hetero makes the model"
        )
    if is_reparametrized:
        when |= {"initialize": "before weights are normalized or pruned"}
    fixes = [
        Manual(f"# {when[one.name]}:\n{one.code}") if isinstance(one, Action) and one.name in when else one
        for one in remedy.fixes
    ]
    return Remedy(*fixes)


# --- the optimizer ----------------------------------------------------------------------------------------------------


def paste(actions: Sequence[Action]) -> str:
    """The code of several actions in the order of a script: model and data, the optimizer, what each step does.

    Example:
        >>> decay = {"class": "SGD", "settings": {"lr": 0.1}, "changed": {"weight_decay": 5e-4}}
        >>> actions = Action("clear_gradients"), Action("weight_decay", {"value": 5e-4, "optimizer": decay})
        >>> print(paste([*actions, Action("unfreeze")]))
        model.requires_grad_(True)  # before the optimizer is created
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.0005)  # ...
        optimizer.zero_grad()  # in every step, before loss.backward()
    """
    others = [action for action in actions if not _creates_optimizer(action)]
    before = _join([action for action in others if action.name not in _OF_OPTIMIZER])
    after = _join([action for action in others if action.name in _OF_OPTIMIZER])
    return "\n".join(filter(None, [before, _merge_optimizers(actions), after]))


def _merge_optimizers(actions: Sequence[Action]) -> str:
    """The line that creates the optimizer with the settings of all actions, the later ones first; "" without any.

    Factors of the learning rate multiply, and Adam is in place of whatever other actions were found with.
    """
    known = [action for action in actions if _creates_optimizer(action)]
    if len(known) < 2:
        return "".join(action.code for action in known)
    base = next((action for action in known if action.name == "adam"), known[-1]).settings["optimizer"]
    changed = {name: value for action in known for name, value in action.settings["optimizer"]["changed"].items()}
    rates = [action.settings for action in known if action.name == "learning_rate"]
    if rates:
        factor = prod(settings["factor"] for settings in rates[1:])
        changed["lr"] = rates[0]["optimizer"]["changed"]["lr"] * factor
    return f"{optimizer_code({**base, 'changed': changed})}  # {REPLACES}"


def _creates_optimizer(fix: Action | Manual) -> bool:
    """Whether what is pasted is the line that creates the optimizer."""
    return isinstance(fix, Action) and bool(fix.settings.get("optimizer"))


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
    return f"optimizer = {'torch.optim.' if name in OF_TORCH else ''}{name}({', '.join(arguments)})"


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_literal, value))})"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return repr(value)
    short = f"{value:g}"
    return short if isclose(float(short), value, rel_tol=1e-9) else repr(value)


def _new_optimizer(optimizer: Mapping[str, Any], note: str = REPLACES) -> str:
    return f"{optimizer_code(optimizer)}  # {note}"


def _of_groups(statement: str, note: str = "before schedulers are created") -> str:
    return f"for group in optimizer.param_groups:\n    {statement}  # {note}"


def _learning_rate(factor: float, optimizer: Mapping[str, Any] | None = None) -> str:
    return _new_optimizer(optimizer) if optimizer else _of_groups(f'group["lr"] *= {factor:g}')


def _weight_decay(value: float, optimizer: Mapping[str, Any] | None = None) -> str:
    lower = f'group["weight_decay"] = min(group["weight_decay"], {value:g})'
    return _new_optimizer(optimizer) if optimizer else _of_groups(lower)


def _setting(name: str, value: Any, optimizer: Mapping[str, Any] | None = None) -> str:
    return _new_optimizer(optimizer) if optimizer else _of_groups(f'group["{name}"] = {_literal(value)}')


def _adam(lr: float, weight_decay: float = 0.0) -> str:
    settings = {"lr": lr, **({"weight_decay": weight_decay} if weight_decay else {})}
    return _new_optimizer({"class": "Adam", "settings": {}, "changed": settings})


# --- the model --------------------------------------------------------------------------------------------------------


def _join(fixes: Sequence[Action | Manual], optimizer: str = "") -> str:
    """The code of fixes below each other; that of one which creates the optimizer is given."""
    codes = [
        _insert_all(layers, [fix.settings for fix in alike if isinstance(fix, Action)])
        if layers
        else _join_loops([optimizer if _creates_optimizer(fix) else fix.code for fix in alike])
        for layers, alike in groupby(fixes, _insertion_place)
    ]
    return "\n".join(codes)


def _join_loops(codes: Sequence[str]) -> str:
    """Pieces of code below each other; loops with the same head become one."""
    lines, head = list[str](), ""
    for code in codes:
        first, *body = code.splitlines() or [""]
        lines += body if first == head else [first, *body]
        head = first if first.startswith("for ") else ""
    return "\n".join(lines)


def _initialize(scheme: str, inputs: Sequence[str] = ()) -> str:
    given = f", {', '.join(inputs)}" if inputs else ""
    zero = "" if scheme.startswith("balanced") else "; this also sets biases to zero"
    of = f"; {', '.join(inputs)}: its inputs" if inputs else ""
    return f'gatdiag.remedies.initialize_(model, "{scheme}"{given})  # before training{zero}{of}'


def _draw(parameters: Sequence[str], vectors: Sequence[str] = ()) -> str:
    loops = [
        f"for name in {[*names]}:  # before training\n    torch.nn.init.xavier_normal_(model.get_parameter(name){rows})"
        for names, rows in ((parameters, ""), (vectors, ".data[None]"))
        if names
    ]
    return "\n".join(loops)


def _insert_after(**settings: Any) -> str:
    return _insert_all(settings["layers"], [settings])


def _insertion_place(fix: Action | Manual) -> tuple[str, ...]:
    """The layers after which a fix inserts a module; empty for other fixes."""
    return tuple(fix.settings["layers"]) if isinstance(fix, Action) and fix.name == "insert_after" else ()


def _insert_all(layers: Sequence[str], modules: Sequence[Mapping[str, Any]]) -> str:
    """A loop that inserts modules after each of the layers, one after the other."""
    made = [_module(**{key: value for key, value in one.items() if key != "layers"}) for one in modules]
    loop, name = _loop(layers)
    lines = [f"{loop}  # before the optimizer is created"]
    if len(made) > 1:
        lines.append(f"    for layer in ({', '.join(made)}):")
    indent, inserted = ("        ", "layer") if len(made) > 1 else ("    ", made[0])
    return "\n".join([*lines, f"{indent}gatdiag.remedies.insert_after_(model, {name}, {inserted})"])


def _module(module: str, width: int = 0, scale: float = 1.0) -> str:
    made = {
        "LayerNorm": f"torch.nn.LayerNorm({width})",
        "ReLU": "torch.nn.ReLU()",
        "Skip": f"gatdiag.remedies.Skip({scale:g})",
    }
    return made.get(module, module)


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


def _register(tensors: Sequence[str] = ()) -> str:
    given = "".join(f", {name!r}" for name in tensors)
    or_else = "" if tensors else "; or self.layers = torch.nn.ModuleList(self.layers) in __init__"
    return f"gatdiag.remedies.register_(model{given})  # before the optimizer is created{or_else}"


_FEW: Final = 3  # lines of a kind


def _dropout(attributes: Sequence[str], rate: float) -> str:
    if len(attributes) <= _FEW:
        return "\n".join(f"{_attribute(name)} = {rate:g}" for name in attributes)
    owners: dict[str, list[str]] = {}
    for path, _, attribute in (name.rpartition(".") for name in attributes):
        owners.setdefault(attribute, []).append(path)
    return "\n".join(
        f"for name in {paths}:\n    model.get_submodule(name).{attribute} = {rate:g}"
        for attribute, paths in owners.items()
    )


def _attribute(name: str) -> str:
    """An attribute of a module of the model, as code."""
    path, _, attribute = name.rpartition(".")
    return f"model.{f'get_submodule({path!r}).' if path else ''}{attribute}"


# --- the inputs -------------------------------------------------------------------------------------------------------


def _standardize(names: Sequence[str]) -> str:
    return "\n".join(
        f"{of} = gatdiag.remedies.standardize({of})  # before training{meant}" for of, meant in map(_name_input, names)
    )


def _replace_non_finite(names: Sequence[str]) -> str:
    lines = (
        f"low, high = {of}[{of}.isfinite()].aminmax()  # also find out where they come from{meant}\n"
        f"{of} = torch.nan_to_num({of}, nan=0.0, posinf=high.item() + 1, neginf=low.item() - 1)"
        for of, meant in map(_name_input, names)
    )
    return "\n".join(lines)


def _constant_rate(value: float, rates: Sequence[float] = ()) -> str:
    where = "after scheduler.step(), or instead of the scheduler"
    if rates:
        known = ", ".join(map(_literal, rates))
        return f"for group, rate in zip(optimizer.param_groups, [{known}]):\n    group['lr'] = rate  # {where}"
    return _of_groups(f"group['lr'] = {value:g}", where)


def _single_precision(inputs: Sequence[str] = ()) -> str:
    given = [f"{of} = {of}.float(){meant.replace('; ', '  # ', 1)}" for of, meant in map(_name_input, inputs)]
    return "\n".join(["model = model.float()  # before the optimizer is created", *given])


def _absolute(names: Sequence[str]) -> str:
    return "\n".join(
        f"{of} = {of}.abs()  # or keep the sign in edge_attr, for a layer that takes features of edges{meant}"
        for of, meant in map(_name_input, names)
    )


def variable(name: str) -> str:
    """The name that an input has in a script: that of the forward pass's argument, or x if no variable has that name.

    Example:
        >>> variable("pair[0]"), variable("input"), variable("argument 2")
        ('pair[0]', 'x', 'x')
    """
    stem, bracket, inner = name.partition("[")
    is_usual = stem.isidentifier() and not iskeyword(stem) and stem not in _NO_VARIABLES
    return f"{stem if is_usual else 'x'}{bracket}{inner}"


def _name_input(name: str) -> tuple[str, str]:
    """An input as it is called in a script, and the end of a comment that says what is meant if it has another name.

    PyG's data hold features and edges under their names.
    """
    if name in OF_DATA:
        return f"data.{name}", ""
    given = variable(name)
    return given, "" if given == name else f"; x: what the model is called with ({name} in forward)"


_OF_OPTIMIZER: Final = ("learning_rate", "weight_decay", "setting", "constant_rate", "clear_gradients")
"""Names of actions whose code needs the optimizer, or is a part of the training loop."""

_PRINTED: Final[Mapping[str, Callable[..., str]]] = {
    "initialize": _initialize,
    "draw": _draw,
    "insert_after": _insert_after,
    "leaky_relu": lambda slope: (
        f"gatdiag.remedies.leaky_relu_(model, {slope:g})  # or use leaky_relu instead of relu in forward"
    ),
    "unfreeze": lambda: "model.requires_grad_(True)  # before the optimizer is created",
    "register": _register,
    "dropout": _dropout,
    "rescale_output": lambda scale, shift: (
        f"gatdiag.remedies.rescale_output_(model, {scale:g}, {shift:g})  # or train on (y - y.mean()) / y.std()"
    ),
    "clear_gradients": lambda: "optimizer.zero_grad()  # in every step, before loss.backward()",
    "learning_rate": _learning_rate,
    "weight_decay": _weight_decay,
    "setting": _setting,
    "adam": lambda lr, weight_decay=0.0, optimizer=None: _adam(lr, weight_decay),
    "constant_rate": _constant_rate,
    "replace_batch_norms": _replace_batch_norms,
    "norm_momentum": _norm_momentum,
    "single_precision": _single_precision,
    "optimize_all": lambda optimizer: _new_optimizer(optimizer, "once the model is complete and on its device"),
    "keep_optimizer": lambda optimizer: _new_optimizer(optimizer, "once, before the loop"),
    "standardize_inputs": _standardize,
    "replace_non_finite_inputs": _replace_non_finite,
    "absolute_inputs": _absolute,
}
"""Name of an action -> function that prints its code, called with its settings."""
