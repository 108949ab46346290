"""What the weights and the optimizer's state of the last checkpoint show, for `gatdiag.diagnosis`."""

import math

import pandas as pd

from gatdiag.checkpoint.inspection import Inspection
from gatdiag.checkpoint.measures import measure
from gatdiag.checkpoint.overview import neuron_weights


def weight_table(inspection: Inspection) -> pd.DataFrame:
    """One row a parameter of the last checkpoint.

    Args:
        inspection: The checkpoints.

    Returns:
        layer, parameter, role, norm; dead_rows and dead_columns (how many are zero; NaN where rows are no neurons);
        second_moment (the norm of Adam's running mean of squared gradients; NaN where the file holds none).
    """
    moments = {} if inspection.optimizer is None else inspection.optimizer.moments
    rows = []
    for layer in inspection.structure:
        neurons = neuron_weights(layer, inspection.measured)
        for info in layer.parameters:
            measured = inspection.measured.get(info.name)
            if measured is not None:
                second = moments.get(info.name, {}).get("exp_avg_sq")
                rows.append(
                    {
                        "layer": layer.name,
                        "parameter": info.name,
                        "role": info.role,
                        "norm": measured.norm,
                        "dead_rows": float(measured.dead_rows) if measured in neurons else math.nan,
                        "dead_columns": float(measured.dead_columns) if measured in neurons else math.nan,
                        "second_moment": math.nan if second is None else measure(second).norm,
                    }
                )
    columns = ["layer", "parameter", "role", "norm", "dead_rows", "dead_columns", "second_moment"]
    return pd.DataFrame(rows, columns=columns)
