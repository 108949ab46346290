"""Facts about gradients and about what they did to the weights."""

import math
from collections.abc import Iterator

from gatdiag.names import listed, short
from gatdiag.report.finding import Finding
from gatdiag.report.latest import EARLY, LATE, early_median, last_values, late_median
from gatdiag.report.wording import number, percent
from gatdiag.run import Run
from gatdiag.summary import FEATURES, role_series

FAR_BELOW = 1e-2  # of the largest layer: two orders of magnitude
EXPLODED = 1e2  # a gradient this many times the weights
SLOW = 1e-4  # of a weight's size a step, in the fastest layer; about 1e-3 is the custom
UNTOUCHED = 0.1  # of a layer's weights
HARDLY_CHANGED = 0.05  # of a layer's weights moved by more than 5 %

_LAST = "Last finite step;"
_THRESHOLD = (
    f"Median over the last {percent(LATE)} of the recorded steps; flagged where a layer lies below "
    f"{percent(FAR_BELOW)} of the largest."
)


def gradient_facts(run: Run) -> Iterator[Finding]:
    """How far the gradients reach, and how far the weights have moved. What was not recorded is not mentioned."""
    late = late_median(role_series(run, "relative_gradient_norm", FEATURES))
    if late:
        yield _reach(late)
    if late and max(late.values()) > EXPLODED:
        yield _explosion(late)
    pace = early_median(role_series(run, "update_ratio", FEATURES))
    if pace and 0 < max(pace.values()) < SLOW:
        yield _slowness(pace)
    unchanged = _after_start(run, "unchanged_fraction")
    if unchanged:
        yield _untouched(unchanged, _entries(run))
    changed = _after_start(run, "changed_fraction_005")
    if changed:
        yield _change(changed)


def weakest_gradient(run: Run) -> float | None:
    """The smallest relative gradient norm of a layer early in the run; None if it was not recorded.

    Late in the run that of a network that has learned is small because its loss is.
    """
    early = early_median(role_series(run, "relative_gradient_norm", FEATURES))
    return min(early.values(), default=None)


def _after_start(run: Run, column: str) -> dict[str, float]:
    """Layer -> its last value, of those after the first recorded step: until then no weight can have moved."""
    series = role_series(run, column, FEATURES)
    return last_values(series[series["step"] > run.parameters["step"].min()])


def _reach(late: dict[str, float]) -> Finding:
    low, high = _ends(late)
    span = f"from {number(late[low])} in layer {short(low)} to {number(late[high])} in layer {short(high)}"
    text = f"Relative gradient norm of the feature weights, ‖∇W‖ / ‖W‖, at the end of the run: {span}."
    starved = [layer for layer in late if late[layer] < FAR_BELOW * late[high]]
    if len(late) == 1:
        return Finding("Gradients", f"Relative gradient norm at the end of the run: {number(late[high])}.")
    if late[high] == 0:
        return Finding("Zero gradients", "The gradient of every feature weight is 0 at the end.", "", notable=True)
    if not starved:
        return Finding("Gradients of similar size in every layer", text, _THRESHOLD)
    less = f"less than {percent(FAR_BELOW)} of the strongest layer's gradient, relative to their weights"
    share = f"{len(starved)} of {len(late)} layers get {less}: {listed(map(short, starved))}."
    return Finding("Vanishing gradients", f"{share} {text}", _THRESHOLD, notable=True)


def _explosion(late: dict[str, float]) -> Finding:
    _, high = _ends(late)
    text = f"The gradient of layer {short(high)} is {number(late[high])} times its weights."
    threshold = f"Median over the last {percent(LATE)} of the recorded steps; flagged above {EXPLODED:.0f} times."
    return Finding("Exploding gradients", text, threshold, notable=True)


def _slowness(pace: dict[str, float]) -> Finding:
    _, high = _ends(pace)
    text = (
        f"A step moves the feature weights by {number(pace[high])} of their size even in the fastest layer, "
        f"{short(high)}: at that pace it takes {number(1 / pace[high])} steps to move them by their own size."
    )
    threshold = f"Median of ‖ΔW‖ / ‖W‖ over the first {percent(EARLY)} of the recorded steps; flagged below {SLOW:g}."
    return Finding("Update ratio too small", text, threshold, notable=True)


def _untouched(unchanged: dict[str, float], entries: dict[str, int]) -> Finding:
    total = sum(entries[layer] for layer in unchanged)
    overall = sum(unchanged[layer] * entries[layer] for layer in unchanged) / max(total, 1)
    stuck = [layer for layer in unchanged if unchanged[layer] >= UNTOUCHED]
    _, worst = _ends(unchanged)
    text = f"{percent(overall)} of all feature weights are bit for bit what they were at the start"
    if stuck:
        text += (
            f", most of all in layer {short(worst)} ({percent(unchanged[worst])}). Layers: {listed(map(short, stuck))}"
        )
    heading = "Weights that never moved" if stuck else "Every layer's weights have moved"
    return Finding(
        heading, f"{text}.", f"{_LAST} flagged above {percent(UNTOUCHED)} of a layer's weights.", bool(stuck)
    )


def _change(changed: dict[str, float]) -> Finding:
    idle = [layer for layer in changed if changed[layer] < HARDLY_CHANGED]
    low, high = _ends(changed)
    span = f"from {percent(changed[low])} in layer {short(low)} to {percent(changed[high])} in layer {short(high)}"
    if low == high:
        span = f"{percent(changed[low])} in {'every layer' if len(changed) > 1 else f'layer {short(low)}'}"
    text = f"Share of feature weights that changed by more than 5 % of their size: {span}."
    if idle:
        are = "is" if len(idle) == 1 else "are"
        text = f"{len(idle)} of {len(changed)} layers {are} nearly as initialized: {listed(map(short, idle))}. {text}"
    heading = "Layers that hardly changed" if idle else "Change of the weights"
    return Finding(heading, text, f"{_LAST} flagged below {percent(HARDLY_CHANGED)} of a layer.", bool(idle))


def _ends(values: dict[str, float]) -> tuple[str, str]:
    """The layers with the lowest and the highest value."""
    return min(values, key=values.__getitem__), max(values, key=values.__getitem__)


def _entries(run: Run) -> dict[str, int]:
    """Layer -> how many feature weights it has."""
    return {
        layer["name"]: sum(math.prod(p["shape"]) for p in layer["parameters"] if p["role"] == FEATURES)
        for layer in run.meta["structure"]["layers"]
    }
