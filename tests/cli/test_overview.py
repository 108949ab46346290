from fractions import Fraction

import torch

from gatdiag.cli.laws import rows
from gatdiag.laws import Exclusion, Law, Laws, Term

FIRST = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
SECOND = torch.tensor([[0.0, 2.0]])


def law(neuron, residual, exact=True, layer="lin1"):
    terms = (
        Term("lin1.weight", (2, 2), (0,), ((neuron,),), Fraction(1)),
        Term("lin2.weight", (1, 2), (1,), ((neuron,),), Fraction(-1)),
    )
    return Law(f"{layer} {neuron}", "neuron", layer, neuron, terms, exact=exact, residual=residual)


def overview(laws, *excluded):
    layers = {name: [f"{name}.weight"] for name in ("lin1", "lin2", "lin3")}
    return {row.layer: row for row in rows(Laws(laws, {"lin1.weight": FIRST, "lin2.weight": SECOND}, excluded), layers)}


def test_a_row_has_the_extremes_of_its_laws():
    row = overview([law(0, 1e-15), law(1, 1e-3, exact=False)])["lin1"]
    assert (row.laws, row.approximate, row.residual) == (2, 1, 1e-3)
    assert row.normalized_c == 1.0  # neuron 0: (25 - 0) / (25 + 0); neuron 1: (1 - 4) / (1 + 4)
    assert overview([law(1, 0.0)])["lin1"].normalized_c == 0.6


def test_a_layer_without_laws_says_where_its_weights_are():
    table = overview([law(0, 0.0)])
    assert (table["lin2"].laws, table["lin2"].normalized_c, table["lin2"].residual) == (0, None, None)
    assert table["lin2"].elsewhere == ("lin1",)
    assert table["lin1"].elsewhere == ()
    assert table["lin3"].elsewhere == ()


def test_laws_of_no_layer_have_a_row_at_the_end():
    assert [*overview([law(0, 0.0, layer="stream")])] == ["lin1", "lin2", "lin3", "stream"]


def test_an_exclusion_belongs_to_the_layers_it_names_as_words():
    by_path, by_parameter = Exclusion("operation aten.elu in lin2", "no rule"), Exclusion("lin2.bias", "unreached")
    other, law_of = Exclusion("lin22.weight", "unreached"), Exclusion("layer 1 (lin1), neuron 3", "failed")
    table = overview([], by_path, by_parameter, other, law_of)
    assert table["lin2"].missing == (by_path, by_parameter)
    assert table["lin1"].missing == (law_of,)
    assert table["lin3"].missing == ()
