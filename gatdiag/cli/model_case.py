"""PACKAGE.MODULE:NAME -> the object; the options of a command -> a model, its inputs and its loss."""

import inspect
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from gatdiag.checkpoint import ModelCase
from gatdiag.cli.options import DATA_FOLDER
from gatdiag.errors import InputError, ModelError
from gatdiag.experiments.data import BUILT_IN, TRANSFORMS, Transform, prepared_graph, usual_transform
from gatdiag.structure import unwrap


def load_case(
    factory: str,
    data: str | None = None,
    inputs: str | None = None,
    root: Path = DATA_FOLDER,
    transform: str | None = None,
    sizes: Mapping[str, int] | None = None,
) -> ModelCase:
    """Build the model that `factory` names and the inputs that `data` or `inputs` name.

    Args:
        factory: The target that makes the model.
        data: Name of a graph.
        inputs: The target that makes inputs instead.
        root: Folder of the data sets.
        transform: Of the features of `data`: one of `gatdiag.experiments.data.TRANSFORMS`; the usual one if None.
        sizes: in_channels and out_channels of the model, where these are known and no graph is named: it then runs on
            the edges of the built-in one, with features drawn at random.

    Raises:
        InputError: A name leads nowhere, both kinds of input are given, or the inputs have another form.
        ModelError: The factory raises, or makes no module.
    """
    if data is not None and inputs is not None:
        raise InputError("--data and --inputs exclude each other: give one of them")
    chosen = _transform(transform, data)
    made = load_target(factory)
    torch.manual_seed(0)
    if inputs is not None:
        return ModelCase(_model(factory, made, sizes or {}), *_inputs(inputs), source=inputs)
    name = data if data is not None else BUILT_IN
    graph = prepared_graph(name, root, chosen)
    if sizes is not None and data is None:
        if "in_channels" not in sizes:
            raise InputError("No feature weight of the checkpoint shows how wide inputs are: give --data or --inputs")
        graph.x = torch.randn(graph.num_nodes, sizes["in_channels"])
        model = _model(factory, made, sizes)
        return ModelCase(model, _graph_inputs(model, graph), source=f"the edges of {name} and random features")
    model = _model(factory, made, _sizes(graph))
    used = chosen or usual_transform(name)
    source = name if name.lower() == BUILT_IN and used == "none" else f"{name}, transform {used}"
    return ModelCase(model, _graph_inputs(model, graph), source=source, loss=_classification_loss(graph))


def load_factory(
    factory: str, data: str, root: Path = DATA_FOLDER, transform: str | None = None
) -> tuple[Callable[[], nn.Module], Data, tuple[Any, ...]]:
    """What makes a model, the graph to train it on, and the inputs of its forward pass.

    Raises:
        InputError: A name leads nowhere.
        ModelError: The factory raises, or makes no module; or it is a module, whose weights are the same at each call.
    """
    chosen = _transform(transform, data)
    made = load_target(factory)
    if isinstance(made, nn.Module):
        raise ModelError(f"{factory} is a module: give the class or a function that makes it, with fresh weights")
    graph = prepared_graph(data, root, chosen)
    sizes = _sizes(graph)
    with torch.random.fork_rng():
        inputs = _graph_inputs(_model(factory, made, sizes), graph)
    return lambda: _model(factory, made, sizes), graph, inputs


def load_target(target: str) -> Any:
    """The object that a target names; NAME may be dotted. The current directory is importable.

    Raises:
        InputError: The target has another form, its module cannot be imported, or the module has no such attribute.

    Example:
        >>> load_target("math:pi")
        3.141592653589793
    """
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise InputError(f"expected PACKAGE.MODULE:NAME, such as models:make_model, got {target!r}")
    if module_name.endswith(".py"):
        dotted = ".".join(part for part in Path(module_name).with_suffix("").parts if part not in (".", "/"))
        raise InputError(f"{target!r} names a file: give its module, {dotted}:{path}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:
        raise InputError(f"cannot import {module_name!r} of {target!r}: {_described(error)}") from error
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError as error:
        near = get_close_matches(path, dir(module), n=1)
        hint = f". Did you mean {module_name}:{near[0]}?" if near else ""
        raise InputError(f"{target!r} does not exist: {error}{hint}") from error


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _transform(text: str | None, data: str | None) -> Transform | None:
    if text is None:
        return None
    if data is None:
        raise InputError("--transform changes the features of a data set: give --data, too")
    chosen = next((known for known in TRANSFORMS if known == text.lower()), None)
    if chosen is None:
        raise InputError(f"--transform: expected {' or '.join(TRANSFORMS)}, got {text!r}")
    return chosen


def _sizes(graph: Data) -> dict[str, int]:
    return {"in_channels": graph.num_features, "out_channels": int(graph.y.max()) + 1}


def _model(target: str, made: Any, sizes: Mapping[str, int]) -> nn.Module:
    """A module as it is, without `torch.compile`; anything else is called, with the sizes it has arguments for."""
    if isinstance(made, nn.Module):
        return unwrap(made)
    if not callable(made):
        raise ModelError(f"{target} is neither an nn.Module nor callable: it is a {type(made).__name__}")
    arguments = _fitting(target, made, sizes)
    try:
        model = made(**arguments)
    except (Exception, SystemExit) as error:
        raise ModelError(f"{target} raised {_described(error)}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{target} has to return an nn.Module, but returned a {type(model).__name__}")
    return unwrap(model)


def _fitting(target: str, made: Callable[..., Any], sizes: Mapping[str, int]) -> dict[str, int]:
    try:
        parameters = inspect.signature(made).parameters.values()
    except ValueError:  # compiled callables may have no signature
        return {}
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    lacking = [name for name in required if name not in sizes]
    if not lacking:
        return {p.name: sizes[p.name] for p in parameters if p.name in sizes}
    known = "in_channels and out_channels are known only with --data" if not sizes else f"known are {', '.join(sizes)}"
    raise ModelError(f"{target} needs {', '.join(lacking)} ({known}): give a factory with defaults for the rest")


def _graph_inputs(model: nn.Module, graph: Data) -> tuple[Any, ...]:
    first = next(iter(inspect.signature(model.forward).parameters), None)
    return (graph,) if first == "data" else (graph.x, graph.edge_index)


def _classification_loss(graph: Data) -> Callable[[Any], Tensor]:
    def loss(output: Any) -> Tensor:
        logits = output[0] if isinstance(output, tuple) else output
        chosen, labels = graph.train_mask.to(logits.device), graph.y.to(logits.device)
        return F.cross_entropy(logits[chosen], labels[chosen])

    return loss


def _inputs(target: str) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    function = load_target(target)
    if not callable(function):
        raise InputError(f"{target} has to be a function that returns the inputs, but is a {type(function).__name__}")
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise InputError(f"{target} raised {_described(error)}") from error
    match returned:
        case (tuple() as args, dict() as kwargs):
            return args, kwargs
        case dict() as kwargs:
            return (), kwargs
        case tuple() | list():
            return tuple(returned), {}
    expected = "a tuple or list of positional inputs, a dict of keyword inputs, or a pair of a tuple and a dict"
    raise InputError(f"{target} has to return {expected}, but returned a {type(returned).__name__}")
