"""A gallery of all figures, healthy beside sick: `python -m reports.gallery OUT`.

Networks are trained on a built-in graph from two initializations: with balanced weights they train at any depth, with
the usual ones of Xavier those of ten layers are stuck.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gatdiag.experiments.experiment import run_experiment
from gatdiag.experiments.settings import Experiment, demo_settings
from gatdiag.figures import FIGURES, Figure, render
from gatdiag.run import Run, load
from gatdiag.run.files import META

_GRAPH: Final = "sbm"
_HEALTHY, _SICK = "balanced", "xavier"
_SCHEMES: Final = {_HEALTHY: "balanced_orthogonal", _SICK: "xavier"}
_INTRODUCTION: Final = f"""# Gallery

Every figure of `gatdiag.figures`, drawn by `python -m reports.gallery`. The runs are graph attention networks on the
built-in graph `{_GRAPH}` that differ only in their initialization: `{_HEALTHY}` trains, `{_SICK}` is stuck.
`gatdiag.figures.draw(name, run, ax)` draws one on axes of your own.
"""


def write_gallery(out: Path, layers: int = 10, epochs: int = 0) -> Path:
    """Train, draw, and write a page in Markdown with an SVG for each drawing.

    Args:
        out: The folder; runs go to ``runs`` in it, and those that are there already are not trained again.
        layers: Depth of the networks of which one run is drawn.
        epochs: Length of each training; 0 for that of `gatdiag demo`.

    Returns:
        The page, ``index.md``.
    """
    rate, usual = demo_settings(_GRAPH)
    plain = Experiment(data=_GRAPH, layers=layers, learning_rate=rate, epochs=epochs or usual)
    depths = {depth: replace(plain, layers=depth) for depth in (2, (2 + layers) // 2, layers)}
    by_depth = train_missing(out, [replace(one, seed=seed) for one in depths.values() for seed in (0, 1)])
    by_width = train_missing(out, [plain, replace(plain, width=8)])
    normalized = train_missing(
        out, [replace(one, norm=norm) for one in depths.values() for norm in ("none", "pairnorm")]
    )
    deepest = [run for run in by_depth if f"-L{layers}-" in run.name]
    pair = train_missing(out, [plain])
    chosen: dict[str, tuple[Sequence[Run], dict[str, Any]]] = {
        "spread_curves": (deepest, {}),
        "accuracy_by_depth": (by_depth, {}),
        "accuracy_by_width": (by_width, {}),
        "accuracy_by_normalization": (normalized, {"variants": {run.name: _words(run) for run in normalized}}),
    }
    blocks = [_INTRODUCTION]
    for figure in FIGURES:
        if figure.is_comparison:
            runs, options = chosen.get(figure.name, (pair, {}))
            pictures = {"": render(figure, runs, **options)}
        else:
            shared = figure.shared_options(pair)
            pictures = {run.name.split("-")[0]: render(figure, run, width="single", **shared) for run in pair}
        blocks.append(_block(out, figure, pictures))
    page = out / "index.md"
    page.write_text("\n".join(blocks), encoding="utf-8")
    return page


def train_missing(out: Path, settings: Sequence[Experiment]) -> list[Run]:
    """The runs of these settings, each with balanced weights and with those of Xavier; trained if they are missing."""
    runs = []
    for one in settings:
        for kind, scheme in _SCHEMES.items():
            norm = "" if one.norm == "none" else f"{one.norm}-"
            folder = out / "runs" / f"{kind}-{norm}L{one.layers}-W{one.width}-seed{one.seed}"
            if not (folder / META).exists():
                run_experiment(replace(one, initialization=scheme), folder=folder, every=1)
            runs.append(load(folder))
    return runs


def _words(run: Run) -> str:
    return ", ".join(["PairNorm" if "pairnorm" in run.name else "no normalization", run.name.split("-")[0]])


def _block(out: Path, figure: Figure, pictures: Mapping[str, bytes]) -> str:
    """The text of a figure and its pictures, which are written beside the page."""
    cells = {}
    for kind, picture in pictures.items():
        name = f"{figure.name}{kind and '-'}{kind}.svg"
        (out / name).write_bytes(picture)
        cells[kind or "side by side"] = f"![{figure.title}]({name})"
    source = [f"*Follows {figure.paper}.*\n"] if figure.paper else []
    return "\n".join([
        f"## {figure.title}\n\n`{figure.name}`. {figure.caption} {figure.interpretation}\n", *source,
        f"| {' | '.join(cells)} |", f"|{'---|' * len(cells)}", f"| {' | '.join(cells.values())} |\n",
    ])  # fmt: skip


def main(out: Annotated[Path, typer.Argument(help="Folder for the page, its pictures and the runs.")]) -> None:
    """Train what is missing, and write the gallery of all figures."""
    typer.echo(f"Page: {write_gallery(out)}")


if __name__ == "__main__":
    typer.run(main)
