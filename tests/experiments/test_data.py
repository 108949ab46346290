import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric import datasets
from torch_geometric.data import InMemoryDataset

from gatdiag.errors import InputError
from gatdiag.experiments.data import SOURCES, _copy_downloads, load_graph, prepared_graph
from gatdiag.experiments.synthetic import block_model

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def root(tmp_path):
    """A function that copies raw files below a root of its own: no test touches those beside the repository."""

    def copy(folder):
        if not any(path.is_file() for path in (SHARED / folder).rglob("raw/*")):
            pytest.skip(f"no raw files in shared/data/{folder} beside the repository")
        shutil.copytree(SHARED / folder, tmp_path / "root" / folder, copy_function=shutil.copyfile)
        return tmp_path / "root"

    return copy


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


@pytest.mark.parametrize(
    ("name", "folder", "nodes", "edges", "features", "split"),
    [  # table 8 of "Are GATs Out of Balance?" for Cora, CiteSeer and the six of the npz files; PyG's documentation
        ("Cora", "planetoid/Cora", 2708, 10556, 1433, (140, 500, 1000)),
        ("cora:split=3", "planetoid/Cora", 2708, 10556, 1433, (1192, 796, 497)),
        ("citeseer", "planetoid/CiteSeer", 3327, 9104, 3703, (120, 500, 1000)),
        ("Cornell", "webkb/cornell", 183, 298, 1703, (87, 59, 37)),
        ("minesweeper", "heterophilous/minesweeper", 10000, 78804, 7, (5000, 2500, 2500)),
        ("cornell.npz", "heterophilous/cornell", 183, 277, 1703, (87, 59, 37)),
        ("Texas.npz", "heterophilous/texas", 183, 279, 1703, (87, 59, 37)),
        ("texas.npz:edges=undirected", "heterophilous/texas", 183, 558, 1703, (87, 59, 37)),
        ("wisconsin.npz", "heterophilous/wisconsin", 251, 450, 1703, (120, 80, 51)),
        ("chameleon.npz", "heterophilous/chameleon", 2277, 31371, 2325, (1092, 729, 456)),
        ("squirrel.npz", "heterophilous/squirrel", 5201, 198353, 2089, (2496, 1664, 1041)),
        ("actor.npz", "heterophilous/actor", 7600, 26659, 932, (3648, 2432, 1520)),
    ],
)
def test_a_graph_is_read_and_nothing_is_written_beside_it(root, name, folder, nodes, edges, features, split):
    where = root(folder)
    before = contents(where)
    graph = load_graph(name, root=where)
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (nodes, edges, features)
    masks = torch.stack([graph.train_mask, graph.val_mask, graph.test_mask])
    assert tuple(masks.sum(1).tolist()) == split
    assert masks.sum(0).le(1).all()
    assert contents(where) == before


def test_of_ten_splits_the_papers_is_taken_or_the_one_that_is_asked_for(root):
    where = root("heterophilous/texas")
    arrays = np.load(where / "heterophilous" / "texas" / "raw" / "texas.npz")
    for name, number in (("texas.npz", 1), ("texas.npz:split=7", 7)):
        graph = load_graph(name, root=where)
        for split in ("train", "val", "test"):
            assert graph[f"{split}_mask"].tolist() == arrays[f"{split}_masks"][number].astype(bool).tolist()
    assert torch.equal(graph.x, torch.tensor(arrays["node_features"]))
    assert [*zip(*graph.edge_index.tolist(), strict=True)] == [tuple(edge) for edge in arrays["edges"].tolist()]


def test_citeseers_isolated_nodes_may_be_in_no_mask(root):
    where = root("planetoid/CiteSeer")
    graph, unmasked = load_graph("CiteSeer", where), load_graph("CiteSeer:isolated=unmasked", where)
    linked = {node for u, v in graph.edge_index.T.tolist() if u != v for node in (u, v)}
    assert graph.num_nodes - len(linked) == 48
    assert unmasked.num_nodes == 3327
    for mask in ("train_mask", "val_mask", "test_mask"):
        expected = [node for node in graph[mask].nonzero().flatten().tolist() if node in linked]
        assert unmasked[mask].nonzero().flatten().tolist() == expected


@pytest.mark.parametrize(("missing", "count"), [(0.5, 160), (1, 320), (0.2, 64)])
def test_missing_features_are_of_nodes_that_are_not_for_training(missing, count):
    state = torch.get_rng_state()
    graph = load_graph(f"sbm:missing={missing}")
    assert torch.equal(torch.get_rng_state(), state)
    plain = block_model()
    changed = (graph.x != plain.x).any(1) | ((graph.x == 0).all(1) & (plain.x == 0).all(1))
    assert not (changed & plain.train_mask).any()
    gone = (graph.x == 0).all(1) & ~plain.train_mask
    assert int(gone.sum()) in range(count, count + 3)  # a node may have no word by itself
    assert torch.equal(graph.x[~gone], plain.x[~gone])
    assert torch.equal(graph.x, load_graph(f"sbm:missing={missing},missing_seed=0").x)
    assert missing == 1 or not torch.equal(graph.x, load_graph(f"sbm:missing={missing},missing_seed=1").x)


def test_training_nodes_of_any_split_keep_their_features(root):
    graph = load_graph("Cora:split=3,missing=1", root("planetoid/Cora"))
    assert torch.equal(graph.x.any(1), graph.train_mask)


