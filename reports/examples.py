"""Pictures of the documentation: for each cause a sick training beside the same one without the fault; the gallery.

They are drawn once, in a few minutes, and kept in build/examples and build/gallery; delete these to draw them again.
With `EXAMPLES=lr-too-large,overfitting` only those of these causes are there, and no gallery; `EXAMPLES=` has none.
"""

import inspect
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pandas as pd
import torch

from gatdiag.diagnosis import CAUSES, HEALTHY, Diagnosis, Finding, diagnose
from gatdiag.figures import FIGURES, render
from gatdiag.run import load
from reports.gallery import write_gallery
from tests.bank.cases import BANK, Case
from tests.bank.training import train
from tests.diagnosis.examples import EXAMPLES, Example

BUILD: Final = Path(__file__).parents[1] / "build"
KINDS: Final = ("sick", "healthy")
_FOLDER: Final = BUILD / "examples"
_SIZE: Final = '{ width="300" style="max-width: none" }'
_WANTED: Final = os.environ.get("EXAMPLES")
_FIGURES: Final = {figure.name: figure for figure in FIGURES}


def draw_examples(scores: pd.DataFrame) -> Iterator[tuple[str, str, list[Path]]]:
    """Code, text and pictures for each cause: of a training of the bank that is named right, or else of its own.

    Args:
        scores: Rows of the bank's trainings.
    """
    right = scores[scores["right"] & scores["counts"]].drop_duplicates("planted")
    of_bank = {BANK[name].cause: BANK[name] for name in right["case"] if BANK[name].cause != HEALTHY}
    chosen: Mapping[str, Case | Example] = EXAMPLES | of_bank
    if _WANTED is not None:
        chosen = {code: one for code, one in chosen.items() if code in _WANTED.split(",")}
    missing = {code: one for code, one in chosen.items() if not _text_path(code).exists()}
    if len(missing) > 2:  # else starting processes takes longer
        print(f"drawing {len(missing)} examples, which takes a few minutes")  # noqa: T201
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
            list(processes.map(draw, missing, missing.values()))
    else:
        list(map(draw, missing, missing.values()))
    for code in chosen:
        yield code, _text_path(code).read_text(), [_picture(code, kind) for kind in KINDS]


def draw(code: str, example: Case | Example) -> None:
    """Train with the fault and without it, and draw the figure of the cause for both."""
    torch.set_num_threads(1)
    figure = _FIGURES[CAUSES[code].figure or "training_curves"]
    with TemporaryDirectory() as scratch:
        folders = [Path(scratch) / kind for kind in KINDS]
        with warnings.catch_warnings(action="ignore"):  # of what is planted
            for folder in folders:
                _record(example, folder, is_faulty=folder.name == "sick")
        runs = [load(folder) for folder in folders]
        _FOLDER.mkdir(parents=True, exist_ok=True)
        for kind, run in zip(KINDS, runs, strict=True):
            _picture(code, kind).write_bytes(render(figure, run, width="single", **figure.shared_options(runs)))
        _text_path(code).write_text(_text(code, example, [_found(code, diagnose(run)) for run in runs]))


def _record(example: Case | Example, folder: Path, *, is_faulty: bool) -> None:
    if isinstance(example, Example):
        example.record(folder, is_faulty=is_faulty)
        return
    assert example.repaired is not None
    train(example.faulty if is_faulty else example.repaired, folder)


def _found(code: str, diagnosis: Diagnosis) -> Finding:
    """The finding of this code, which may be a note or a symptom of another; the verdict if there is none."""
    found = (part for one in diagnosis for part in (one, *one.symptoms) if part.code == code)
    return next(found, diagnosis.verdict)


def _text(code: str, example: Case | Example, found: Sequence[Finding]) -> str:
    of_bank = isinstance(example, Case)
    what, sick, healthy = _of_bank(example) if of_bank else _of_its_own(example)
    cells = (f"![The {kind} training](../examples/{code}-{kind}.svg){_SIZE}" for kind in KINDS)
    return "\n".join((
        f"## An example\n\n{what}\n",
        f"| sick: {sick} | healthy: {healthy} |", "| --- | --- |", f"| {' | '.join(cells)} |",
        f"| {' | '.join(one.text.replace('|', '&#124;') for one in found)} |",
        f"\nThe fix that is named there:\n\n```python\n{found[0].remedy}\n```" if found[0].remedy else "",
    ))  # fmt: skip


def _of_bank(case: Case) -> tuple[str, str, str]:
    """What it is, and what differs."""
    sick, healthy = asdict(case.faulty), asdict(case.repaired)
    changed = [name for name in sick if sick[name] != healthy[name]]
    first, second = (
        ", ".join(f"`{name}={json.dumps(recipe[name])}`" for name in changed) for recipe in (sick, healthy)
    )
    return f"Training `{case.name}` of the bank, and the same training without the fault.", first, second


def _of_its_own(example: Example) -> tuple[str, str, str]:
    source = inspect.getsource(example.build)
    kind = "Checkpoints" if example.is_of_checkpoints else "A training"
    return (
        f"{kind} of `tests/diagnosis/examples.py`, with the fault and without it:\n\n```python\n{source}```",
        "`is_faulty=True`",
        "`is_faulty=False`",
    )


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
