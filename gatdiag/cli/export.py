"""`gatdiag export`: the tables of a run as CSV or Parquet, or its scalars in a tracker."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gatdiag.cli.options import OUT, Overwrite
from gatdiag.errors import InputError

_TRACKERS: Final = ("tensorboard", "wandb", "mlflow")


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="csv or parquet: the tables; tensorboard, wandb or mlflow: scalars.")
    ],
    out: Annotated[Path | None, OUT] = None,
    overwrite: Overwrite = False,
) -> None:
    """Export a run to CSV, Parquet, or a tracker.

    Without --out, into the folder RUN-FORMAT. A tracker gets a few scalars for each step, and the verdict; there is
    nothing to overwrite, because each export is a run of its own. W&B stays offline unless WANDB_MODE=online, and
    MLflow uses MLFLOW_TRACKING_URI if that is set.
    """
    from gatdiag import run

    kind: Any = to.lower()
    target = out if out is not None else Path(f"{folder.resolve().name}-{kind}")
    if kind not in (known := ("csv", "parquet", *_TRACKERS)):
        raise InputError(f"--to: expected one of {', '.join(known)}, got {to!r}")
    loaded = run.load(folder)
    if kind in _TRACKERS:
        typer.echo(_tracker(kind).export(loaded, target))
    else:
        typer.echo(run.export(loaded, target, kind, overwrite=overwrite))


def _tracker(name: str) -> Any:
    """The file of a tracker in `gatdiag.integrations`."""
    try:
        return import_module(f"gatdiag.integrations.{name}")
    except ModuleNotFoundError as error:
        package = {"mlflow": "mlflow-skinny"}.get(name, name)
        raise InputError(f"--to {name} needs a package that is not installed: pip install {package}") from error