def test_rows_of_citation_graphs_sum_to_one(root):
    where = root("planetoid/Cora")
    plain = prepared_graph("Cora", where, "none").x
    rows = [[value / max(sum(row), 1) for value in row] for row in plain[:20].tolist()]
    torch.testing.assert_close(prepared_graph("cora:missing=0", where).x[:20], torch.tensor(rows))
    sbm = block_model().x
    assert torch.equal(prepared_graph("sbm").x, sbm)
    sums = prepared_graph("sbm", transform="normalize-features").x.sum(1)
    torch.testing.assert_close(sums, sbm.any(1).float())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sbm:deepness=3", r"sbm has no option 'deepness'.*missing.*nodes"),
        ("Cora:homophily=0.3", "Cora has no option 'homophily'"),
        ("csbm:nodes=many", "expected nodes to be a number, got 'many'"),
        ("sbm:nodes=200,nodes=300", "expected nodes once, got it twice"),
        ("sbm:missing=2", r"missing.*from 0 to 1, got 2"),
        ("sbm:split=1", "sbm has only one split"),
        ("Cora:split=10", "split.*from 0 to 9"),
        ("sbm:edges=both", "edges to be one of stored, undirected, got 'both'"),
        ("csbm:nodes=50", "46 nodes or more"),
        ("csbm:homophily=1.5", "homophily from 0 to 1"),
        ("sbm:classes=0", "got nodes=400, classes=0"),
        ("csbm:degree=nan", "degree=nan"),
        ("csbm:signal=inf", "a finite signal.*signal=inf"),
        ("csbm:seed=99999999999999999999", r"seed to be from 0 to 2\*\*63 - 1, got 99999999999999999999"),
        ("csbm:degree=900", "a degree that 1000 nodes can have"),
        ("tree:depth=1", "depth to be from 2 to 8"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        load_graph(name)


def test_an_npz_file_is_downloaded_where_it_is_not(root, tmp_path, monkeypatch):
    source = root("heterophilous/texas") / "heterophilous" / "texas" / "raw" / "texas.npz"
    monkeypatch.setattr("gatdiag.experiments.data.download_url", lambda url, folder: _copied(source, folder, url))
    assert load_graph("texas.npz", tmp_path / "new").num_edges == 279
    assert (tmp_path / "new" / "heterophilous" / "texas" / "raw" / "texas.npz").read_bytes() == source.read_bytes()


def _copied(source, folder, url):
    assert url.endswith("/texas.npz")
    Path(folder).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, Path(folder) / "texas.npz")


def test_what_is_downloaded_is_kept_below_the_root(root, tmp_path, monkeypatch):
    source = root("webkb/texas") / "webkb" / "texas" / "raw"

    def download(data_set):
        shutil.copytree(source, data_set.raw_dir, dirs_exist_ok=True)

    monkeypatch.setattr("torch_geometric.datasets.WebKB.download", download)
    assert load_graph("Texas", root=tmp_path / "new").num_nodes == 183
    assert {path.name for path in (tmp_path / "new" / "webkb" / "texas").iterdir()} == {"raw"}
    monkeypatch.setattr("torch_geometric.datasets.WebKB.download", None)
    assert load_graph("Texas", root=tmp_path / "new").num_nodes == 183


def test_what_is_printed_while_a_graph_is_read_is_kept_from_standard_output(tmp_path, monkeypatch, capsys):
    class Printing(list):
        def __init__(self, root, **options):
            print("Half a minute...")  # noqa: T201
            super().__init__([block_model()])

    monkeypatch.setattr(datasets, "Actor", Printing)
    load_graph("actor", tmp_path)
    assert capsys.readouterr() == ("", "Half a minute...\n")


def test_pyg_does_not_print_that_it_processes(tmp_path, monkeypatch, capsys):
    class Processed(InMemoryDataset):
        processed_file_names = "data.pt"

        def __init__(self, root):
            super().__init__(root)
            self.load(self.processed_paths[0])

        def process(self):
            self.save([block_model()], self.processed_paths[0])

    monkeypatch.setattr(datasets, "Actor", Processed)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # in which PyG never prints
    assert load_graph("actor", tmp_path).num_nodes == 400
    assert capsys.readouterr() == ("", "")


def test_a_file_that_is_there_is_never_replaced(tmp_path):
    mirror, base = tmp_path / "mirror", tmp_path / "base"
    for folder, text in [(mirror, "new"), (base, "old")]:
        (folder / "set" / "raw").mkdir(parents=True)
        (folder / "set" / "raw" / "both").write_text(text)
    (mirror / "set" / "raw" / "fresh").write_text("new")
    (mirror / "set" / "raw" / "link").symlink_to(base / "set" / "raw" / "both")
    _copy_downloads(mirror, Path("set"), base)
    kept = {path.name: path.read_text() for path in (base / "set" / "raw").iterdir()}
    assert kept == {"both": "old", "fresh": "new"}


def test_a_download_that_fails_leaves_nothing_and_says_so(tmp_path, monkeypatch):
    def download(data_set):
        (Path(data_set.raw_dir) / "half").touch()
        raise OSError("no network")

    monkeypatch.setattr("torch_geometric.datasets.Planetoid.download", download)
    with pytest.raises(
        InputError, match=r"graph Cora cannot be loaded.*planetoid/Cora.*names another folder.*OSError: no network"
    ):
        load_graph("Cora", root=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match=r"no graph is called 'Corra'.*sbm, csbm, tree, Cora") as raised:
        load_graph("Corra")
    assert all(name in str(raised.value) for name in SOURCES)
