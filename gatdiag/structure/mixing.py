"""Whether the output of one example depends on the inputs of others, by a backward pass in evaluation mode."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from gatdiag.structure.copying import map_tensors
from gatdiag.structure.tensors import all_tensors, first_tensor, walk

_MAX_EXAMPLES: Final = 100_000
_MAX_NODES: Final = 8  # that are looked at until one depends on another
_CLEARLY: Final = 1e-3  # share of a neighbor: more of them need not be looked at
_BY_ORDER: Final[Mapping[str, Any]] = {"of": "one row", "others": "rows", "sequence_first": [], "is_by_order": True}


class Examples(NamedTuple):
    """What the rows of the inputs are examples of.

    Attributes:
        of_rows: The number of the example of each row.
        what: "graphs" or "rows".
    """

    of_rows: Tensor
    what: str


def find_mixing(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """How much of the gradient of one example's output is at the inputs of others.

    Examples are the graphs of a batch, by the vector that says which graph each node is of, the nodes of a single
    graph, or the rows of dense inputs if the model has no edges. Inputs whose first axis may be time are left out.
    Where it is zero, rows may still depend on their place, as where an encoding of positions is added along the batch:
    then "share" is how far outputs change if the order of the rows does. Of tokens that is all that is looked at.

    Args:
        model: In evaluation mode.
        args: Positional inputs; they are copied.
        kwargs: Keyword inputs.

    Returns:
        "share", "of" (what the output is of), "others", "sequence_first" (modules that take their batch along the
        second axis), and "is_by_order" if it is how far outputs change with the order; of nodes, whose neighbors they
        should depend on, "share", "others" and "nodes", how many were looked at. None if rows are not known to be
        examples.

    Example:
        >>> x = torch.randn(6, 4)
        >>> find_mixing(nn.Linear(4, 2), (x,), {})["share"]
        0.0
        >>> find_mixing(nn.Sequential(nn.Linear(4, 2), nn.Softmax(dim=0)), (x,), {})["share"] > 0.1
        True
    """
    args, kwargs = map_tensors(
        (args, dict(kwargs)), lambda x: x.detach().clone().requires_grad_(x.is_floating_point() and x.dim() > 1)
    )
    given = {**dict(zip(inspect.signature(model.forward).parameters, args, strict=False)), **kwargs}
    named = [(name, x) for name, x in walk(given) if isinstance(x, Tensor)]
    inputs = [x for _, x in named if x.requires_grad and x.layout is torch.strided and x.numel()]
    if not inputs:
        return _order_of_tokens(model, args, kwargs, [x for _, x in named])
    examples = _examples(model, named, inputs)
    if examples is None:
        return _share_of_neighbors(model, args, kwargs, inputs, _joined_nodes([x for _, x in named], len(inputs[0])))
    o = first_tensor(model(*args, **kwargs))
    if o is None or not o.requires_grad or not (0 < o.dim() <= 2 or _are_graphs(model, inputs, o)):
        return None
    row, example = _choose_row(o, examples)
    if row is None or (examples.what == "rows" and not _is_batch_first(inputs, o)):
        return None
    share = _share_of_others(o[row], inputs, examples.of_rows == example)
    if share is None:
        return None
    if not share and examples.what == "rows" and (change := _change_with_order(model, args, kwargs, len(o))):
        return {**_BY_ORDER, "share": change}
    of = "one graph" if examples.what == "graphs" else "one row"
    return {"share": share, "of": of, "others": examples.what, "sequence_first": [*_sequence_first(model, inputs)]}


def _examples(model: nn.Module, named: list[tuple[str, Tensor]], inputs: list[Tensor]) -> Examples | None:
    rows = len(inputs[0])
    if not 1 < rows <= _MAX_EXAMPLES:
        return None
    vectors = [x for name, x in named if _is_batch_vector(name, x, rows)]
    if vectors:
        return Examples(vectors[0], "graphs")
    given = (*(x for _, x in named), *all_tensors(model))
    are_examples = all(len(x) == rows for x in inputs) and not _may_join_rows(model, inputs)
    if not are_examples or any(_may_be_edges(x, rows) for x in given):
        return None
    return Examples(torch.arange(rows, device=inputs[0].device), "rows")


def _is_batch_vector(name: str, x: Tensor, rows: int) -> bool:
    """A vector called batch, which ascends from zero."""
    if "batch" not in name or x.dtype != torch.int64 or x.shape != (rows,):
        return False
    return not int(x[0]) and int(x[-1]) > 0 and bool((x.diff() >= 0).all())


def _may_join_rows(model: nn.Module, inputs: list[Tensor]) -> bool:
    """Whether rows may be nodes whose edges are made in the forward pass, or steps of one sequence without a batch."""
    modules = [*model.modules()]
    if any(hasattr(type(module), "propagate") for module in modules):
        return True
    return inputs[0].dim() == 2 and any("batch_first" in vars(module) for module in modules)


def _may_be_edges(x: Tensor, rows: int) -> bool:
    """Edges, an adjacency matrix, or anything sparse."""
    is_index = x.dtype == torch.int64 and x.dim() == 2 and 2 in x.shape
    return is_index or x.layout is not torch.strided or (x.dim() == 2 and x.shape == (rows, rows))


def _joined_nodes(given: list[Tensor], rows: int) -> list[int]:
    """Some nodes at which edges from others end and begin, if a single edge_index is given."""
    edges = [x for x in given if x.dtype == torch.int64 and x.dim() == 2 and len(x) == 2 and x.numel()]
    if len(edges) != 1 or not 0 <= int(edges[0].min()) <= int(edges[0].max()) < rows:
        return []
    source, to = edges[0][:, edges[0][0] != edges[0][1]]
    return [*map(int, to[torch.isin(to, source)].unique()[:_MAX_NODES])]


def _share_of_neighbors(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: list[Tensor], nodes: list[int]
) -> dict[str, Any] | None:
    """The largest share of the gradient of a node's output that is at the inputs of other nodes."""
    o = first_tensor(model(*args, **kwargs)) if nodes else None
    if o is None or not o.requires_grad or o.dim() > 2 or len(o) != len(inputs[0]):
        return None
    rows, found = torch.arange(len(o), device=o.device), []
    for node in nodes:
        share = _share_of_others(o[node], inputs, rows == node)
        found += [] if share is None else [share]
        if max(found, default=0.0) > _CLEARLY:
            break
    return {"share": max(found), "others": "nodes", "nodes": len(found)} if found else None


