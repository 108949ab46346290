"""The page: runs -> one self-contained HTML page, or Markdown.

    document    report: the page as a file; each run once, with a unique name
    markdown    the verdict, its evidence and short tables as text, for assistants and issues
    sections    the sections of one run, and of the comparison of several
    screen      the first screen of a run: verdict, tiles, strip of layers
    chart       values by layer and step, for the chart that answers to the mouse
    story       sentences about the training and its outcome
    plots       figures with captions and data
    tables      sortable tables
    templates/  HTML, CSS and JavaScript

The verdict comes from `gatdiag.diagnosis`. All text from the user is escaped by a template, or inside an image.
"""

from gatdiag.page.document import report

__all__ = ["report"]
