"""Pictures of the documentation: for each cause a sick training beside the same one without the fault; the gallery.

They are drawn once, in a few minutes, and kept in build/examples and build/gallery; delete these to draw them again.
With `EXAMPLES=lr-too-large,overfitting` only those of these causes are there, and no gallery; `EXAMPLES=` has none.
"""

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pandas as pd
import torch

from gatdiag.diagnosis import CAUSES, HEALTHY, Finding, diagnose
from gatdiag.figures import FIGURES, render
from gatdiag.run import load
from reports.gallery import write_gallery
from tests.bank.cases import BANK, Case
from tests.bank.training import train

BUILD: Final = Path(__file__).parents[1] / "build"
KINDS: Final = ("sick", "healthy")
_FOLDER: Final = BUILD / "examples"
_SIZE: Final = '{ width="300" style="max-width: none" }'
_WANTED: Final = os.environ.get("EXAMPLES")
_FIGURES: Final = {figure.name: figure for figure in FIGURES}


def draw_examples(scores: pd.DataFrame) -> Iterator[tuple[str, str, list[Path]]]:
    """Code, text and pictures for each cause that the bank plants and the diagnosis names.

    Args:
        scores: Rows of the bank's trainings.
    """
    right = scores[scores["right"] & scores["counts"]].drop_duplicates("planted")
    chosen = [BANK[name] for name in right["case"] if BANK[name].cause != HEALTHY]
    if _WANTED is not None:
        chosen = [case for case in chosen if case.cause in _WANTED.split(",")]
    missing = [case.name for case in chosen if not _text_path(case.cause).exists()]
    if len(missing) > 1:
        print(f"drawing {len(missing)} examples, which takes a few minutes")  # noqa: T201
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
            list(processes.map(draw, missing))
    else:
        list(map(draw, missing))
    for case in chosen:
        yield case.cause, _text_path(case.cause).read_text(), [_picture(case.cause, kind) for kind in KINDS]


def draw(name: str) -> None:
    """Train a case of the bank with and without its fault, and draw the figure of its cause for both."""
    torch.set_num_threads(1)
    case = BANK[name]
    assert case.repaired is not None
    figure = _FIGURES[CAUSES[case.cause].figure or "training_curves"]
    with TemporaryDirectory() as scratch:
        folders = [Path(scratch) / kind for kind in KINDS]
        with warnings.catch_warnings(action="ignore"):  # of what is planted
            for recipe, folder in zip((case.faulty, case.repaired), folders, strict=True):
                train(recipe, folder)
        runs = [load(folder) for folder in folders]
        _FOLDER.mkdir(parents=True, exist_ok=True)
        for kind, run in zip(KINDS, runs, strict=True):
            _picture(case.cause, kind).write_bytes(render(figure, run, width="single", **figure.shared_options(runs)))
        _text_path(case.cause).write_text(_text(case, [diagnose(run).verdict for run in runs]))


def _text(case: Case, verdicts: Sequence[Finding]) -> str:
    sick, healthy = asdict(case.faulty), asdict(case.repaired)
    changed = [name for name in sick if sick[name] != healthy[name]]
    with_and_without = (
        ", ".join(f"`{name}={json.dumps(recipe[name])}`" for name in changed) for recipe in (sick, healthy)
    )
    cells = (f"![The {kind} training](../examples/{case.cause}-{kind}.svg){_SIZE}" for kind in KINDS)
    return "\n".join((
        f"## An example\n\nTraining `{case.name}` of the bank, and the same training without the fault.\n",
        "| sick: {} | healthy: {} |".format(*with_and_without), "| --- | --- |", f"| {' | '.join(cells)} |",
        f"| {' | '.join(verdict.text.replace('|', '&#124;') for verdict in verdicts)} |",
        f"\nThe fix that is named there:\n\n```python\n{verdicts[0].remedy}\n```" if verdicts[0].remedy else "",
    ))  # fmt: skip


def _picture(cause: str, kind: str) -> Path:
    return _FOLDER / f"{cause}-{kind}.svg"


def _text_path(cause: str) -> Path:
    return _FOLDER / f"{cause}.md"


def draw_gallery() -> list[Path]:
    """The files of the gallery: its page, and the pictures; nothing if only some examples are wanted."""
    if _WANTED is not None:
        return []
    folder = BUILD / "gallery"
    if not (folder / "index.md").exists():
        print("drawing the gallery, which takes a few minutes")  # noqa: T201
        write_gallery(folder)
    return [folder / "index.md", *sorted(folder.glob("*.svg"))]
