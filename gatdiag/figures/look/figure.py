"""The facts of a figure. Generic code reads them; no figure is special."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from gatdiag.figures.look.style import Canvas
from gatdiag.run import Run

Group = Literal["overview", "training", "gradients", "changes", "balance", "smoothing", "comparison"]


def _always(_runs: Sequence[Run]) -> bool:
    return True


def _nothing(_runs: Sequence[Run]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: Its file's name, which is also the name it is saved under.
        title: One line.
        shows: What is drawn.
        reading: How to read it: what a healthy network looks like, and what a sick one does.
        equation: LaTeX, without dollar signs; "" if there is nothing to define.
        paper: Which figure of which paper it follows; "" if none.
        group: The part of a report it belongs to.
        needs: The columns it draws, as "table.column"; "steps.loss" stands for whatever the loss was logged as.
            It can be drawn without some of them: a note takes their place.
        per: Whether it draws one run or several.
        data: Runs (and options) -> the tidy table that is drawn.
        draw: That table -> drawn on a matplotlib Figure or SubFigure; nothing is computed here.
        height: The table and a width in inches -> the height in inches that suits them.
        applies: Whether runs of the right number differ in what the figure compares.
        shared: Runs -> the options of `data` with which drawings of them, one each, can be compared by eye.
    """

    name: str
    title: str
    shows: str
    reading: str
    equation: str
    paper: str
    group: Group
    needs: tuple[str, ...]
    per: Literal["run", "comparison"]
    data: Callable[..., pd.DataFrame]
    draw: Callable[[pd.DataFrame, Canvas], None]
    height: Callable[[pd.DataFrame, float], float]
    applies: Callable[[Sequence[Run]], bool] = _always
    shared: Callable[[Sequence[Run]], dict[str, Any]] = _nothing
