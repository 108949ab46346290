"""Trainings that somebody reported in public as not working, rebuilt small: does the diagnosis name what was wrong?

Each report is rebuilt with own code on synthetic data, with the fault that was found there and without it. A third of
them is held out. `first_sight.csv` keeps what the diagnosis said of each before any rule was changed with it in view.

- `reports`: what a report is
- `graphs`, `links`, `losses`, `plain`, `sequences`: the reports
- `scoring`: reports -> runs -> verdicts -> a table
"""

from tests.bank.public import graphs, links, losses, plain, sequences
from tests.bank.public.reports import REPORTS

__all__ = ["REPORTS", "graphs", "links", "losses", "plain", "sequences"]
