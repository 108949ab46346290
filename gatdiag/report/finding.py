"""A fact: something measured, in words and numbers, that a reader of a run should know."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One fact.

    Attributes:
        heading: What it is about, in a few words.
        text: What was measured, with numbers.
        threshold: From where on it is flagged.
        notable: Whether it does.
    """

    heading: str
    text: str
    threshold: str = ""
    notable: bool = False
