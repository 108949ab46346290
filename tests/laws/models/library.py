"""PyTorch Geometric's own models, with every norm and every jumping knowledge they offer, for the zoo."""

from functools import partial
from typing import Any

import torch
from torch_geometric import nn as gnn
from torch_geometric.utils import degree

from tests.laws.models.graph import IN, OUT, Case, Factory, batch, edges, features

NORMS = (
    "batch_norm",
    "instance_norm",
    "layer_norm",
    "graph_norm",
    "graph_size_norm",
    "pair_norm",
    "mean_subtraction_norm",
    "diff_group_norm",
)
JUMPS = ("last", "cat", "max", "lstm")
WITHOUT_WIDTH = {"graph_size_norm": gnn.GraphSizeNorm, "mean_subtraction_norm": gnn.MeanSubtractionNorm}
NORM_OPTIONS: dict[str, dict[str, Any]] = {"diff_group_norm": {"groups": 2}}


def options(kind: str) -> dict[str, Any]:
    """What each model needs or has besides the common arguments."""
    if kind != "PNA":
        return {"GAT": {"v2": True}}.get(kind, {})
    counts = torch.bincount(degree(edges()[1], dtype=torch.long))
    return {"aggregators": ["mean", "std", "max"], "scalers": ["identity", "amplification"], "deg": counts}


def build(kind: str, width: int = 3, **more: Any) -> Case:
    model = getattr(gnn, kind)(IN, width, num_layers=3, out_channels=OUT, **options(kind), **more)
    return Case(model, (features(), edges()))


def normed(kind: str, norm: str, **more: Any) -> Case:
    """By name where the library can resolve it; message norm needs two inputs, so no model can use it."""
    if norm in WITHOUT_WIDTH:
        return build(kind, norm=WITHOUT_WIDTH[norm](), **more)
    return build(kind, norm=norm, norm_kwargs=NORM_OPTIONS.get(norm), **more)


def small(kind: str, jk: str | None = None, **more: Any) -> Case:
    return build(kind, 2 if kind == "PNA" or jk == "lstm" else 3, jk=jk, **more)


def batched(norm: str) -> Case:
    case = normed("GCN", norm)
    return Case(case.model, case.args, {"batch": batch(), "batch_size": 2})


KINDS = ("GCN", "GraphSAGE", "GIN", "GAT", "PNA", "EdgeCNN")
ZOO: dict[str, Factory] = {
    **{kind: partial(small, kind) for kind in KINDS},
    **{f"GCN {jk}": partial(small, "GCN", jk=jk) for jk in JUMPS},
    **{f"GIN {norm}": partial(normed, "GIN", norm) for norm in NORMS},
    **{f"GCN {norm} two graphs": partial(batched, norm) for norm in ("instance_norm", "layer_norm", "diff_group_norm")},
    "GCN graph_norm cat": partial(normed, "GCN", "graph_norm", jk="cat"),
    "GCN act first layer_norm": partial(normed, "GCN", "layer_norm", act_first=True),
    "GraphSAGE instance_norm": partial(normed, "GraphSAGE", "instance_norm"),
    "GAT v1": lambda: Case(gnn.GAT(IN, 4, 3, OUT, heads=2), (features(), edges())),
    "GAT lstm": partial(small, "GAT", jk="lstm"),
}
