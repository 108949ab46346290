import json
import math
from dataclasses import asdict

import pytest
import torch
from matplotlib.font_manager import FontProperties, findfont, get_font

from gatdiag import metrics
from gatdiag.quantities import (
    GROUPS,
    QUANTITIES,
    STORED,
    columns,
    gradient_name,
    metric_functions,
    quantity,
)


def test_a_column_of_a_table_is_there_once():
    names = [(each.table, each.name) for each in (*QUANTITIES, *STORED)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("table", ["layers", "parameters"])
def test_what_a_recorder_calls_returns_its_columns(table):
    edges = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    x = torch.tensor([[3.0, 0.0], [1.0, 2.0], [0.0, 0.5]])
    for metric in metric_functions(table):
        given = (
            (torch.full((6,), 0.5), edges[1])
            if metric.of == "attention"
            else (x, edges)[: 1 + (metric.needs == "edges")]
        )
        found = metric.by_column(getattr(metrics, metric.function)(*given))
        assert found.keys() == {each.name for each in metric.quantities}
        assert all(math.isfinite(value) for value in found.values())
        assert {each.group for each in metric.quantities} == {metric.group}


def test_results_go_to_columns_by_name():
    result = metrics.Ranks(numerical_rank=2.0, effective_rank=3.0)
    of_output, of_gradient = (each for each in metric_functions("layers") if each.function == "ranks")
    assert of_output.by_column(result) == {"effective_rank": 3.0, "numerical_rank": 2.0}
    assert of_gradient.by_column(result) == {"gradient_effective_rank": 3.0, "gradient_numerical_rank": 2.0}


def test_every_quantity_is_described():
    for each in (*QUANTITIES, *STORED):
        assert each.label
        assert each.meaning
        assert each.equation
        if each.table != "steps" and each not in STORED:
            assert each.group in GROUPS
            assert each.high
            assert each.low


def test_groups_are_the_columns_of_the_tables():
    for name in ("layers", "parameters", "neurons"):
        grouped = [column for group in GROUPS.values() if group.table == name for column in group.columns]
        assert sorted(grouped) == sorted(each.name for each in columns(name))


@pytest.mark.parametrize("each", [*QUANTITIES, *STORED], ids=lambda each: f"{each.table}.{each.name}")
def test_equations_are_text_in_a_common_font(each):
    glyphs = get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap()
    assert not {*"\\$"} & {*each.equation}
    assert {*map(ord, each.equation)} <= {*glyphs}


def test_it_is_plain_data():
    for each in QUANTITIES:
        assert json.loads(json.dumps(asdict(each))) == asdict(each)


def test_the_gradient_of_a_quantity_says_so():
    gradient = quantity("layers", gradient_name("mu"))
    assert gradient.label == "mu of the gradient"
    assert gradient.unit == "(dL/dX)"
    assert gradient.symbol == "μ(∇X)"
    assert gradient.equation == "μ(∇X) = ‖∇X − 1γᵀ‖_F, γ = ∇Xᵀ1 / N"
    assert gradient.meaning == "distance of dL/dX from its mean over the nodes"


def test_relative_changes_say_which_weights_count():
    names = [each for each in columns("parameters") if each.name.startswith(("relative_change_q", "changed_fraction"))]
    assert len(names) == 9
    for each in names:
        assert "1e-4" in each.label
        assert "10⁻⁴" in each.equation
        assert "1e-4" in each.meaning
