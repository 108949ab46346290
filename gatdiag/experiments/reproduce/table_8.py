"""Table 8: the sizes of the graphs."""

import pandas as pd

from gatdiag.errors import InputError
from gatdiag.experiments.data import load_graph
from gatdiag.experiments.markdown import table as markdown
from gatdiag.experiments.reproduce.gats import PAPER
from gatdiag.experiments.reproduce.reproduction import Evidence, Reproduction, Task

_PRINTED = {  # nodes, edges
    "Cora": (2708, 10556),
    "CiteSeer": (3327, 9104),
    "PubMed": (19717, 88648),
    "chameleon.npz": (2277, 31371),
    "squirrel.npz": (5201, 198353),
    "actor.npz": (7600, 26659),
    "cornell.npz": (183, 277),
    "texas.npz": (183, 279),
    "wisconsin.npz": (251, 450),
}


def _sizes(task: Task) -> Evidence:
    rows = []
    for name, (nodes, edges) in _PRINTED.items():
        row = {"graph": name, "published_nodes": nodes, "published_edges": edges}
        try:
            graph = load_graph(name, task.root)
        except InputError:  # its message has paths of this machine, and a report is for others, too
            rows.append({**row, "same": "could not be had"})
            continue
        same = "yes" if (graph.num_nodes, graph.num_edges) == (nodes, edges) else "NO"
        rows.append({**row, "nodes": graph.num_nodes, "edges": graph.num_edges, "same": same})
    table = pd.DataFrame(rows)
    had = table[table["same"] != "could not be had"]
    outcome = f"{(had['same'] == 'yes').sum()} of the {len(had)} graphs that could be had are of the published sizes."
    return Evidence(table, f"{outcome}\n\n{markdown(table[['graph', 'published_nodes', 'published_edges', 'same']])}")


REPRODUCTION = Reproduction(
    title="The sizes of the graphs",
    paper=f"{PAPER}, table 8",
    claim="What the graphs that were trained on are: numbers of nodes and edges.",
    evidence=_sizes,
)
