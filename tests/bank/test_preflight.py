"""Predictions before the first step."""

import pytest

from gatdiag.diagnosis.finding import UNDETERMINED, UNEXPLAINED
from tests.bank.preflight import preflight_recipe
from tests.bank.recipe import Recipe


@pytest.mark.parametrize("precision", ["half", "bfloat16"])
def test_networks_of_lower_precision_are_rehearsed(precision):
    diagnosis = preflight_recipe(Recipe(precision=precision, optimizer="SGD"))
    assert diagnosis.verdict.code not in (UNDETERMINED, UNEXPLAINED)
