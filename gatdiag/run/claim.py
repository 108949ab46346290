"""Who may begin a run in a folder, and what may be deleted there."""

from pathlib import Path

from gatdiag.errors import InputError
from gatdiag.run import layout, meta


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Sees to it that a run can begin in a folder: it does not exist, is empty, or holds a run that may be deleted.

    Raises:
        InputError: It cannot.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder for the run, but {folder} is a file")
    there = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if layout.META in there:
        if not overwrite:
            raise InputError(
                f"{folder} already holds a run. Say overwrite=True to delete it, resume=True to continue it, or give "
                "another folder."
            )
        if not meta.is_a_run(folder):
            raise InputError(
                f"{folder / layout.META} is not that of a run, so nothing is overwritten; give another folder"
            )
        return
    others = [name for name in there if name != layout.LOCK]
    if others:
        raise InputError(f"{folder} is not empty (it holds {others[0]!a}) and holds no run; give a new or empty folder")


def delete_run(folder: Path) -> None:
    """Deletes the files of a run, except meta.json, which is replaced, and the lock."""
    for path in folder.iterdir():
        if layout.belongs_to_a_run(path.name) and path.name not in {layout.META, layout.LOCK}:
            path.unlink()
