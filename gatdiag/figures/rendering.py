"""The registry of figures; rendering them to bytes and files."""

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import matplotlib.figure
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backend_bases import get_registered_canvas_class
from numpy.typing import NDArray

from gatdiag.errors import InputError
from gatdiag.figures import accuracy, by_layer, curves, gradients, laws, overview, smoothing, weight_change
from gatdiag.figures.axes import full_step_range, not_recorded
from gatdiag.figures.figure import Figure
from gatdiag.figures.heat import PlacedMap, placed_maps
from gatdiag.figures.style import SIZES, Canvas, Context, GivenAxes, plain_text, style_context, text_scale
from gatdiag.run import Run

Format = Literal["svg", "png", "pdf"]
Width = Literal["single", "double"]

FIGURES: tuple[Figure, ...] = (
    overview.OVERVIEW,
    curves.COMPARED_CURVES,
    curves.SPREAD_CURVES,
    gradients.GRADIENT_EVOLUTION,
    accuracy.ACCURACY_BY_DEPTH,
    accuracy.ACCURACY_BY_WIDTH,
    accuracy.ACCURACY_BY_NORMALIZATION,
    curves.TRAINING_CURVES,
    gradients.GRADIENT_NORMS,
    gradients.CHOSEN_LAYERS,
    by_layer.BY_LAYER,
    weight_change.CHANGED_FRACTION,
    weight_change.UNCHANGED_FRACTION,
    weight_change.CHANGE_BOXES,
    laws.BALANCE,
    laws.CONSERVATION,
    smoothing.SMOOTHING_BY_LAYER,
    smoothing.SMOOTHING_OVER_TRAINING,
)

_METADATA: dict[str, dict[str, Any]] = {  # no date: the same run gives the same file
    "svg": {"Date": None},
    "png": {"Software": "gatdiag"},
    "pdf": {"CreationDate": None, "Creator": "gatdiag"},
}

_TITLE = 0.3  # inches


def figures_for(runs: Run | Sequence[Run]) -> list[Figure]:
    """The figures that apply, in reading order: for one run those of a run, for several those that compare.

    Figures whose quantities were not recorded are included: their table is empty, and they draw a note.
    """
    several = _as_list(runs)
    compare = len(several) != 1
    return [figure for figure in FIGURES if figure.is_comparison == compare and figure.applies_to(several)]


def table(figure: Figure | str, runs: Run | Sequence[Run], **options: Any) -> pd.DataFrame:
    """The tidy table that a figure draws.

    Args:
        figure: A figure or its name.
        runs: One run, or several for a figure that compares.
        **options: As the figure's own `data` takes them, for example `layers=` or `variants=`.

    Raises:
        InputError: There is no such figure, or the number of runs does not fit it.
    """
    chosen, several = _figure(figure), _as_list(runs)
    if not chosen.is_comparison and len(several) != 1:
        raise InputError(f"figure {chosen.name!r} draws one run, got {len(several)}: call table once per run")
    if not several:
        raise InputError(f"figure {chosen.name!r} needs at least one run, got none")
    return chosen.data(*several, **options)


def plot(
    figure: Figure | str,
    runs: Run | Sequence[Run],
    *,
    width: Width = "double",
    context: Context = "paper",
    **options: Any,
) -> matplotlib.figure.Figure:
    """Draw a new matplotlib figure, which no global state holds; the arguments are those of `draw`."""
    _check_size(width, context)
    chosen = _figure(figure)
    with style_context(context=context):
        return _draw_figure(chosen, _as_list(runs), table(chosen, runs, **options), SIZES[width], 150, context)


