"""Facts about what the layers put out: whether nodes stay distinct, whether units live, whether numbers are numbers."""

import math
from collections.abc import Iterator

from gatdiag.report.fact import Fact
from gatdiag.report.latest import last_values
from gatdiag.report.wording import count, names, number, percent, short
from gatdiag.run import Run
from gatdiag.summary import layer_series

ALIKE = 1e-2  # of the first layer's mu: two orders of magnitude
DEAD = 0.5  # of a layer's units


def output_facts(run: Run) -> Iterator[Fact]:
    """Mu from the first to the last layer, and dead units. What was not recorded is not mentioned."""
    yield from _smoothing(run)
    yield from _dead(run)


def broken_facts(run: Run) -> Iterator[Fact]:
    """Whether all numbers are numbers, and where the first was that is none."""
    first = run.meta.get("first_non_finite")
    counts = list(_non_finite_counts(run))
    if first:
        parameter = f", parameter {short(str(first['parameter']))}" if first.get("parameter") else ""
        place = f"the {first['where']} of layer {short(str(first['layer']))}{parameter}"
        text = f"The first {first['kind']} appeared at step {count(int(first['step']))}, in {place}."
        yield Fact("Values that are no numbers", text, "Striking from the first one on.", notable=True)
    elif any(counts):
        text = f"{count(int(sum(counts)))} recorded entries of outputs, gradients and weights are NaN or infinite."
        yield Fact("Values that are no numbers", text, "Striking from the first one on.", notable=True)
    elif counts:
        yield Fact("All values are numbers", "No NaN and no infinity in outputs, gradients or weights.")


def _non_finite_counts(run: Run) -> Iterator[float]:
    """The sum of each column that counts them, of those that were recorded."""
    for frame in (run.layers, run.parameters):
        for name in ("non_finite", "gradient_non_finite"):
            if name in frame.columns and frame[name].notna().any():
                yield float(frame[name].sum())


def _smoothing(run: Run) -> Iterator[Fact]:
    last = last_values(layer_series(run, "mu"))
    if len(last) < 2:
        return
    layers, values = list(last), list(last.values())
    start, end = (f"{number(values[place])} at layer {short(layers[place])}" for place in (0, -1))
    ratio = values[-1] / values[0] if values[0] else math.nan
    text = f"The spread of the nodes' outputs, μ(X), goes from {start} to {end}: a factor of {number(ratio)}."
    relative = list(last_values(layer_series(run, "relative_mu")).values())
    if len(relative) > 1:
        text += f" Relative to the norm of the outputs: from {number(relative[0])} to {number(relative[-1])}."
    threshold = (
        f"Last step at which it is a number; striking where the last layer's is less than {percent(ALIKE)} of the "
        f"first's, or more than {1 / ALIKE:.0f} times it."
    )
    if ratio < ALIKE or not any(values):
        yield Fact("Nodes become alike", text, threshold, notable=True)
    elif ratio > 1 / ALIKE:
        yield Fact("Outputs grow from layer to layer", text, threshold, notable=True)
    else:
        yield Fact("Nodes stay distinct", text, threshold)


def _dead(run: Run) -> Iterator[Fact]:
    last = last_values(layer_series(run, "dead_fraction"))
    if not last:
        return
    dead = [layer for layer in last if last[layer] >= DEAD]
    worst = max(last, key=last.__getitem__)
    text = "In no layer is there a unit that puts out 0 at every node."
    if last[worst]:
        text = f"Units that put out 0 at every node: at most {percent(last[worst])}, in layer {short(worst)}."
    if dead:
        text = f"{len(dead)} of {len(last)} layers: {names(dead)}. {text}"
    heading = "Dead units" if dead else "Units are alive"
    yield Fact(heading, text, f"Last recorded step; striking from {percent(DEAD)} of a layer's units on.", bool(dead))
