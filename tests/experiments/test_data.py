import shutil
from pathlib import Path

import pytest
import torch
from torch_geometric import datasets

from gatdiag.errors import InputError
from gatdiag.experiments.data import SOURCES, _keep, block_model, load_graph

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
    ("name", "folder", "nodes", "edges", "features"),
    [
        ("Cora", "planetoid/Cora", 2708, 10556, 1433),
        ("citeseer", "planetoid/CiteSeer", 3327, 9104, 3703),
        ("Cornell", "webkb/cornell", 183, 298, 1703),
    ],
)
def test_a_graph_is_read_and_nothing_is_written_beside_it(root, name, folder, nodes, edges, features):
    where = root(folder)
    before = contents(where)
    graph = load_graph(name, root=where)
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (nodes, edges, features)
    assert contents(where) == before


def test_coras_public_split_has_twenty_nodes_a_class(root):
    graph = load_graph("cora", root=root("planetoid/Cora"))
    assert torch.bincount(graph.y[graph.train_mask]).tolist() == [20] * 7
    assert (int(graph.val_mask.sum()), int(graph.test_mask.sum())) == (500, 1000)


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
    def read(root, **options):
        print("Processing...")  # noqa: T201
        return [block_model()]

    monkeypatch.setattr(datasets, "Actor", read)
    load_graph("actor", tmp_path)
    assert capsys.readouterr() == ("", "Processing...\n")


def test_a_file_that_is_there_is_never_replaced(tmp_path):
    mirror, base = tmp_path / "mirror", tmp_path / "base"
    for folder, text in [(mirror, "new"), (base, "old")]:
        (folder / "set" / "raw").mkdir(parents=True)
        (folder / "set" / "raw" / "both").write_text(text)
    (mirror / "set" / "raw" / "fresh").write_text("new")
    (mirror / "set" / "raw" / "link").symlink_to(base / "set" / "raw" / "both")
    _keep(mirror, "set", base)
    kept = {path.name: path.read_text() for path in (base / "set" / "raw").iterdir()}
    assert kept == {"both": "old", "fresh": "new"}


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


@pytest.fixture(scope="module")
def built_in():
    return block_model()


def test_it_is_the_same_each_time_and_leaves_the_random_state(built_in):
    state = torch.get_rng_state()
    again = block_model()
    assert torch.equal(again.x, built_in.x)
    assert torch.equal(again.edge_index, built_in.edge_index)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(block_model(seed=1).x, built_in.x)


def test_links_have_the_chances_of_their_classes(built_in):
    pairs = {(u, v) for u, v in built_in.edge_index.T.tolist()}
    assert all((v, u) in pairs and u != v for u, v in pairs)
    inside = sum(int(built_in.y[u] == built_in.y[v]) for u, v in pairs) / (4 * 100 * 99)
    across = sum(int(built_in.y[u] != built_in.y[v]) for u, v in pairs) / (4 * 100 * 300)
    assert inside == pytest.approx(0.06, rel=0.1)
    assert across == pytest.approx(0.003, rel=0.1)


def test_words_have_the_chances_of_their_classes(built_in):
    own = torch.cat([built_in.x[100 * k : 100 * k + 100, 16 * k : 16 * k + 16].flatten() for k in range(4)])
    foreign = (built_in.x.sum() - own.sum()) / (built_in.x.numel() - own.numel())
    assert float(own.mean()) == pytest.approx(0.2, rel=0.1)
    assert float(foreign) == pytest.approx(0.03, rel=0.1)


def test_the_split_is_disjoint_balanced_and_whole(built_in):
    masks = torch.stack([built_in.train_mask, built_in.val_mask, built_in.test_mask])
    assert masks.sum(0).eq(1).all()
    assert [torch.bincount(built_in.y[mask]).tolist() for mask in masks] == [[20] * 4, [25] * 4, [55] * 4]