def draw(
    figure: Figure | str,
    runs: Run | Sequence[Run],
    ax: Axes | Sequence[Axes] | NDArray[Any] | matplotlib.figure.Figure | matplotlib.figure.SubFigure | None = None,
    *,
    width: Width = "double",
    context: Context = "paper",
    **options: Any,
) -> Any:
    """Draw a figure with matplotlib, for example on axes of your own.

    Args:
        figure: A figure or its name.
        runs: One run, or several for a figure that compares.
        ax: Where it is drawn: axes; for a figure of several panels an array of as many axes, or a figure or subfigure
            that gets them. By default on a new figure, in gatdiag's style. Your own keep your settings; a legend is
            below the last one, for which ``layout="constrained"`` makes room.
        width: Of a new figure, as for `render`.
        context: Of a new figure, as for `render`.
        **options: As the figure's own `data` takes them, for example `layers=` or `variants=`.

    Returns:
        The axes, or an array of them if the figure has several panels. They do not include color bars.

    Raises:
        InputError: There is no such figure, the number of runs or axes does not fit it, or the runs have nothing of
            what it draws.

    Example:
        ``gatdiag.figures.draw("chosen_layers", run, plt.subplots(1, 3)[1])``
    """
    _check_size(width, context)
    chosen, values = _figure(figure), table(figure, runs, **options)
    if not len(values):
        needs = [options["column"]] if "column" in options else chosen.needs
        got = ", ".join(repr(run.name) for run in _as_list(runs)[:3])
        raise InputError(
            f"figure {chosen.name!r} expects a run with {' or '.join(needs)}, got {got}; {not_recorded(*needs)}"
        )
    if ax is None:
        with style_context(context=context):
            page = _new_figure(chosen, values, SIZES[width], 100, context)
            drawn = _draw_on(chosen, _as_list(runs), values, page)
    elif isinstance(ax, matplotlib.figure.Figure | matplotlib.figure.SubFigure):
        drawn = _draw_on(chosen, _as_list(runs), values, ax)
    else:
        given = np.ravel(np.array(ax, dtype=object)).tolist()
        if not given or not all(isinstance(one, Axes) for one in given):
            raise InputError(f"ax= expects axes, a figure or a subfigure of matplotlib, got {type(ax).__name__}")
        drawn = _draw_on(chosen, _as_list(runs), values, GivenAxes(given))
    return drawn[0] if len(drawn) == 1 else np.array(drawn, dtype=object)


def render(
    figure: Figure | str,
    runs: Run | Sequence[Run],
    *,
    format: Format = "svg",
    width: Width = "double",
    context: Context = "paper",
    as_paths: bool = False,
    dpi: int = 300,
    values: pd.DataFrame | None = None,
    **options: Any,
) -> bytes:
    """Render a figure to the contents of a file.

    Args:
        figure: A figure or its name.
        runs: One run, or several for a figure that compares.
        format: "svg" (text stays text), "png" or "pdf" (fonts embedded).
        width: "single" (3.3 inches, one column of a paper) or "double" (6.75, its page).
        context: For what text is sized, as in seaborn: "paper" (7 points), "notebook" (9) or "talk" (13). The whole
            figure grows with it: a "single" one for a talk is 6.2 inches wide.
        as_paths: Whether the text of an SVG is drawn as paths: it looks the same everywhere, but cannot be selected.
        dpi: Resolution of a PNG, and of heat maps inside an SVG or PDF.
        values: The result of `table` for this figure and these runs, if already computed.
        **options: As the figure's own `data` takes them, for example `layers=` or `variants=`.

    Raises:
        InputError: There is no such figure, format or width, or the number of runs does not fit the figure.
    """
    if format not in _METADATA:
        raise InputError(f"format must be svg, png or pdf, got {format!r}")
    _check_size(width, context)
    chosen = _figure(figure)
    if values is None:
        values = table(chosen, runs, **options)
    made = picture(chosen, runs, values, format=format, width=width, context=context, as_paths=as_paths, dpi=dpi)
    return made.content


class Picture(NamedTuple):
    """The contents of a figure's file, and where in it its heat maps are."""

    content: bytes
    maps: list[PlacedMap]


def picture(
    figure: Figure,
    runs: Run | Sequence[Run],
    values: pd.DataFrame,
    *,
    format: Format = "svg",
    width: Width = "double",
    context: Context = "paper",
    as_paths: bool = False,
    dpi: int = 300,
) -> Picture:
    """As `render`, of a table that was computed, with the places of heat maps."""
    content = BytesIO()
    with style_context(f"gatdiag {figure.name}", context, as_paths=as_paths):
        drawn = _draw_figure(figure, _as_list(runs), values, SIZES[width], dpi, context)
        canvas = get_registered_canvas_class(format)(drawn)
        # savefig would draw everything twice
        getattr(canvas, f"print_{format}")(content, metadata=_METADATA[format])
        return Picture(content.getvalue(), placed_maps(drawn))


