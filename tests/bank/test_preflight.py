"""Predictions before the first step."""

import pytest

from tests.bank.preflight import preflight_recipe
from tests.bank.recipe import Recipe


@pytest.mark.parametrize("precision", ["half", "bfloat16"])
def test_networks_of_lower_precision_are_rehearsed(precision):
    assert preflight_recipe(Recipe(precision=precision)).verdict.severity != "error"
