"""Two slow answers to what a rule says about an operation.

Sound: scale the arguments by s to the exponents that the rule allows, and the result must scale as its label says.
Complete: the operation f allows the exponents e if sum_j e_j d log|f_i| / d log|x_j| is the same at every x for all i.
That is linear in e, so finite differences at a few random points count the allowed directions.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from gatdiag.laws.exponents import Exponents
from gatdiag.laws.label import Label
from gatdiag.laws.solver import solve
from gatdiag.laws.trace import Trace

SCALE = 1.7
STEP = 1e-5
Function = Callable[..., Any]


class ConstantIndices(Trace):
    """All indices are part of the operation."""

    def is_constant(self, tensor: Tensor) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Case:
    """An operation with arguments to label, entry by entry.

    Attributes:
        function: What is run; its tensors that are not arguments have no label.
        arguments: Floating tensors.
        missed: How many directions the rule is known to give up.
        counted: Whether derivatives can count the directions (not through comparisons or rounding).
        positive: Whether the arguments must stay positive.
        points: At how many points derivatives are taken, where more are needed because the operation has many pieces.
    """

    function: Function
    arguments: tuple[Tensor, ...]
    missed: int = 0
    counted: bool = True
    positive: bool = False
    points: int = 0


def signed(*shape: int) -> Tensor:
    """Random numbers of either sign, none near zero."""
    return positive(*shape) * (2 * torch.randint(2, shape) - 1)


def positive(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64) + 0.3


def case(function: Function, *arguments: Tensor, **options: Any) -> Case:
    return Case(function, arguments, **options)


def each(names: str, *arguments: Tensor, **options: Any) -> dict[str, Case]:
    """Cases of several operations with the same arguments."""
    return {name: case(getattr(torch.ops.aten, name), *arguments, **options) for name in names.split()}


def check(given: Case) -> None:
    """Sound and complete, both where torch takes composite operations apart and where it does not."""
    for inference in (False, True):
        arguments, results, exact, unknown = _trace_case(given, inference)
        for table in arguments + results:
            table[:] = [column for column, kept in zip(table, exact, strict=True) if kept]
        _check_scaling(given, arguments, results)
        found = torch.cat([_columns(table, tensor) for table, tensor in zip(arguments, given.arguments, strict=True)])
        if not inference:
            assert not unknown, f"there is no rule for {', '.join(unknown)}"
        if given.counted and not unknown:
            allowed, there = _rank(found), dimension(given)
            assert allowed == there - given.missed, (
                f"the rule allows {allowed} of the {there} directions of the operation, expected {there} less "
                f"{given.missed} missed"
            )


def directions(given: Case) -> tuple[int, int]:
    """How many directions the rule allows: exact ones, and all with those that an epsilon makes approximate."""
    arguments, _, exact, _ = _trace_case(given, inference=False)
    every = torch.cat([_columns(table, tensor) for table, tensor in zip(arguments, given.arguments, strict=True)])
    return _rank(every[:, torch.tensor(exact, dtype=torch.bool)]), _rank(every)


def run(given: Case, arguments: tuple[Tensor, ...]) -> list[Tensor]:
    """The results on copies of the arguments, with the same random numbers each time."""
    torch.random.default_generator.manual_seed(11)
    return _tensors(given.function(*(tensor.clone() for tensor in arguments)))


def _tensors(value: Any) -> list[Tensor]:
    values = list(value) if isinstance(value, tuple | list) else [value]
    return [item.to_dense() if item.layout != torch.strided else item for item in values if isinstance(item, Tensor)]


Table = list[Tensor]


def _trace_case(given: Case, inference: bool) -> tuple[list[Table], list[Table], tuple[bool, ...], list[str]]:
    """A table of directions for every argument and result; which are exact; operations without a rule."""
    exponents = Exponents()
    trace = ConstantIndices(exponents, lambda: "here")
    torch.random.default_generator.manual_seed(11)
    labels: list[Label] = []
    with torch.inference_mode(inference), torch.no_grad():
        arguments = [tensor.clone() for tensor in given.arguments]
        for number, tensor in enumerate(arguments):
            ids = exponents.new_unknowns(tensor.shape, str(number), is_entry=True)
            labels.append(Label(((Fraction(1), ids),)))
            trace.set_label(tensor, labels[-1])
        with trace:
            out = given.function(*arguments)
        values = list(out) if isinstance(out, tuple | list) else [out]
        results = [item for item in values if isinstance(item, Tensor)]
        for result in results:
            ids = exponents.new_unknowns(result.shape)
            if result.numel():
                exponents.require_zero(trace.label_of(result) - Label(((Fraction(1), ids),)))
            labels.append(Label(((Fraction(1), ids),)))
    resolved = [exponents.resolve(label) for label in labels]
    basis = solve(exponents, [ids for label in resolved for _, ids in label.terms])
    count, shapes = len(basis.free), [tensor.shape for tensor in [*arguments, *results]]
    tables = [
        [_label_values(label, basis.values, vector).expand(shape) for vector in range(count)]
        for label, shape in zip(resolved, shapes, strict=True)
    ]
    unknown = [name for name, _ in trace.unknown]
    return tables[: len(arguments)], tables[len(arguments) :], basis.exact, unknown


def _label_values(label: Label, values: dict[int, dict[int, Fraction]], vector: int) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for coefficient, ids in label.terms:
        numbers = [float(values.get(unknown, {}).get(vector, 0)) for unknown in ids.flatten().tolist()]
        total = total + float(coefficient) * torch.tensor(numbers, dtype=torch.float64).reshape(ids.shape)
    return total


def _check_scaling(given: Case, arguments: list[list[Tensor]], results: list[list[Tensor]]) -> None:
    before = run(given, given.arguments)
    for turn in range(3):
        weights = torch.randn(
            len(arguments[0]) if arguments else 0, generator=torch.Generator().manual_seed(turn)
        ).double()
        scaled = tuple(
            tensor * SCALE ** _combine(table, weights, tensor)
            for tensor, table in zip(given.arguments, arguments, strict=True)
        )
        after = run(given, scaled)
        for old, new, table in zip(before, after, results, strict=True):
            if old.is_floating_point() or old.is_complex():
                torch.testing.assert_close(new, old * SCALE ** _combine(table, weights, old), rtol=1e-9, atol=1e-12)
            else:
                assert torch.equal(new, old)


def _combine(table: list[Tensor], weights: Tensor, like: Tensor) -> Tensor:
    total = torch.zeros(like.shape, dtype=torch.float64)
    for weight, exponents in zip(weights, table, strict=True):
        total = total + weight * exponents
    return total


def _columns(table: list[Tensor], tensor: Tensor) -> Tensor:
    if not table:
        return torch.zeros(tensor.numel(), 0, dtype=torch.float64)
    return torch.stack([column.expand(tensor.shape).flatten() for column in table], dim=1)


def _rank(matrix: Tensor) -> int:
    return int(torch.linalg.matrix_rank(matrix)) if matrix.numel() else 0


@functools.cache
def dimension(given: Case) -> int:
    """How many directions there are."""
    generator = torch.Generator().manual_seed(5)
    entries = sum(tensor.numel() for tensor in given.arguments)
    outputs = max(1, len(_logarithms(run(given, given.arguments))))
    points = max(given.points, 3 + -(-entries // outputs))
    slopes = [_slopes(given, _redraw(given, generator)) for _ in range(points)]
    rows = []
    for row in range(len(slopes[0])):
        known = [table[row] for table in slopes if bool(table[row].isfinite().all())]
        rows += [other - known[0] for other in known[1:]]
    if not rows:
        return entries
    sizes = torch.linalg.svdvals(torch.stack(rows))
    return entries - int((sizes > 1e-5).sum())


def _redraw(given: Case, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Another point: sizes drawn anew, signs too unless they must be positive."""
    moved = []
    for tensor in given.arguments:
        factor = torch.exp(torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
        sign = 1 if given.positive else 2 * torch.randint(2, tensor.shape, generator=generator) - 1
        moved.append(tensor * factor * sign)
    return tuple(moved)


def _slopes(given: Case, arguments: tuple[Tensor, ...]) -> Tensor:
    """d log|result entry| / d log|argument entry|; not finite where the result is zero."""
    columns = []
    for number, tensor in enumerate(arguments):
        for entry in range(tensor.numel()):
            ends = []
            for step in (STEP, -STEP):
                changed = tensor.clone().flatten()
                changed[entry] *= 1 + step
                rest = list(arguments)
                rest[number] = changed.reshape(tensor.shape)
                ends.append(_logarithms(run(given, tuple(rest))))
            columns.append((ends[0] - ends[1]) / (2 * STEP))
    return torch.stack(columns, dim=1)


def _logarithms(results: list[Tensor]) -> Tensor:
    floating = [
        result.abs().double().flatten().log() for result in results if result.is_floating_point() or result.is_complex()
    ]
    return torch.cat(floating) if floating else torch.zeros(0, dtype=torch.float64)
