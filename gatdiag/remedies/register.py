"""Register layers and tensors that a model holds as plain attributes, so that they are trained."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch import Tensor, nn

from gatdiag.errors import InputError
from gatdiag.names import join_names
from gatdiag.remedies.applied import Applied, unwrap_model

_INTERNAL: Final = frozenset(vars(nn.Module()))


def register_(model: nn.Module, *names: str) -> Applied:
    """Register what a model holds as plain attributes, in place: only then are these weights among its parameters.

    Layers in a list, tuple or dict become an `nn.ModuleList` or `nn.ModuleDict`, tensors an `nn.Parameter`. Existing
    optimizers do not have them: create them afterwards.

    Args:
        model: Any module.
        names: Attributes, such as "layers" or "encoder.weight". By default all lists, tuples and dicts that hold layers
            or parameters and nothing else, and all tensors that require a gradient.

    Returns:
        The registered attributes, which can be undone.

    Raises:
        InputError: An attribute is missing, or holds nothing that can be registered; or there is none.

    Example:
        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
        >>> model = Model()
        >>> print(register_(model))
        register:
          layers: registered as ModuleList
        >>> len(list(model.parameters()))
        4
    """
    user = unwrap_model(model)
    applied = Applied("register")
    with applied.undo_on_error():
        for name in names or [*_find_unregistered(user)]:
            path, _, attribute = name.rpartition(".")
            try:
                module = user.get_submodule(path)
                made = _registrable(getattr(module, attribute))
            except AttributeError as error:
                raise InputError(f"Expected the name of an attribute, got {name!r}: {error}") from error
            if made is None:
                raise InputError(f"{name} holds no layers, and is no tensor, so that it cannot be registered")
            _register_(applied, name, module, attribute, made)
        if not applied.changes:
            kept = join_names([name for name, _ in user.named_children()], 8)
            raise InputError(f"Expected layers or tensors in plain attributes, got none; registered are {kept}")
        return applied


def _find_unregistered(model: nn.Module) -> Iterator[str]:
    """Attributes that hold weights of their own, which are none of the model's."""
    known = {id(parameter) for parameter in model.parameters()}
    for path, module in model.named_modules():
        for attribute, value in [*vars(module).items()]:
            if attribute in _INTERNAL or (isinstance(value, Tensor) and not (value.requires_grad and value.is_leaf)):
                continue
            made = _registrable(value)
            weights = [made] if isinstance(made, nn.Parameter) else [] if made is None else [*made.parameters()]
            if not known.issuperset(map(id, weights)):
                yield f"{path}.{attribute}".lstrip(".")


def _registrable(value: Any) -> nn.Module | nn.Parameter | None:
    """What registers a value; None if nothing does."""
    if isinstance(value, nn.Module | nn.Parameter):
        return value
    if isinstance(value, Tensor):
        return nn.Parameter(value.detach()) if value.is_floating_point() or value.is_complex() else None
    is_mapping = isinstance(value, Mapping)
    items = [*value.values()] if is_mapping else [*value] if isinstance(value, list | tuple) else []
    if is_mapping and not all(isinstance(key, str) and "." not in key for key in value):
        return None
    for kind, of_list, of_dict in (
        (nn.Module, nn.ModuleList, nn.ModuleDict),
        (nn.Parameter, nn.ParameterList, nn.ParameterDict),
    ):
        if items and all(isinstance(item, kind) for item in items):
            return of_dict(value) if is_mapping else of_list(items)
    return None


def _register_(applied: Applied, name: str, module: nn.Module, attribute: str, made: nn.Module | nn.Parameter) -> None:
    before, was_buffer = getattr(module, attribute), attribute in module._buffers

    def restore() -> None:
        if hasattr(module, attribute):
            delattr(module, attribute)
        if was_buffer:
            module.register_buffer(attribute, before)
        else:
            object.__setattr__(module, attribute, before)

    applied.add_change(name, f"registered as {type(made).__name__}", restore)
    delattr(module, attribute)  # a buffer of this name would refuse a parameter
    setattr(module, attribute, made)
