"""meta.json as it was read once, and the names in it: what the positions in the tables stand for."""

from dataclasses import dataclass, field
from pathlib import Path

from gatdiag.run import meta
from gatdiag.run.names import Names


@dataclass(frozen=True, eq=False)
class Legend:
    """What meta.json said when a table was opened.

    Attributes:
        contents: The checked meta data.
        names: The names in them.
    """

    contents: meta.Meta
    names: Names
    _text: bytes = field(repr=False)

    @classmethod
    def read(cls, folder: Path, known: "Legend | None" = None) -> "Legend":
        """That of a run folder.

        Args:
            folder: Of the run.
            known: What was read before. It is returned if the file still says the same: decoding and checking the
                tens of thousands of laws of a wide model takes far longer than reading them.

        Raises:
            InputError: The folder holds no run, or one of a newer schema, or meta.json is damaged.
        """
        text = meta.read_text(folder)
        if known is not None and known._text == text:
            return known
        contents = meta.decode(text, folder)
        return cls(contents, Names.of(contents), text)
