"""What stored weights show beyond a run's tables: zero rows and columns, parameters that no gradient reached."""

from collections.abc import Iterator

import pandas as pd

from gatdiag.diagnosis.finding import Evidence, Finding
from gatdiag.names import listed, short
from gatdiag.summary import FEATURES


def dead_weights(weights: pd.DataFrame) -> Iterator[Finding]:
    """Layers with neurons that nothing leads into, or inputs that are not read. Flagged from the first one.

    Args:
        weights: One row a parameter: layer, parameter, role, norm, dead_rows, dead_columns (rows and columns that are
            zero; NaN where they are no neurons).
    """
    matrices = weights[weights["role"] == FEATURES]
    for layer, table in matrices.groupby("layer", sort=False):
        living = table[table["norm"] > 0]
        rows, columns = (int(living[name].sum()) for name in ("dead_rows", "dead_columns"))
        zero = bool((table["norm"] == 0).any())
        what = [f"{rows} neurons that nothing leads into"] * (rows > 0)
        what += [f"{columns} inputs that are not read"] * (columns > 0)
        what += ["a weight matrix that is zero"] * zero
        if what:
            yield Finding(
                "dead-weights",
                "warning" if rows else "note",
                "Dead weights",
                f"Layer {short(str(layer))} has {', '.join(what)}.",
                (Evidence("rows that are zero", rows, "neurons"), Evidence("columns that are zero", columns, "inputs")),
                "Flagged from the first one.",
                (str(layer),),
                remedy=f"torch.nn.init.xavier_uniform_(model.get_submodule({str(layer)!r}).weight)  # and train again",
                falsified_by="The rows were pruned, or the inputs are padding, on purpose.",
            )


def no_gradient(weights: pd.DataFrame) -> Iterator[Finding]:
    """Parameters whose second moment in Adam, a sum of squared gradients, is zero: no gradient ever reached them.

    Args:
        weights: One row a parameter: layer, parameter, second_moment (NaN where the optimizer keeps none).
    """
    known = weights.dropna(subset=["second_moment"])
    never = known[known["second_moment"] == 0]
    if len(never):
        yield Finding(
            "parameters-without-gradient",
            "warning",
            "Parameters without a gradient",
            f"No gradient ever reached {len(never)} of {len(known)} parameters, for Adam's second moment is zero: "
            f"{listed(map(short, never['parameter']))}.",
            (Evidence("parameters that no gradient reached", len(never), "parameters"),),
            "Flagged from the first one.",
            tuple(dict.fromkeys(never["layer"])),
            tuple(never["parameter"]),
            remedy="print([name for name, p in model.named_parameters() if p.grad is None])  # after loss.backward()",
            falsified_by="p.grad of these parameters is not None and not zero after loss.backward().",
        )
