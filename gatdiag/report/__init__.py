"""Report: runs -> one HTML page that a stranger understands.

    page        write_report: the page on disk; several runs are each shown once, and no two called alike
    sections    one run; several compared
    story       what was trained and how it went, in sentences and large figures
    plots       figures with what they show and the data behind them
    tables      the tables that sort
    equations   LaTeX -> MathML
    templates/  the page's HTML, style and script

What stands out is said by `gatdiag.diagnosis`. Whatever comes from the user reaches the page through a template that
escapes it, or inside an image.
"""

from gatdiag.report.page import write_report

__all__ = ["write_report"]
