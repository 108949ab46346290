"""Figure 12: relative gradients under Adam."""

from gatdiag.experiments.reproduce.gats import FOUR, NAMES, ONE_TRAINING, PAPER, gradients
from gatdiag.experiments.reproduce.reproduction import Drawing, Published, Reproduction
from gatdiag.experiments.sweep import grid

_RATES = {5: 0.005, 10: 0.0001}
_PRINTED = {5: (71.6, 76.2, 77.3, 80.5), 10: (63.2, 68.8, 71.8, 78.0)}

REPRODUCTION = Reproduction(
    name="figure-12",
    title="Cora, Adam: relative gradient norms by layer",
    paper=f"{PAPER}, figure 12",
    claim="Under Adam, too, balanced networks have the higher accuracy (80.5 % against 71.6 % of five layers, 78.0 % "
    "against 63.2 % of ten), and the larger relative gradients.",
    full=tuple(
        cell
        for layers, rate in _RATES.items()
        for cell in grid(optimizer="Adam", layers=layers, learning_rate=rate, initialization=FOUR)
    ),
    quick=tuple(
        cell
        for layers, rate in _RATES.items()
        for cell in grid(optimizer="Adam", layers=layers, learning_rate=rate, initialization=FOUR, epochs=800)
    ),
    left_out="4200 of 5000 epochs.",
    published=tuple(
        Published({"layers": layers, "initialization": scheme}, value, source="figure 12, order of panels presumed")
        for layers, values in _PRINTED.items()
        for scheme, value in zip(FOUR, values, strict=True)
    ),
    columns=("test_accuracy", "least_relative_gradient", "largest_relative_gradient"),
    record=True,
    measured=gradients,
    drawings=(Drawing("gradient_norms"),),
    notes=(
        NAMES,
        ONE_TRAINING,
        "Ten layers: the rate of the figure, 0.0001; the paper's table of rates has 0.0005.",
    ),
)
