import shutil
from pathlib import Path

import pytest
import torch

from gatdiag.errors import InputError
from gatdiag.experiments.data import SOURCES, load_graph

SHARED = Path(__file__).parents[3] / "shared" / "data"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="no folder shared/data beside the repository")


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@shared
@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features"),
    [("Cora", 2708, 10556, 1433), ("citeseer", 3327, 9104, 3703), ("Cornell", 183, 298, 1703)],
)
def test_a_graph_is_read_and_nothing_is_written_beside_it(name, nodes, edges, features):
    before = files(SHARED)
    graph = load_graph(name, root=SHARED)
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (nodes, edges, features)
    assert files(SHARED) == before


@shared
def test_coras_public_split_has_twenty_nodes_a_class():
    graph = load_graph("cora", root=SHARED)
    assert torch.bincount(graph.y[graph.train_mask]).tolist() == [20] * 7
    assert (int(graph.val_mask.sum()), int(graph.test_mask.sum())) == (500, 1000)


@shared
def test_what_is_downloaded_is_kept_below_the_root(tmp_path, monkeypatch):
    def download(data_set):
        shutil.copytree(SHARED / "webkb" / "texas" / "raw", data_set.raw_dir, dirs_exist_ok=True)

    monkeypatch.setattr("torch_geometric.datasets.WebKB.download", download)
    assert load_graph("Texas", root=tmp_path).num_nodes == 183
    assert {path.name for path in (tmp_path / "webkb" / "texas").iterdir()} == {"raw"}
    monkeypatch.setattr("torch_geometric.datasets.WebKB.download", None)
    assert load_graph("Texas", root=tmp_path).num_nodes == 183


def test_a_download_that_fails_leaves_nothing_and_says_so(tmp_path, monkeypatch):
    def download(data_set):
        (Path(data_set.raw_dir) / "half").touch()
        raise OSError("no network")

    monkeypatch.setattr("torch_geometric.datasets.Planetoid.download", download)
    with pytest.raises(InputError, match=r"graph Cora is not to be had.*planetoid/Cora.*OSError: no network"):
        load_graph("Cora", root=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match=r"no graph is called 'Corra'.*sbm, Cora") as raised:
        load_graph("Corra")
    assert all(name in str(raised.value) for name in SOURCES)


def test_the_built_in_graph_needs_no_root():
    assert load_graph("SBM", root="/nowhere").num_nodes == 400
