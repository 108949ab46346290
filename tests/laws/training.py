"""Trainings whose forward passes are traced by hooks, as the recorder does it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from gatdiag.laws import Laws
from gatdiag.laws.live import ForwardTrace
from gatdiag.structure.discovery import discover_in_order
from tests.laws.referee import leaves


@contextmanager
def traced(model: nn.Module) -> Iterator[ForwardTrace]:
    """Trace the calls of a model's modules."""
    trace, modules = ForwardTrace(model), set(model.modules())

    def enter(module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling() and module in modules:  # first, so that Dynamo leaves all of it out
            trace.enter(module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and module in modules:
            trace.leave(module, output)

    with register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True):
        yield trace


def laws_of(model: nn.Module, trace: ForwardTrace) -> Laws:
    return trace.find_laws(discover_in_order(model, trace.order))


def backward(output: Any, seed: int = 0) -> None:
    """The backward pass of a random linear loss of all outputs."""
    generator = torch.Generator().manual_seed(seed)
    ends = [leaf for leaf in leaves(output) if leaf.requires_grad]
    torch.autograd.backward(ends, [torch.randn(end.shape, generator=generator).to(end) for end in ends])


def vectors(laws: Laws, names: list[str]) -> Tensor:
    """The exponents of all entries of the named parameters, one law a row."""
    rows = []
    for law in laws:
        tables = {name: torch.zeros(laws.parameters[name].shape, dtype=torch.float64) for name in names}
        for term in law.terms:
            if term.parameter in tables:
                table = tables[term.parameter].movedim(term.axes, tuple(range(len(term.axes))))
                for index in term.indices:
                    table[index] += float(term.exponent)
        rows.append(torch.cat([table.flatten() for table in tables.values()]))
    return torch.stack(rows) if rows else torch.zeros(0, 1, dtype=torch.float64)


def rank(*matrices: Tensor) -> int:
    """The rank of rows together."""
    rows = torch.cat([matrix for matrix in matrices if len(matrix)] or [torch.zeros(1, 1)])
    return int(torch.linalg.matrix_rank(rows.double()))


def worst_delta(laws: Laws) -> float:
    """The largest |delta| of an exact law relative to its terms, unless these are rounding compared with others."""
    if not len(laws):
        return 0.0
    delta, relative = laws.delta().abs(), laws.normalized_delta()
    size = torch.where(relative > 0, delta / relative, 0.0)
    judged = torch.tensor([law.exact for law in laws]) & (size > 1e-6 * size.max())
    return float(relative[judged].max()) if bool(judged.any()) else 0.0
