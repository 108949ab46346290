"""The laws' values by loops over every entry of every parameter: slow, and plain to see."""

import itertools
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from gatdiag.laws import Law

Named = Mapping[str, Tensor]


def exponents(law: Law) -> dict[str, Tensor]:
    """Parameter name -> the power of s that each of its entries is multiplied by."""
    found: dict[str, Tensor] = {}
    for term in law.terms:
        table = found.setdefault(term.parameter, torch.zeros(term.shape, dtype=torch.float64))
        for index in itertools.product(*map(range, term.shape)):
            if tuple(index[axis] for axis in term.axes) in term.indices:
                table[index] += float(term.exponent)
    return found


def law_sum(law: Law, *factors: Named, absolute: bool = False) -> float:
    """Sum of e_k times the product of the factors' entries, or of its absolute values."""
    total = 0.0
    for name, table in exponents(law).items():
        tensors = [factor[name].detach().double() for factor in factors if name in factor]
        if len(tensors) < len(factors):
            continue
        for index in itertools.product(*map(range, table.shape)):
            value = float(table[index])
            for tensor in tensors:
                value *= float(tensor[index])
            total += abs(value) if absolute else value
    return total


def each(laws: Iterable[Law], *factors: Named, absolute: bool = False) -> Tensor:
    """`law_sum` for every law."""
    return torch.tensor([law_sum(law, *factors, absolute=absolute) for law in laws], dtype=torch.float64)


def rescale(model: nn.Module, law: Law, scale: float) -> None:
    """Multiply the weights a law names by scale to the power of their exponents."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, table in exponents(law).items():
            parameters[name].mul_((scale**table).to(parameters[name].dtype))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}
