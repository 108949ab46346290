"""Each thing is told once, with the checkpoints it is true of."""

from pathlib import Path

from gatdiag.checkpoint.inspection import Notes


def test_a_text_is_told_once():
    notes = Notes()
    for _ in range(3):
        notes.add("of all")
        notes.add("of one", Path("a.pt"))
    assert notes.texts() == ("of all", "'a.pt': of one")


def test_few_checkpoints_are_named():
    notes = Notes()
    for number in range(100):
        notes.add("lacks 'a'", Path(f"{number}.pt"))
    assert notes.texts() == ("'0.pt', '1.pt' and 98 more: lacks 'a'",)
