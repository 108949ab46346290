import json
from dataclasses import asdict

from matplotlib import mathtext

from gatdiag import metrics
from gatdiag.metrics.catalogue import QUANTITIES, of_gradient

BOTH = [*QUANTITIES, *(gradient for quantity in QUANTITIES if (gradient := of_gradient(quantity)))]


def test_every_quantity_has_its_function():
    for quantity in QUANTITIES:
        assert quantity.function in metrics.__all__
        assert callable(getattr(metrics, quantity.function))


def test_names_are_unique():
    names = [quantity.name for quantity in BOTH]
    assert len(set(names)) == len(names)


def test_the_columns_of_the_run_are_there():
    names = {quantity.name for quantity in BOTH}
    assert names >= {
        "output_norm",
        "mu",
        "relative_mu",
        "dirichlet_energy",
        "effective_rank",
        "output_gradient_norm",
        "gradient_mu",
        "relative_gradient_mu",
        "relative_gradient_norm",
        "unchanged_fraction",
        "changed_fraction",
        "update_ratio",
    }


def test_equations_can_be_drawn():
    parser = mathtext.MathTextParser("path")
    for quantity in BOTH:
        parser.parse(f"${quantity.equation}$")


def test_it_is_plain_data():
    for quantity in BOTH:
        assert json.loads(json.dumps(asdict(quantity))) == asdict(quantity)


def test_the_gradient_of_a_quantity_says_so():
    gradient = of_gradient(next(q for q in QUANTITIES if q.name == "mu"))
    assert gradient.label == "mu of the gradient"
    assert gradient.unit == "(dLoss/dX)"
    assert r"\nabla_{X}\mathcal{L}" in gradient.equation
    assert of_gradient(gradient) is None
