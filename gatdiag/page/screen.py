"""The first screen of a run: the verdict in a word, facts of the training, how far each layer is from healthy."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatdiag.card import Tone
from gatdiag.diagnosis import Diagnosis, Finding
from gatdiag.diagnosis.wording import describe_range, number
from gatdiag.names import join_names, one_line, short
from gatdiag.page.chart import MOST_LAYERS
from gatdiag.page.story import count_parameters, describe_change, format_metric
from gatdiag.quantities import HEALTHY, compared_label, get_quantity, healthy_range
from gatdiag.run import Run
from gatdiag.summary import (
    TrainingFacts,
    compared_series,
    in_words,
    is_of_checkpoints,
    shown_values,
    training_facts,
    why_undefined,
)

Distance: TypeAlias = Literal["inside", "unmeasured", "near", "far", "broken"]
_DISTANCES: Final[tuple[Distance, ...]] = get_args(Distance)

USUAL: Final = "parameters.relative_gradient_norm"  # of the strip, if the verdict is about no quantity by layer
_NEAR, _TIMES = 0.1, 10.0  # how far outside of the range counts as near it: for shares, and for other quantities
_ROUNDED: Final = 1 + 1e-6  # times the end of a range: shares are rounded
_BROKEN: Final = "NaN or infinite"


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

    @property
    def name(self) -> str:
        """The layer as the chart calls it."""
        return short(self.layer)


@dataclass(frozen=True)
class Strip:
    """The layers in order, each by how far a quantity is from its range in healthy trainings.

    Attributes:
        label: The quantity.
        when: The steps that the values are of.
        healthy: The range in words.
        cells: The layers; of several beside each other, if there are many, the one that is furthest out.
        summary: How many layers are where, of all.
        words: What it means to be at each distance.
    """

    label: str
    when: str
    healthy: str
    cells: tuple[StripCell, ...]
    summary: str
    words: Mapping[Distance, str]

    @property
    def legend(self) -> list[tuple[Distance, str]]:
        """The distances and what they mean, without those for layers without a value where there are none."""
        there = {"inside", "near", "far", *(cell.distance for cell in self.cells)}
        return [(distance, words) for distance, words in self.words.items() if distance in there]


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
    first, last = (number(value, 4) for value in (facts.first_loss, facts.last_loss))
    change = ""
    if math.isfinite(facts.first_loss) and math.isfinite(facts.last_loss) and facts.first_loss:
        change = describe_change(facts.first_loss, facts.last_loss)
        change = change.replace("by ", "up " if facts.last_loss > facts.first_loss else "down ") or "unchanged"
    return Tile(short(in_words(str(facts.loss)), 20), f"{first} \N{RIGHTWARDS ARROW} {last}", change, is_result=True)


def layer_strip(run: Run, diagnosis: Diagnosis, about: str) -> Strip | None:
    """Layers that have such a value; None if the quantity was not recorded, or has no range of its own."""
    column, found = about or USUAL, diagnosis.verdict
    shown = found if about else replace(found, column=column, line=None, over="")
    series = compared_series(run, column, shown.over)
    if column not in HEALTHY or not len(series):
        return None
    # gradients are small for a good reason once the training has converged
    has_converged = not about and diagnosis.state == "trained"
    (values, when), there = shown_values(series, column, found.steps), {*series["layer"]}
    layers = [str(layer) for layer in series["layer"].cat.categories if layer in there]
    zero = _zeros(series, why_undefined(run, column, shown.over))
    cells = [_cell(layer, values.get(layer), zero.get(layer), shown, is_low_fine=has_converged) for layer in layers]
    is_low = has_converged and any(value < HEALTHY[column][0] for value in values.values())
    where = "in it, or below it, as gradients are where it has trained" if is_low else "in it"
    is_beside = not about and diagnosis.tone in ("failing", "degraded")
    return Strip(
        label=compared_label(column, shown.over and short(shown.over, 40)),
        when=when,
        healthy=describe_range(*HEALTHY[column])
        + ("" if shown.line is None else f"; flagged {shown.beyond} {number(shown.line)}"),
        cells=tuple(_worst_of_parts(cells)),
        summary=_summary(cells, shown, f"{where}{': what is wrong is not here' if is_beside else ''}"),
        words={
            "inside": "in their range",
            "near": "near it" if shown.line is None else "outside of it",
            "far": "far from it" if shown.line is None else f"{shown.beyond} the threshold",
            "broken": _BROKEN,
            "unmeasured": "divided by zero",
        },
    )


def _zeros(series: pd.DataFrame, undefined: NDArray[np.object_]) -> dict[str, str]:
    """Layer -> why it has no value, for those that are never measured, because they are divided by zero."""
    is_broken = (undefined == "") & ~np.isfinite(series["value"])
    broken = {*series["layer"][is_broken]}
    reasons = zip(series["layer"], undefined, strict=True)
    return {str(layer): str(reason) for layer, reason in reasons if reason and layer not in broken}


def _worst_of_parts(cells: Sequence[StripCell]) -> Iterator[StripCell]:
    """All, or of each of as many parts as fit the one that is furthest out."""
    count = min(len(cells), MOST_LAYERS)
    for part in range(count):
        beside = cells[part * len(cells) // count : (part + 1) * len(cells) // count]
        yield max(beside, key=lambda cell: _DISTANCES.index(cell.distance))


def _summary(cells: Sequence[StripCell], shown: Finding, where: str) -> str:
    """How many layers are where."""
    _, unmeasured, near, far, broken = (sum(cell.distance == one for cell in cells) for one in _DISTANCES)
    rest = f" ({MOST_LAYERS} are shown, of neighbors the one furthest out)" if len(cells) > MOST_LAYERS else ""
    if unmeasured + broken == len(cells):
        return f"{'all' if broken == len(cells) else f'{broken} of {len(cells)}'} layers {_BROKEN}{rest}"
    rest = f", {broken} {_BROKEN}{rest}" if broken else rest
    if shown.line is not None:
        others = f", {near} more outside of the range" if near else ""
        return f"{far} of {len(cells)} layers {shown.beyond} the threshold{others}{rest}"
    return f"{far + near} of {len(cells)} layers outside of it{rest}" if far + near else f"all layers {where}{rest}"


def shown_column(run: Run, finding: Finding) -> str:
    """The quantity by layer that a finding is about, unless it is as in healthy trainings in every layer; else ""."""
    column = finding.column
    if column not in HEALTHY:
        return "" if column.startswith("steps.") else column
    series = compared_series(run, column, finding.over)
    values, _ = shown_values(series, column, finding.steps) if len(series) else ({}, "")
    is_usual = all(_distance(value, finding) == "inside" for value in values.values())
    return "" if is_usual and len(values) == series["layer"].nunique() else column


def _cell(layer: str, value: float | None, zero: str | None, shown: Finding, *, is_low_fine: bool) -> StripCell:
    if value is None and zero:
        return StripCell(layer, "unmeasured", zero)
    if value is None or not math.isfinite(value):
        return StripCell(layer, "broken", _BROKEN if value is None else number(value))
    return StripCell(layer, _distance(value, shown, is_low_fine=is_low_fine), number(value))


def _distance(value: float, shown: Finding, *, is_low_fine: bool = False) -> Distance:
    """What is beyond the threshold is far out; without one, what is far from the range of healthy trainings."""
    low, high = healthy_range(shown.column, shown.line, shown.beyond)
    if shown.line is not None and (value >= shown.line if shown.beyond == "above" else value <= shown.line):
        return "far"
    if low <= value <= high * _ROUNDED or (is_low_fine and value < low):
        return "inside"
    is_over_orders = get_quantity(shown.column).is_over_orders
    lowest, highest = (low / _TIMES, high * _TIMES) if is_over_orders else (low - _NEAR, high + _NEAR)
    return "near" if shown.line is not None or lowest <= value <= highest else "far"
