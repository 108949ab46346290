"""Relations of a heterogeneous graph that have weights in the model, but no edges."""

from collections.abc import Iterator
from typing import Any

from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.names import is_of_relation, join_names, short
from gatdiag.roles import is_conv


@cause(
    "relation-without-edges",
    "A relation of the graph has no edges",
    rank=247,
    why="what is not connected says nothing; a network trains on what is left",
    figure="smoothing_by_layer",
    falsified_by="The convolution of this relation is called, with an edge_index that is not empty.",
    remedy=Remedy(
        "print(model.conv.convs.keys(), edge_index_dict.keys())  # HeteroConv skips keys that do not match\n"
        "print(edge_type.unique())  # for RGCNConv: 0 to num_relations - 1"
    ),
    needs_training=True,
    is_independent=True,
)
def check_relations(facts: Facts) -> Finding | str | None:
    """A convolution that is never called or gets no edges, though others do, or a relation number that no edge has.

    `HeteroConv` skips relations whose key is not in the `edge_index_dict` that it is given, without a warning.
    """
    edges = facts.signals.get("edges") or {}
    if not any(one["edges"] for one in edges.values()):
        return "no layer was given edges"
    found = [*_uncalled(facts, edges), *_empty(edges), *_unused_numbers(facts)]
    if not found:
        return None
    layers = tuple(dict.fromkeys(layer for layer, _ in found))
    return facts.finding(
        "relation-without-edges",
        f"{found[0][1]}: {join_names([*map(short, layers)], 3)}. The weights of that relation do nothing, and the "
        "network does not see its edges.",
        Evidence("layers with a relation without edges", len(layers), "layers"),
        threshold="Exact: no threshold.",
        layers=layers,
        severity="note" if facts.state == "trained" else "warning",
    )


def _uncalled(facts: Facts, edges: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Convolutions that `HeteroConv` or `to_hetero` named after a relation, of which another one was called."""
    called = {name.rpartition(".")[0] for name in edges if is_of_relation(name)}
    for layer in facts.run.meta["structure"]["layers"]:
        name = layer["name"]
        is_called = layer.get("executed") is not False
        if is_conv(layer) and is_of_relation(name) and name.rpartition(".")[0] in called and not is_called:
            yield name, "The convolution of a relation is never called, though others beside it are"


def _empty(edges: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, one in edges.items():
        if not one["edges"] and is_of_relation(name):
            yield name, "The edge_index of a relation is empty"


def _unused_numbers(facts: Facts) -> Iterator[tuple[str, str]]:
    for name, one in (facts.signals.get("relations") or {}).items():
        if missing := sorted({*range(one["count"])} - {*one["seen"]}):
            yield name, f"Of {one['count']} relations, no edge is of number {join_names([*map(str, missing)], 3)}"
