"""`gatdiag laws`: the laws of a model, as a table or as JSON.

The JSON document has these keys; numbers that are not finite, or that do not exist, are null:

- ``version``: 1, the version of this description
- ``model``, ``inputs``: what was analyzed, as given on the command line; a data set with the transform of its features
- ``count``, ``approximate``: how many laws, and how many of them hold only up to an epsilon in the model
- ``layers``: for each layer ``layer``, ``laws``, ``approximate``, ``normalized_c`` (largest magnitude), ``residual``
  (largest), ``missing`` (as ``excluded``), ``elsewhere`` (layers whose laws its parameters enter, if it has none)
- ``laws``: for each law ``name``, ``layer``, ``kind``, ``exact``, ``residual``, ``c``, ``normalized_c`` and ``terms``,
  each with ``parameter``, ``kind``, ``indices`` and ``exponent``
- ``excluded``: for each exclusion ``what`` and ``reason``
"""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gatdiag.cli.overview import Row, rows
from gatdiag.cli.printing import print_document
from gatdiag.cli.subject import Subject, load_subject
from gatdiag.laws import Laws, Term, find_laws
from gatdiag.structure import discover

_WIDE = 72  # columns that a terminal needs for the remarks to stand in the table


def print_laws(
    factory: str, data: str | None, inputs: str | None, root: Path, transform: str | None, as_json: bool
) -> None:
    """Find the laws of the model that `factory` names and print them.

    Raises:
        InputError: A name leads nowhere, or the inputs have another form.
        ModelError: The factory fails, or the model fails on the inputs.
    """
    with redirect_stdout(sys.stderr):  # the model's own code may print
        subject = load_subject(factory, data, inputs, root, transform=transform)
        laws = find_laws(subject.model, *subject.args, **subject.kwargs)
        structure = discover(subject.model, *subject.args, **subject.kwargs)
    table = rows(laws, [(layer.name, [p.name for p in layer.parameters]) for layer in structure])
    if as_json:
        print_document(_document(factory, subject, laws, table))
    else:
        _print_table(factory, subject, laws, table)


def _document(factory: str, subject: Subject, laws: Laws, table: Sequence[Row]) -> dict[str, Any]:
    values = zip(laws, laws.c().tolist(), laws.normalized_c().tolist(), strict=True)
    return {
        "version": 1,
        "model": factory,
        "inputs": subject.source,
        "count": len(laws),
        "approximate": sum(not law.exact for law in laws),
        "layers": [asdict(row) for row in table],
        "laws": [
            {
                "name": law.name,
                "layer": law.layer,
                "kind": law.kind,
                "exact": law.exact,
                "residual": law.residual,
                "c": c,
                "normalized_c": normalized_c,
                "terms": [_term(term) for term in law.terms],
            }
            for law, c, normalized_c in values
        ],
        "excluded": [asdict(exclusion) for exclusion in laws.excluded],
    }


def _term(term: Term) -> dict[str, Any]:
    return {
        "parameter": term.parameter,
        "kind": term.kind,
        "indices": term.indices,
        "exponent": float(term.exponent),
    }


def _print_table(factory: str, subject: Subject, laws: Laws, table: Sequence[Row]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)  # a layer may be called [red]
    wide = console.width >= _WIDE
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column("layer", overflow="fold")
    for heading in ("laws", "approx.", "largest\nimbalance", "largest\nresidual"):
        grid.add_column(heading, justify="right")
    if wide:
        grid.add_column("missing, and why", overflow="fold")
    for row in table:
        grid.add_row(*_cells(row)[: len(grid.columns)])
    console.print(f"Conservation laws of {factory} on {subject.source}")
    console.print(grid)
    console.print(f"{len(laws)} laws, {sum(row.approximate for row in table)} of them approximate")
    console.print("imbalance: |c| normalized, 0 where a neuron balances, 1 where one side of it is all there is")
    shown = {exclusion for row in table for exclusion in row.missing} if wide else set()
    for exclusion in laws.excluded:
        if exclusion not in shown:
            console.print(f"no law for {exclusion.what}: {exclusion.reason}")


def _cells(row: Row) -> tuple[str, ...]:
    c = "" if row.normalized_c is None else format(row.normalized_c, ".3f")
    residual = "" if row.residual is None else format(row.residual, ".0e")
    return row.layer, str(row.laws), str(row.approximate), c, residual, _remark(row)


def _remark(row: Row) -> str:
    if row.missing:
        return "; ".join(f"{exclusion.what}: {exclusion.reason}" for exclusion in row.missing)
    if row.laws:
        return ""
    return f"weights are in the laws of {', '.join(row.elsewhere)}" if row.elsewhere else "no law moves its weights"