class Drawing(matplotlib.figure.Figure):
    """A matplotlib figure that notebooks show, although pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        with style_context():
            self.savefig(content, format="png")
        return content.getvalue()


def _draw_figure(
    figure: Figure, runs: Sequence[Run], values: pd.DataFrame, width: float, dpi: int, context: Context = "paper"
) -> matplotlib.figure.Figure:
    drawn = _new_figure(figure, values, width, dpi, context)
    _draw_on(figure, runs, values, drawn)
    return drawn


def _new_figure(
    figure: Figure, values: pd.DataFrame, width: float, dpi: int, context: Context
) -> matplotlib.figure.Figure:
    scale = text_scale(context)
    size = scale * width, scale * figure.height(values, width)
    return Drawing(figsize=size, dpi=dpi, layout="constrained")


def _draw_on(figure: Figure, runs: Sequence[Run], values: pd.DataFrame, canvas: Canvas) -> list[Axes]:
    with full_step_range(runs[0]) if not figure.is_comparison else nullcontext():
        return figure.draw(values, canvas)


def save_figures(
    runs: Run | Sequence[Run],
    folder: Path | str,
    *,
    formats: Sequence[Format] = ("png", "svg", "pdf"),
    width: Width = "double",
) -> list[Path]:
    """Write every figure that applies; with several runs also those of each run, in a folder named after it.

    Colors have the same meaning in all folders.

    Returns:
        The files, in reading order. Existing files are overwritten.
    """
    written = []
    for subfolder, figure, drawn, values in _applicable_figures(_as_list(runs)):
        target = Path(folder) / subfolder
        target.mkdir(parents=True, exist_ok=True)
        for kind in formats:
            path = target / f"{figure.name}.{kind}"
            path.write_bytes(render(figure, drawn, format=kind, width=width, values=values))
            written.append(path)
    return written


def render_document(runs: Run | Sequence[Run]) -> bytes:
    """Render every figure that `save_figures` writes into one PDF, one per page, with its title and the run's name."""
    from matplotlib.backends.backend_pdf import PdfPages

    content = BytesIO()
    with style_context(), PdfPages(content, metadata=_METADATA["pdf"]) as pages:
        for _, figure, drawn, values in _applicable_figures(_as_list(runs)):
            page = _draw_figure(figure, drawn, values, SIZES["double"], 300)
            page.suptitle(f"{figure.title}: {plain_text(drawn[0].name)}" if len(drawn) == 1 else figure.title)
            page.set_figheight(page.get_figheight() + _TITLE)
            pages.savefig(page)
    return content.getvalue()


def _applicable_figures(runs: list[Run]) -> Iterator[tuple[str, Figure, list[Run], pd.DataFrame]]:
    """Each figure of `save_figures` with the name of its subfolder, its runs and its data."""
    subfolders = [("", runs)]
    if len(runs) > 1:
        subfolders += [(f"{number}-{_file_name(run.name)}", [run]) for number, run in enumerate(runs, start=1)]
    shared = {figure.name: figure.shared_options(runs) for figure in FIGURES if runs and not figure.is_comparison}
    for subfolder, drawn in subfolders:
        for figure in figures_for(drawn):
            options = shared[figure.name] if len(drawn) == 1 else {}
            yield subfolder, figure, drawn, table(figure, drawn, **options)


def _check_size(width: str, context: str) -> None:
    if width not in SIZES or context not in get_args(Context):
        raise InputError(
            f"width must be single or double and context paper, notebook or talk, got {width!r} and {context!r}"
        )


def _figure(figure: Figure | str) -> Figure:
    if isinstance(figure, Figure):
        return figure
    found = next((one for one in FIGURES if one.name == figure), None)
    if found is None:
        raise InputError(f"there is no figure {figure!r}; there are {', '.join(one.name for one in FIGURES)}")
    return found


def _as_list(runs: Run | Sequence[Run]) -> list[Run]:
    several = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    if strangers := [one for one in several if not isinstance(one, Run)]:
        raise InputError(f"expected runs, as gatdiag.load(folder) opens them, got {strangers[0]!r}")
    return several


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name)[:40].strip(".-") or "run"
