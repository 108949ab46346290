"""The first screen of a run: the verdict in a word, facts of the training, how far each layer is from healthy."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gatdiag.card import Tone
from gatdiag.diagnosis import Diagnosis, Finding
from gatdiag.diagnosis.wording import number
from gatdiag.names import join_names, one_line, short
from gatdiag.page.story import count_parameters, describe_change, format_metric
from gatdiag.quantities import HEALTHY, compared_label, get_quantity, healthy_range
from gatdiag.run import Run
from gatdiag.summary import (
    TrainingFacts,
    compared_series,
    describe_steps,
    in_words,
    is_of_checkpoints,
    training_facts,
    typical_values,
)

Distance: TypeAlias = Literal["inside", "near", "far", "unmeasured"]

USUAL: Final = "parameters.relative_gradient_norm"  # of the strip, if the verdict is about no quantity by layer
_NEAR, _TIMES = 0.1, 10.0  # how far outside of the range counts as near it: for shares, and for other quantities
_MOST_LAYERS: Final = 200  # of the strip; of more, it shows evenly spaced ones


@dataclass(frozen=True)
class Tile:
    """One fact: its name, its value, and a word on it; whether it is what the training reached."""

    label: str
    value: str
    detail: str = ""
    is_result: bool = False


@dataclass(frozen=True)
class StripCell:
    """One layer of the strip."""

    layer: str
    distance: Distance
    value: str


@dataclass(frozen=True)
class Strip:
    """The layers in order, each by how far a quantity is from its range in healthy trainings.

    Attributes:
        label: The quantity.
        when: The steps that the values are of.
        healthy: The range in words.
        cells: The layers.
        is_beside: Whether something else is wrong.
    """

    label: str
    when: str
    healthy: str
    cells: tuple[StripCell, ...]
    is_beside: bool = False

    @property
    def summary(self) -> str:
        """How many layers are where."""
        if all(cell.distance == "unmeasured" for cell in self.cells):
            return "no layer has a finite value"
        far = sum(cell.distance in ("near", "far") for cell in self.cells)
        if far:
            return f"{far} of {len(self.cells)} layers outside of it"
        return f"all layers in it{': what is wrong is not here' if self.is_beside else ''}"


@dataclass(frozen=True)
class Screen:
    """The verdict in a word, the facts of the training, the layers, and the quantity by layer that shows what is wrong.

    `about` is "" if none does.
    """

    tone: Tone
    word: str
    tiles: tuple[Tile, ...]
    strip: Strip | None
    about: str


def screen(run: Run, diagnosis: Diagnosis | None) -> Screen:
    """The first screen; without a diagnosis nothing was recorded."""
    tone: Tone = "unknown" if diagnosis is None else diagnosis.tone
    about = "" if diagnosis is None else shown_column(run, diagnosis.verdict)
    strip = None if diagnosis is None else layer_strip(run, diagnosis, about)
    word = "cannot tell" if diagnosis is None else diagnosis.word
    return Screen(tone, word, tuple(_tiles(run)), strip, about)


def _tiles(run: Run) -> Iterator[Tile]:
    facts, meta = training_facts(run), run.meta
    yield _steps(run, facts)
    if facts.loss is not None:
        yield _loss(facts)
    if facts.metric and facts.best_step is not None:
        best = format_metric(facts.metric, facts.best_metric)
        yield Tile(f"best {short(in_words(facts.metric), 24)}", best, f"at step {facts.best_step:,}", is_result=True)
    for optimizer in meta["optimizers"][:1]:
        rates = {f"{group['lr']:g}" for group in optimizer["groups"] if isinstance(group.get("lr"), float | int)}
        more = f", and {len(meta['optimizers']) - 1} more" if len(meta["optimizers"]) > 1 else ""
        rate = f"learning rate {join_names(sorted(rates))}" if rates else ""
        yield Tile("optimizer", one_line(short(str(optimizer["class"]), 24)), f"{rate}{more}")
    total, trainable = count_parameters(meta)
    if total:
        yield Tile("parameters", f"{total:,}", f"{total - trainable:,} frozen" if trainable < total else "all trained")
    if kinds := [str(layer.get("kind") or "") for layer in meta["structure"]["layers"]]:
        yield Tile("layers", str(len(kinds)), short(max(dict.fromkeys(kinds), key=kinds.count), 24))


def _steps(run: Run, facts: TrainingFacts) -> Tile:
    if is_of_checkpoints(run):
        return Tile("checkpoints", f"{facts.steps:,}", f"the last at step {facts.last_step or 0:,}")
    steps = 0 if facts.last_step is None else facts.last_step + 1
    return Tile("steps", f"{steps:,}", f"{'all' if facts.recorded >= steps else f'{facts.recorded:,}'} recorded")


def _loss(facts: TrainingFacts) -> Tile:
    first, last = (number(value, 3) for value in (facts.first_loss, facts.last_loss))
    change = ""
    if math.isfinite(facts.first_loss) and math.isfinite(facts.last_loss) and facts.first_loss:
        change = describe_change(facts.first_loss, facts.last_loss)
        change = change.replace("by ", "up " if facts.last_loss > facts.first_loss else "down ") or "unchanged"
    return Tile(short(in_words(str(facts.loss)), 20), f"{first} \N{RIGHTWARDS ARROW} {last}", change, is_result=True)


def layer_strip(run: Run, diagnosis: Diagnosis, about: str) -> Strip | None:
    """Layers that have such a value; None if the quantity was not recorded, or has no range of its own."""
    column, steps = about or USUAL, diagnosis.verdict.steps
    described, series = get_quantity(column), compared_series(run, column)
    if column not in HEALTHY or not len(series):
        return None
    low, high = healthy_range(column, diagnosis.verdict.line if about else None)
    if not about and diagnosis.state == "trained":
        low = 0.0  # gradients are small for a good reason once the training has converged
    values, there = typical_values(series, steps), {*series["layer"]}
    layers = [str(layer) for layer in series["layer"].cat.categories if layer in there]
    every = -(-len(layers) // _MOST_LAYERS)
    near = (low / _TIMES, high * _TIMES) if described.is_over_orders else (low - _NEAR, high + _NEAR)
    cells = tuple(_cell(layer, values.get(layer), (low, high), near) for layer in layers[::every])
    is_beside = not about and diagnosis.tone in ("failing", "degraded")
    healthy = describe_range(*HEALTHY[column] if about else (low, high))
    if about and low > HEALTHY[column][0]:
        healthy += f"; the threshold is {low:g}"
    return Strip(compared_label(column), describe_steps(series, steps), healthy, cells, is_beside)


def shown_column(run: Run, finding: Finding) -> str:
    """The quantity by layer that a finding is about, unless it is as in healthy trainings in every layer; else ""."""
    if finding.column not in HEALTHY:
        return finding.column
    series = compared_series(run, finding.column)
    low, high = healthy_range(finding.column, finding.line)
    values = typical_values(series, finding.steps) if len(series) else {}
    is_usual = len(values) == series["layer"].nunique() and all(low <= value <= high for value in values.values())
    return "" if is_usual else finding.column


def describe_range(low: float, high: float) -> str:
    """A range in words.

    Example:
        >>> describe_range(0.7, 30.0), describe_range(1.6, math.inf)
        ('0.7 to 30', '1.6 and more')
    """
    return f"{low:g} to {high:g}" if math.isfinite(high) else f"{low:g} and more"


def _cell(layer: str, value: float | None, healthy: tuple[float, float], near: tuple[float, float]) -> StripCell:
    if value is None:
        return StripCell(layer, "unmeasured", "not finite")
    is_inside, is_near = (low <= value <= high for low, high in (healthy, near))
    return StripCell(layer, "inside" if is_inside else "near" if is_near else "far", number(value))
