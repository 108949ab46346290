import torch
from torch_geometric.data import Data

from gatdiag.errors import InputError
from gatdiag.experiments.reproduce import table_8
from gatdiag.experiments.reproduce.reproduction import Task


def test_sizes_are_those_of_the_graphs_that_can_be_had(monkeypatch):
    def load(name, root):
        if name == "PubMed":
            raise InputError("not here")
        edges = {"Cora": 10556}.get(name, 3)
        return Data(x=torch.zeros(2708, 1), edge_index=torch.zeros(2, edges, dtype=torch.long))

    monkeypatch.setattr(table_8, "load_graph", load)
    evidence = table_8.REPRODUCTION.evidence(Task())
    assert evidence.text.startswith("1 of the 8 graphs that could be had are of the published sizes.")
    same = evidence.table.set_index("graph")["same"]
    assert (same["Cora"], same["PubMed"], same["texas.npz"]) == ("yes", "could not be had", "NO")


def test_it_is_said_that_no_graph_could_be_had(monkeypatch):
    def load(name, root):
        raise InputError("not here")

    monkeypatch.setattr(table_8, "load_graph", load)
    evidence = table_8.REPRODUCTION.evidence(Task())
    assert evidence.text.startswith("0 of the 0 graphs that could be had are of the published sizes.")
    assert {*evidence.table["same"]} == {"could not be had"}
