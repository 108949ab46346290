"""What stands out in saved checkpoints: plain facts with their evidence, the worst first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from gatdiag.checkpoint.inspection import Inspection
from gatdiag.checkpoint.measures import Measured, measure
from gatdiag.checkpoint.overview import neuron_weights
from gatdiag.summary import FEATURES

Level: TypeAlias = Literal["note", "warning", "error"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)

_STILL: Final = 0.05  # share of weights that changed by 5 %: below it a layer has not trained (paper 1, figure 3a)
_ALIKE: Final = 1e-2  # relative mu of an output below which its rows are one row (paper 3)
_APART: Final = 1e3  # ratio of relative gradient norms between layers at which the smaller can hardly move


@dataclass(frozen=True)
class Finding:
    """Something that stands out.

    Attributes:
        code: Its name, which stays.
        level: "error": the weights are of no use; "warning": training does not reach something; "note": worth knowing.
        where: The layers or parameters it is about.
        text: What was measured, and what it means.
    """

    code: str
    level: Level
    where: tuple[str, ...]
    text: str


def findings(inspection: Inspection) -> tuple[Finding, ...]:
    """What stands out in the last checkpoint, and in how the series got there.

    Args:
        inspection: The checkpoints.

    Returns:
        Errors, then warnings, then notes. Thresholds: a layer is still if less than 5 % of its weights changed by more
        than 5 % (figure 3a of "Are GATs Out of Balance?"); the rows of an output are alike below a relative mu of 0.01
        ("Taming Gradient Oversmoothing and Expansion in GNNs"); gradients are far apart if relative gradient norms of
        layers differ by a factor of 1000.
    """
    found = [
        *_non_finite(inspection.measured),
        *_never_reached(inspection),
        *_dead(inspection),
        *_still(inspection),
        *_vanishing(inspection),
        *_alike(inspection),
    ]
    return tuple(sorted(found, key=lambda finding: -LEVELS.index(finding.level)))


def _non_finite(measured: Mapping[str, Measured]) -> Iterator[Finding]:
    broken = {name: found.non_finite for name, found in measured.items() if found.non_finite}
    if broken:
        text = f"{sum(broken.values())} weights are NaN or infinite: the model computes nothing from here on"
        yield Finding("non-finite-weights", "error", tuple(broken), text)


def _never_reached(inspection: Inspection) -> Iterator[Finding]:
    """Adam's second moment is a sum of squares: where it is zero, no gradient ever was."""
    moments = {} if inspection.optimizer is None else inspection.optimizer.moments
    second = {name: of.get("exp_avg_sq") for name, of in moments.items() if name in inspection.tensors}
    never = tuple(name for name, moment in second.items() if moment is not None and measure(moment).norm == 0)
    if never:
        text = f"no gradient ever reached {len(never)} of {len(second)} parameters: Adam's second moment is zero"
        yield Finding("no-gradient", "warning", never, text)


def _dead(inspection: Inspection) -> Iterator[Finding]:
    measured = inspection.measured
    for layer in inspection.structure.layers:
        weights = [measured[info.name] for info in layer.parameters if info.role == FEATURES and info.name in measured]
        matrices = [found for found in neuron_weights(layer, measured) if found.norm > 0]
        rows = sum(found.dead_rows for found in matrices)
        columns = sum(found.dead_columns for found in matrices)
        zero = sum(found.norm == 0 for found in weights)
        what = [f"{rows} neurons that nothing leads into"] * (rows > 0)
        what += [f"{columns} inputs that are not read"] * (columns > 0)
        what += ["a weight matrix that is zero"] * (zero > 0)
        if what:
            yield Finding("dead-weights", "note" if not rows else "warning", (layer.name,), f"has {', '.join(what)}")


def _still(inspection: Inspection) -> Iterator[Finding]:
    run = inspection.run
    table = run.parameters[run.parameters["role"] == FEATURES]
    if "changed_fraction_005" not in table or len(run.steps) < 2:
        return
    last = table[table["step"] == run.steps["step"].max()].set_index("layer")
    largest = last.groupby(level=0, observed=True)[["changed_fraction_005"]].max()["changed_fraction_005"].dropna()
    still = tuple(str(name) for name in largest[largest < _STILL].index)
    if still:
        text = (
            f"less than {_STILL:.0%} of the weights changed by more than 5 % in {len(still)} of {len(largest)} layers, "
            f"from the first checkpoint to the last"
        )
        yield Finding("still-layers", "warning", still, text)


def _vanishing(inspection: Inspection) -> Iterator[Finding]:
    table = inspection.run.parameters
    last = inspection.run.steps["step"].max()
    table = table[(table["step"] == last) & (table["role"] == FEATURES)]
    by_layer = table.groupby("layer", observed=True)["relative_gradient_norm"].max().dropna()
    if len(by_layer) < 2 or not by_layer.max() > 0:
        return
    weak = by_layer[by_layer * _APART < by_layer.max()]
    if len(weak):
        text = (
            f"relative gradient norms are down to {by_layer.min():.1e}, and {by_layer.max():.1e} in {by_layer.idxmax()}"
        )
        yield Finding("vanishing-gradients", "warning", tuple(map(str, weak.index)), text)


def _alike(inspection: Inspection) -> Iterator[Finding]:
    table = inspection.run.layers
    if not len(table):
        return
    last = table[table["step"] == inspection.run.steps["step"].max()].set_index("layer")["relative_mu"].dropna()
    alike = last[last < _ALIKE]
    if len(alike):
        text = f"the outputs of all nodes are nearly the same: relative mu is down to {alike.min():.1e}"
        yield Finding("oversmoothing", "warning", tuple(map(str, alike.index)), text)
