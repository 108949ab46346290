"""Laws are claimed only where every call of the forward pass computes the same function."""

import random

import pytest
import torch

from gatdiag.laws import find_laws
from gatdiag.laws.repeatability import why_not_repeatable
from gatdiag.structure import replicate
from tests.laws.models import calls
from tests.laws.models.graph import edges, features
from tests.laws.zoo import build


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    calls.TIMES, calls.LAST[0] = 0, None


@pytest.mark.parametrize("name", calls.CHANGING)
def test_no_law_is_claimed_of_calls_that_differ(name: str) -> None:
    model, args, _ = calls.CHANGING[name]()
    laws = find_laws(model, *args)

    assert len(laws) == 0
    (exclusion,) = laws.excluded
    assert exclusion.what == "the forward pass"
    assert "another branch at each call" in exclusion.reason


@pytest.mark.parametrize("name", ["counter", "counter in a list", "hidden state", "own numpy generator"])
def test_the_mode_counts(name: str) -> None:
    """What happens in training only is no obstacle to laws of the evaluation mode."""
    model, args, _ = calls.CHANGING[name]()
    between = model.between
    model.between = lambda self, hidden, graph: between(self, hidden, graph) if self.training else self.step(hidden)

    assert len(find_laws(model, *args)) == 0
    assert len(find_laws(model.eval(), *args)) == 10


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("torch", "reads a number drawn at random"),
        ("counter", "it changes Calls.calls"),
        ("counter in a buffer", "reads a number that the previous call left"),
        ("numpy binomial", "draws random numbers from Python or NumPy"),
        ("python", "draws random numbers from Python or NumPy"),
        ("alternating", "two calls ran different operations"),
    ],
)
def test_the_cause_is_named(name: str, cause: str) -> None:
    model, args, _ = calls.CHANGING[name]()

    obstacle = why_not_repeatable(replicate(model, args))

    assert obstacle is not None
    assert cause in obstacle


@pytest.mark.parametrize("name", calls.ZOO)
def test_what_draws_masks_and_data_or_remembers_is_the_same_function_at_each_call(name: str) -> None:
    model, args, _ = build(f"calls: {name}")

    assert why_not_repeatable(replicate(model, args)) is None


def test_a_forward_pass_that_can_be_called_once_only_has_no_certain_law() -> None:
    class Once(calls.Calls):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            if self.calls:
                raise RuntimeError("used up")
            self.calls = 1
            return super().forward(x, edge_index)

    laws = find_laws(Once(lambda self, hidden, _: self.step(hidden)), features(), edges())

    assert len(laws) == 0
    assert "fails when it is called again" in laws.excluded[0].reason
