"""Calls of modules and torch functions, recorded in training, that can be replayed on a copy of the model.

A LightningModule's `training_step`, `model.encode(...)` and then `model.decode(...)`, or a function that calls the
layers one after the other, are calls of modules with torch functions between them. Replaying these runs no other code
of the user's: nothing is logged twice, and no trainer, logger or optimizer is needed.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gatdiag.errors import ModelError
from gatdiag.structure.copying import deepcopy_with
from gatdiag.structure.tensors import all_tensors

Key: TypeAlias = int | str  # number of a value, or name of a parameter of the model
_VALUES = "values"  # key in the memo of a deep copy, under which the values of slots are


@dataclass(frozen=True)
class Slot:
    """A placeholder for a value that a replay computes, or for a parameter of the model that it runs on."""

    key: Key

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        """The slot itself, or its value if the memo holds one."""
        return memo.get(_VALUES, {}).get(self.key, self)


@dataclass(frozen=True)
class Step:
    """A call."""

    function: Any  # a torch function, or the path of a module of the model; None for any other module
    inputs: tuple[Any, Any, Any] = field(repr=False)  # that other module, args, kwargs, with slots for computed tensors
    results: tuple[int, ...]  # numbers of the tensors it returns, then of the inputs that it changes in place
    changed: tuple[int, ...]  # positions of those among its input tensors
    records_gradients: bool
    needs: frozenset[Key]  # the values and parameters among its inputs
    unseen: frozenset[Key]  # those that its inputs depend on by calls that were not recorded; outputs of the program
    trains: bool  # whether it uses trainable parameters of the model


@dataclass(frozen=True)
class Program:
    """The calls that lead from a model's parameters to the outputs that training uses.

    Given to `replicate` (and so to `discover` and `find_laws`) as the only input of a model, it is replayed in place of
    the model's forward pass.
    """

    steps: tuple[Step, ...]
    outputs: tuple[Key, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Program":
        """Copies inputs, but not functions."""
        inputs = copy.deepcopy([step.inputs for step in self.steps], memo)
        steps = (replace(step, inputs=copied) for step, copied in zip(self.steps, inputs, strict=True))
        return replace(self, steps=tuple(steps))

    def run(self, model: nn.Module) -> list[Tensor]:
        """Replay the calls on a copy of the model, and return the outputs."""
        modules = dict(model.named_modules())
        values: dict[Key, Any] = dict(model.named_parameters(remove_duplicate=False))
        for step in self.steps:
            callee, args, kwargs = replace_tensors(step.inputs, lambda tensor: tensor, {_VALUES: values})
            function = modules[step.function] if isinstance(step.function, str) else step.function or callee
            input_tensors = list(tensors_in((args, kwargs))) if step.changed else []
            with torch.set_grad_enabled(step.records_gradients and torch.is_grad_enabled()):
                results = list(tensors_in(function(*args, **kwargs)))
            results += [input_tensors[position] for position in step.changed]
            if len(results) != len(step.results):
                name = step.function if isinstance(step.function, str) else getattr(function, "__name__", "a module")
                raise ModelError(
                    f"{name} returned {len(step.results)} tensors in training, but {len(results)} when it was replayed"
                )
            values.update(zip(step.results, results, strict=True))
        return [values[key].clone() if isinstance(key, str) else values[key] for key in self.outputs]


def build_program(ends: Iterable[Key], steps: Sequence[Step]) -> Program | None:
    """The steps that the values depend on, up to the last that uses trainable parameters; None if none does."""
    outputs = set(ends)
    wanted = set(outputs)
    kept: list[Step] = []
    for step in reversed(steps):
        if wanted.isdisjoint(step.results):
            continue
        wanted |= step.needs | step.unseen
        outputs |= step.unseen
        if kept or step.trains:
            kept.append(step)
        else:
            outputs |= step.needs  # steps after the last use of parameters are not replayed
    if not kept:
        return None
    produced = {result for step in kept for result in step.results}
    numbers = sorted(key for key in outputs if key in produced)
    names = sorted(key for key in outputs if isinstance(key, str))
    return Program(tuple(reversed(kept)), (*numbers, *names))


def replace_tensors(value: Any, function: Callable[[Tensor], Any], memo: Mapping[Any, Any]) -> Any:
    """A copy of inputs in which each tensor is `function(tensor)`, and each parameter is `memo[id(parameter)]`."""
    return deepcopy_with(value, dict(memo), function)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in the inputs or outputs of a call, in the same order at each call."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, slice) or (hasattr(value, "__dict__") and not isinstance(value, type | nn.Module)):
        yield from all_tensors(value)