def _choose_row(o: Tensor, examples: Examples) -> tuple[int | None, int]:
    """A row in the middle of the output, and the example that it is of."""
    count = int(examples.of_rows[-1]) + 1
    if len(o) == count:
        return count // 2, count // 2
    if len(o) == len(examples.of_rows):
        row = len(o) // 2
        return row, int(examples.of_rows[row])
    return None, 0


def _is_time_first(model: nn.Module) -> bool:
    """Whether some module may take the first axis for time."""
    modules = [*model.modules()]
    return any(isinstance(one, nn.RNNCellBase) or vars(one).get("batch_first") is False for one in modules)


def _are_graphs(model: nn.Module, inputs: list[Tensor], o: Tensor) -> bool:
    """Whether an output has rows for the nodes of several graphs of one size, by an adjacency matrix for each."""
    if o.dim() != 3 or _is_time_first(model):
        return False
    graphs, nodes = o.shape[:2]
    is_of_nodes = graphs != nodes and inputs[0].shape[:2] == (graphs, nodes)
    return is_of_nodes and any(x.shape[:3] == (graphs, nodes, nodes) for x in inputs)


def _is_batch_first(inputs: list[Tensor], o: Tensor) -> bool:
    """Whether the first axis of the inputs is certainly that of the examples, and not one of time before it."""
    return o.dim() == 3 or all(x.dim() == 2 or (len(x) == len(o) and len(o) != x.shape[1]) for x in inputs)


def _share_of_others(output: Tensor, inputs: list[Tensor], is_own: Tensor) -> float | None:
    weights = torch.linspace(1, 2, output.numel(), dtype=output.dtype, device=output.device)
    gradients = torch.autograd.grad((output.flatten() * weights).sum(), inputs, allow_unused=True, retain_graph=True)
    total = others = 0.0
    for gradient in gradients:
        if gradient is not None and len(gradient) == len(is_own):
            sizes = gradient.detach().double().flatten(1).square().sum(1)
            total, others = total + float(sizes.sum()), others + float(sizes[~is_own].sum())
    return (others / total) ** 0.5 if 0 < total < float("inf") else None


@torch.no_grad()
def _order_of_tokens(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: list[Tensor]
) -> dict[str, Any] | None:
    """For a model that is given tokens (examples, time) alone, and whose output has a row for each example."""
    if not given or any(x.dim() != 2 or len(x) in (1, x.shape[1]) or _may_be_edges(x, len(x)) for x in given):
        return None
    o = first_tensor(model(*args, **kwargs))
    is_of_examples = o is not None and 0 < o.dim() <= 2 and {len(x) for x in given} == {len(o)}
    change = _change_with_order(model, args, kwargs, len(o)) if o is not None and is_of_examples else None
    return None if change is None else {**_BY_ORDER, "share": change}


@torch.no_grad()
def _change_with_order(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int) -> float | None:
    """How far outputs change, over their norm, if the examples come in the opposite order; 0 if they are random.

    None if rows have weights of their own, or may be times.
    """
    if any(x.dim() > 1 and len(x) == rows for x in model.parameters()) or _is_time_first(model):
        return None

    def call(order: Callable[[Tensor], Tensor]) -> Tensor | None:
        given, named = map_tensors((args, dict(kwargs)), lambda x: order(x) if x.dim() and len(x) == rows else x)
        return first_tensor(model(*given, **named))

    o, again, turned, change = call(lambda x: x), call(lambda x: x), call(lambda x: x.flip(0)), 0.0
    if o is not None and again is not None and turned is not None and torch.equal(again, o):
        change = float((turned.flip(0) - o).norm() / o.norm().clamp(min=1e-30))
    return change


def _sequence_first(model: nn.Module, inputs: list[Tensor]) -> Iterator[str]:
    """Modules that take their batch along the second axis, if an input has three."""
    if any(x.dim() == 3 for x in inputs):
        for name, module in model.named_modules():
            if vars(module).get("batch_first") is False:
                yield f"{name or 'the model'} ({type(module).__name__})"
