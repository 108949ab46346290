"""Report: runs -> one HTML page that a stranger understands.

    writing     write_report: the page on disk
    page        runs -> the text of the page
    labels      several runs: each once, and no two called alike
    sections    one run; several compared
    story       what was trained and how it went, in sentences and large figures
    fact        Finding: something measured that should be known
    gradients, outputs, balance   the facts of a run, each with its threshold
    plots      figures with what they show and the data behind them
    recorded, settings, table     the tables that sort
    svg, equations                drawings inside the page
    wording     numbers and names in sentences
    templates/  the page's HTML, style and script

Whatever comes from the user reaches the page through a template that escapes it, or through an XML serializer.
"""

from gatdiag.report.writing import write_report

__all__ = ["write_report"]
