"""`gatdiag laws`: the laws of a model, as a table or as JSON.

The JSON document has these keys; missing values, NaN and infinity are null:

- ``version``: 2, the version of this format
- ``model``, ``inputs``: as given on the command line; a graph with its feature transform
- ``count``, ``approximate``: number of laws, and of those that hold only up to an epsilon in the model
- ``layers``: for each layer ``layer``, ``laws``, ``approximate``, ``normalized_c`` (largest magnitude; 0 if every
  neuron is balanced), ``residual`` (largest of the numerical check), ``remark`` (what has no law, and why)
- ``laws``: for each law ``name``, ``layer``, ``kind``, ``exact``, ``residual``, ``c``, ``normalized_c`` and ``terms``,
  each with ``parameter``, ``kind``, ``indices`` and ``exponent``
- ``excluded``: for each exclusion ``what`` and ``reason``
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gatdiag.cli.options import DATA_FOLDER, AsJson, Data, Factory, Inputs, Root, Transform
from gatdiag.cli.printing import format_number, make_table, plain_console, print_json

if TYPE_CHECKING:
    from gatdiag.laws import Laws


def laws(
    factory: Factory,
    data: Data = None,
    inputs: Inputs = None,
    root: Root = DATA_FOLDER,
    transform: Transform = None,
    as_json: AsJson = False,
) -> None:
    """Print the conservation laws of a model, layer by layer.

    Without --data and --inputs the model runs on the built-in graph. The random seed is 0. The current directory is
    importable. What the user's code prints goes to standard error.
    """
    from gatdiag.cli.model_case import load_case
    from gatdiag.laws import find_laws
    from gatdiag.structure import discover

    with redirect_stdout(sys.stderr):
        case = load_case(factory, data, inputs, root, transform=transform)
        found = find_laws(case.model, *case.args, **case.kwargs)
        structure = discover(case.model, *case.args, **case.kwargs)
    table = layer_rows(found, {layer.name: [info.name for info in layer.parameters] for layer in structure})
    if as_json:
        print_json(_make_document(factory, case.source, found, table))
    else:
        _print_table(f"Conservation laws of {factory} on {case.source}", found, table)


def layer_rows(found: Laws, layers: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """One row per layer (its name -> its parameters), then one per other place of laws, such as a residual stream."""
    numbers = found.by_layer()
    magnitude = found.normalized_c().abs()
    table = []
    for name in dict.fromkeys([*layers, *numbers]):
        at = list(numbers.get(name, []))
        own, parameters = [found[number] for number in at], layers.get(name, ())
        users = dict.fromkeys(law.layer for law in found if any(term.parameter in parameters for term in law.terms))
        missing = "; ".join(str(one) for one in found.excluded if _mentions(one.what, name))
        elsewhere = f"weights are in the laws of {', '.join(users)}" if users else "no law moves its weights"
        row = {
            "layer": name,
            "laws": len(own),
            "approximate": sum(not law.exact for law in own),
            "normalized_c": float(magnitude[at].max()) if own else None,
            "residual": max((law.residual for law in own), default=None),
            "remark": missing or ("" if own else elsewhere),
        }
        table.append(row)
    return table


def _mentions(text: str, layer: str) -> bool:
    """True if the text names the layer, or something inside it, as a word."""
    return any(word == layer or word.startswith(f"{layer}.") for word in re.split(r"[\s(),\[\]]+", text))


def _make_document(factory: str, source: str, found: Laws, table: Sequence[dict[str, Any]]) -> dict[str, Any]:
    values = zip(found, found.c().tolist(), found.normalized_c().tolist(), strict=True)
    return {
        "version": 2,
        "model": factory,
        "inputs": source,
        "count": len(found),
        "approximate": sum(not law.exact for law in found),
        "layers": table,
        "laws": [
            {
                **{key: getattr(law, key) for key in ("name", "layer", "kind", "exact", "residual")},
                "c": c,
                "normalized_c": normalized_c,
                "terms": [
                    {
                        **{key: getattr(term, key) for key in ("parameter", "kind", "indices")},
                        "exponent": float(term.exponent),
                    }
                    for term in law.terms
                ],
            }
            for law, c, normalized_c in values
        ],
        "excluded": [asdict(exclusion) for exclusion in found.excluded],
    }


def _print_table(title: str, found: Laws, table: Sequence[dict[str, Any]]) -> None:
    console = plain_console()
    lines = make_table(["layer"], ["laws", "approx.", "largest\nimbalance", "largest\nresidual"])
    for row in table:
        counts = str(row["laws"]), str(row["approximate"])
        lines.add_row(
            row["layer"], *counts, format_number(row["normalized_c"], ".3f"), format_number(row["residual"], ".0e")
        )
    console.print(title)
    console.print(lines)
    console.print(f"{len(found)} laws, {sum(row['approximate'] for row in table)} of them approximate")
    console.print("imbalance: normalized |c|, 0 for a balanced neuron, 1 if one side of it is zero")
    for row in table:
        if row["remark"]:
            console.print(f"{row['layer']}: {row['remark']}")
    for exclusion in found.excluded:
        if not any(_mentions(exclusion.what, row["layer"]) for row in table):
            console.print(f"no law for {exclusion}")
