"""What the first screen shows of a verdict: whether strip, figure and text agree."""

import math
from collections.abc import Iterator
from statistics import median

from gatdiag.diagnosis import Diagnosis
from gatdiag.diagnosis.wording import describe_range, number
from gatdiag.figures import table
from gatdiag.figures.by_layer import BY_LAYER
from gatdiag.page.screen import screen
from gatdiag.page.sections import evidence_figure
from gatdiag.quantities import HEALTHY
from gatdiag.run import Run

# quantities that the first number of the evidence is a value of, or a median of values
MEASURED = {
    "layers.zero_inputs", "layers.dead_fraction", "layers.gradient_dead_fraction", "layers.attention_peak",
    "layers.output_norm", "layers.output_gradient_norm", "parameters.attention_pace", "parameters.unchanged_fraction",
    "parameters.spectral_share",
}  # fmt: skip


def disagreements(run: Run, diagnosis: Diagnosis) -> Iterator[str]:
    """Where strip, figure and text of a verdict contradict each other."""
    verdict, shown = diagnosis.verdict, screen(run, diagnosis)
    if verdict.line is not None and not shown.about:
        yield from _over_steps(run, diagnosis)
    if not shown.about or shown.strip is None:
        return
    name, options = evidence_figure(diagnosis, shown.about)
    if name != "by_layer":
        yield f"the figure is {name}"
        return
    drawn = table(BY_LAYER, [run], **options)
    drawn = drawn[drawn["curve"] == drawn["curve"].iloc[-1]]
    values = dict(zip(drawn["layer"].astype(str), drawn["value"], strict=True))
    cells = {cell.layer: cell for cell in shown.strip.cells}
    yield from (
        f"{layer}: {cell.value} in the strip, {number(values[layer])} in the figure"
        for layer, cell in cells.items()
        if layer in values and number(values[layer]) != cell.value
    )
    if drawn["curve"].iloc[0] != shown.strip.when:
        yield f"the strip is {shown.strip.when}, the figure {drawn['curve'].iloc[0]}"
    if verdict.line is not None:
        yield from _beyond(verdict, values, cells)
        yield from _quoted(verdict, values, shown.strip.healthy)


def _over_steps(run: Run, diagnosis: Diagnosis) -> Iterator[str]:
    verdict = diagnosis.verdict
    name, options = evidence_figure(diagnosis, "")
    drawn = table(name, [run], **options)
    part = drawn[drawn["line"].notna()]
    if {*part["line"]} != {verdict.line} or {*part["beyond"]} != {verdict.beyond}:
        yield f"the threshold of {verdict.line:g} is not drawn"
    elif not ((part["value"] > verdict.line) == (verdict.beyond == "above")).any():
        yield "no step is beyond the threshold"


def _quoted(verdict, values, healthy) -> Iterator[str]:
    usual = describe_range(*HEALTHY[verdict.column])
    if usual not in verdict.threshold or usual not in healthy:
        yield f"not everywhere is the range {usual}"
    first, deeper = verdict.evidence[0], [*values.values()][len(values) // 2 :]
    quoted = [*values.values(), median(deeper)] if "deeper half" in first.what else values.values()
    if verdict.column in MEASURED and not any(math.isclose(first.value, one, rel_tol=1e-5) for one in quoted):
        yield f"the evidence, {first.what}: {first.value:g}, is not in the figure"


def _beyond(verdict, values, cells) -> Iterator[str]:
    sign = 1 if verdict.beyond == "above" else -1
    for layer in verdict.layers:
        if layer not in values:
            yield f"{layer} is not in the figure"
        elif sign * (values[layer] - verdict.line) < 0:
            yield f"{layer} has {values[layer]:g}, not {verdict.beyond} {verdict.line:g}"
        if layer in cells and cells[layer].distance != "far":
            yield f"{layer} is {cells[layer].distance} in the strip"
    if not any(cell.distance == "far" for cell in cells.values()):
        yield "no layer is beyond the threshold"
