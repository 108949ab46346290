"""Loads PACKAGE.MODULE:NAME, and builds a model, its inputs and its loss from a command's options."""

import inspect
import sys
from collections.abc import Callable, Mapping
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
    """Build the model that ``factory`` names and the inputs that ``data`` or ``inputs`` name.

    ``sizes`` are in_channels and out_channels of the model, if known. Without ``data`` and ``inputs`` the model then
    runs on the edges of the built-in graph, with random features.
    """
    if data is not None and inputs is not None:
        raise InputError("--data and --inputs are mutually exclusive: give one of them")
    chosen = _parse_transform(transform, data)
    made = load_target(factory)
    torch.manual_seed(0)
    if inputs is not None:
        return ModelCase(_make_model(factory, made, sizes or {}), *_make_inputs(inputs), source=inputs)
    name = data if data is not None else BUILT_IN
    graph = prepared_graph(name, root, chosen)
    if sizes is not None and data is None:
        if "in_channels" not in sizes:
            raise InputError("The input size cannot be inferred from the checkpoint: give --data or --inputs")
        graph.x = torch.randn(graph.num_nodes, sizes["in_channels"])
        model = _make_model(factory, made, sizes)
        return ModelCase(model, _graph_inputs(model, graph), source=f"the edges of {name} and random features")
    model = _make_model(factory, made, _graph_sizes(graph))
    used = chosen or usual_transform(name)
    source = name if name.lower() == BUILT_IN and used == "none" else f"{name}, transform {used}"
    return ModelCase(model, _graph_inputs(model, graph), source=source, loss=_classification_loss(graph))


def load_factory(
    factory: str, data: str, root: Path = DATA_FOLDER, transform: str | None = None
) -> tuple[Callable[[], nn.Module], Data, tuple[Any, ...]]:
    """A function that returns a new model, the graph to train it on, and the inputs of its forward pass."""
    chosen = _parse_transform(transform, data)
    made = load_target(factory)
    if isinstance(made, nn.Module):
        raise ModelError(f"{factory} is a module: give its class, or a function that returns one with fresh weights")
    graph = prepared_graph(data, root, chosen)
    sizes = _graph_sizes(graph)
    with torch.random.fork_rng():
        inputs = _graph_inputs(_make_model(factory, made, sizes), graph)
    return lambda: _make_model(factory, made, sizes), graph, inputs


def load_target(target: str) -> Any:
    """The object at PACKAGE.MODULE:NAME, where NAME may be dotted. The current directory is importable.

    Example:
        >>> load_target("math:pi")
        3.141592653589793
    """
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        hint = "; of a script, the function or class that makes its model" if module_name.endswith(".py") else ""
        raise InputError(f"expected PACKAGE.MODULE:NAME, such as models:make_model{hint}, got {target!r}")
    if module_name.endswith(".py"):
        dotted = ".".join(part for part in Path(module_name).with_suffix("").parts if part not in (".", "/"))
        raise InputError(f"{target!r} names a file: give its module, {dotted}:{path}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, SystemExit):  # as of argparse, which has read the arguments of gatdiag
            hint = '; what a script does beside its definitions belongs under if __name__ == "__main__":'
        raise InputError(f"cannot import {module_name!r} of {target!r}: {_describe_error(error)}{hint}") from error
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise InputError(f"{target!r} does not exist: {error}") from error


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _parse_transform(text: str | None, data: str | None) -> Transform | None:
    if text is None:
        return None
    if data is None:
        raise InputError("--transform applies to a graph: give --data, too")
    chosen = next((known for known in TRANSFORMS if known == text.lower()), None)
    if chosen is None:
        raise InputError(f"--transform: expected {' or '.join(TRANSFORMS)}, got {text!r}")
    return chosen


def _graph_sizes(graph: Data) -> dict[str, int]:
    return {"in_channels": graph.num_features, "out_channels": int(graph.y.max()) + 1}


def _make_model(target: str, made: Any, sizes: Mapping[str, int]) -> nn.Module:
    """The module itself, without its `torch.compile` wrapper, or what the factory returns."""
    if isinstance(made, nn.Module):
        return unwrap(made)
    if not callable(made):
        raise ModelError(
            f"expected {target} to be an nn.Module or a function that returns one, got {type(made).__name__}"
        )
    arguments = _size_arguments(target, made, sizes)
    try:
        model = made(**arguments)
    except (Exception, SystemExit) as error:
        raise ModelError(f"{target} raised {_describe_error(error)}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected {target} to return an nn.Module, got {type(model).__name__}")
    return unwrap(model)


def _size_arguments(target: str, made: Callable[..., Any], sizes: Mapping[str, int]) -> dict[str, int]:
    parameters = inspect.signature(made).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [name for name in required if name not in sizes]
    if not missing:
        return {p.name: sizes[p.name] for p in parameters if p.name in sizes}
    known = f"only {', '.join(sizes)} are known" if sizes else "in_channels and out_channels are known only with --data"
    raise ModelError(f"{target} needs {', '.join(missing)}, but {known}: give a factory with defaults for the rest")


def _graph_inputs(model: nn.Module, graph: Data) -> tuple[Any, ...]:
    first = next(iter(inspect.signature(model.forward).parameters), None)
    return (graph,) if first == "data" else (graph.x, graph.edge_index)


def _classification_loss(graph: Data) -> Callable[[Any], Tensor]:
    def loss(output: Any) -> Tensor:
        logits = output[0] if isinstance(output, tuple) else output
        chosen, labels = graph.train_mask.to(logits.device), graph.y.to(logits.device)
        return F.cross_entropy(logits[chosen], labels[chosen])

    return loss


def _make_inputs(target: str) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    function = load_target(target)
    if not callable(function):
        raise InputError(f"expected {target} to be a function that returns the inputs, got {type(function).__name__}")
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise InputError(f"{target} raised {_describe_error(error)}") from error
    match returned:
        case (tuple() as args, dict() as kwargs):
            return args, kwargs
        case dict() as kwargs:
            return (), kwargs
        case tuple() | list():
            return tuple(returned), {}
    forms = "a tuple or list of positional arguments, a dict of keyword arguments, or a pair of a tuple and a dict"
    raise InputError(f"expected {target} to return {forms}, got {type(returned).__name__}")
