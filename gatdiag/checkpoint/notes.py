"""What a reader of an inspection should know, each thing once, however many checkpoints it is true of."""

from pathlib import Path

from gatdiag.checkpoint.formats import shown_path
from gatdiag.names import listed

_NAMED = 2  # checkpoints


class Notes:
    """Collects texts.

    Example:
        >>> notes = Notes()
        >>> for name in "abcd":
        ...     notes.add("tells no step", Path(name))
        >>> notes.texts()
        ("'a', 'b' and 2 more: tells no step",)
    """

    def __init__(self) -> None:
        """Without any."""
        self._found: dict[str, dict[Path, None]] = {}

    def add(self, text: str, path: Path | None = None) -> None:
        """Note something of a checkpoint, or of all of them."""
        paths = self._found.setdefault(text, {})
        if path is not None:
            paths[path] = None

    def texts(self) -> tuple[str, ...]:
        """All of them, in order, and before each the checkpoints it is true of."""
        return tuple(
            f"{listed(map(shown_path, paths), _NAMED)}: {text}" if paths else text
            for text, paths in self._found.items()
        )
