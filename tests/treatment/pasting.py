"""The code that a finding prints, pasted into a training where its comments say that it belongs."""

import ast
from dataclasses import dataclass, field
from typing import Any

import torch

import gatdiag

_IN_EACH_STEP = ("in every step", "after scheduler.step()")


@dataclass(frozen=True)
class Pasted:
    """A namespace in which code is pasted, and the three places of a training script that it goes to.

    Attributes:
        code: What a finding prints.
        names: The names that the script has: model, optimizer, data, the inputs of the model.
    """

    code: str
    names: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names.update(torch=torch, gatdiag=gatdiag)

    def after_making_the_model(self) -> None:
        """Run what changes the model or its inputs."""
        self._run("model")

    def after_making_the_optimizer(self) -> None:
        """Run what creates or changes the optimizer."""
        self._run("optimizer")

    def in_each_step(self) -> None:
        """Run what belongs in the loop; at the start of a step, which is after `scheduler.step()` of the one before."""
        self._run("step")

    def _run(self, place: str) -> None:
        lines = self.code.splitlines()
        for statement in ast.parse(self.code).body:
            text = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            if _place(text, statement) == place:
                exec(text, self.names)


def _place(text: str, statement: ast.stmt) -> str:
    if any(mark in text for mark in _IN_EACH_STEP):
        return "step"
    used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return "optimizer" if "optimizer" in used else "model"
