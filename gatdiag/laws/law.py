"""One conservation law, as a person reads it: `gatdiag.law` has it, where a run can be read without torch."""

from gatdiag.law import Exclusion, Kind, Law, Term

__all__ = ["Exclusion", "Kind", "Law", "Term"]
