"""Named graphs: some that are built in, and the benchmark graphs of the papers.

A name is that of a graph, and may go on with options: ``NAME:KEY=VALUE,KEY=VALUE``, as in ``Cora:missing=1`` or
``csbm:homophily=0.2,nodes=500``. Options of every graph are the attributes of `Variant`; those of a graph that is built
in are the arguments of the function that makes it (`BUILT_IN_GRAPHS`), besides.
"""

import inspect
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch_geometric import datasets
from torch_geometric.data import Data, download_url
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import remove_self_loops, to_undirected

from gatdiag.errors import InputError
from gatdiag.experiments.settings import check_choices
from gatdiag.experiments.synthetic import block_model, contextual_block_model, seeded, tree_neighbors_match

SPLITS: Final = ("train", "val", "test")
_MASKS: Final = ("train_mask", "val_mask", "test_mask")

_PAPERS_SPLIT = 1  # of the ten that come with the heterophilic graphs, the one of "Are GATs Out of Balance?"
_NPZ_URL = "https://raw.githubusercontent.com/yandex-research/heterophilous-graphs/main/data"

Transform: TypeAlias = Literal["normalize-features", "none"]
TRANSFORMS: Final[tuple[Transform, ...]] = get_args(Transform)
BUILT_IN: Final = "sbm"
BUILT_IN_GRAPHS: Final[Mapping[str, Callable[..., Data]]] = MappingProxyType(
    {BUILT_IN: block_model, "csbm": contextual_block_model, "tree": tree_neighbors_match}
)
"""Name -> what makes the graph; needs no files."""


@dataclass(frozen=True)
class Source:
    """Where PyG finds a graph.

    Attributes:
        data_set: Class in `torch_geometric.datasets`; ``npz`` for a file of the repository heterophilous-graphs.
        folder: Its root, below the root of all data.
        name: Its argument of this name, which is the folder of its raw files, too; "" if the class is of one graph.
        options: Its other arguments.
        transform: What most work trains on.
    """

    data_set: str
    folder: str
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    transform: Transform = "none"


_NPZ: Final = (
    *("actor", "chameleon", "cornell", "squirrel", "texas", "wisconsin", "texas_4_classes"),
    *("chameleon_directed", "chameleon_filtered", "chameleon_filtered_directed"),
    *("squirrel_directed", "squirrel_filtered", "squirrel_filtered_directed"),
)
_LARGE: Final = ("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions")
SOURCES: Final[Mapping[str, Source]] = {
    **{
        name: Source("Planetoid", "planetoid", name, {"split": "public"}, "normalize-features")
        for name in ("Cora", "CiteSeer", "PubMed")
    },
    "Actor": Source("Actor", "actor"),
    **{
        name: Source("WikipediaNetwork", "wikipedia", name.lower(), {"geom_gcn_preprocess": True})
        for name in ("Chameleon", "Squirrel")
    },
    **{name: Source("WebKB", "webkb", name.lower()) for name in ("Cornell", "Texas", "Wisconsin")},
    **{name: Source("HeterophilousGraphDataset", "heterophilous", name.lower().replace("-", "_")) for name in _LARGE},
    **{f"{name}.npz": Source("npz", "heterophilous", name) for name in _NPZ},
}


@dataclass(frozen=True)
class Variant:
    """How a graph is changed before anything is trained on it.

    Attributes:
        split: Which of the ten splits that come with a graph, from 0. None: the public split of Cora, CiteSeer and
            PubMed, which have those of Geom-GCN as well; of all others split 1, on which "Are GATs Out of Balance?"
            trained. Its graphs are those called ``.npz``, with their edges as stored.
        edges: ``undirected``: with both directions of each link.
        isolated: ``unmasked``: nodes without a link to another are in no mask, as CiteSeer's in that paper.
        test: ``rest``: all nodes that are for neither training nor validation, as in PairNorm.
        missing: Share of the nodes that are not for training whose features are set to zero, as in semi-supervised
            classification with missing vectors (SSNC-MV).
        missing_seed: Of the draw of these nodes; the global random state is not touched.

    Raises:
        InputError: A value is out of range.

    Source:
        Zhao & Akoglu, "PairNorm: Tackling Oversmoothing in GNNs", ICLR 2020. With the standard test nodes and
        ``--transform none``, missing features are those of "Lipschitz Normalization for Self-Attention Layers"
        (Dasoulas, Scaman, Virmaux, ICML 2021).
    """

    split: int | None = None
    edges: Literal["stored", "undirected"] = "stored"
    isolated: Literal["kept", "unmasked"] = "kept"
    test: Literal["standard", "rest"] = "standard"
    missing: float = 0.0
    missing_seed: int = 0

    def __post_init__(self) -> None:
        """Refuses what no graph has."""
        check_choices(self)
        if self.split is not None and not 0 <= self.split < 10:
            raise InputError(f"Expected split to be from 0 to 9, got {self.split}")
        if not 0 <= self.missing <= 1:
            raise InputError(f"Expected missing to be a share from 0 to 1, got {self.missing}")


def load_graph(name: str, root: str | os.PathLike[str] = "data") -> Data:
    """A graph by name, with features ``x``, labels ``y``, ``edge_index`` and the masks (nodes,) of one split.

    Raw files are looked for below ``root`` where PyG's own classes put them (``planetoid/Cora/raw``, ``actor/raw``,
    ...). Those that are missing are downloaded and then kept there; nothing else is written below ``root``.

    Args:
        name: A key of `BUILT_IN_GRAPHS` or of `SOURCES`, in any case, with options if there are any.
        root: Folder of the data sets.

    Raises:
        InputError: No graph has this name or this option, or it is neither below the root nor can be downloaded.

    Example:
        >>> load_graph("sbm").num_features
        64
        >>> load_graph("csbm:nodes=100,classes=2,missing=1").x.any(1).sum()  # training nodes keep their features
        tensor(40)
    """
    key, options = _parsed(name)
    variant = Variant(**{option: options.pop(option) for option in [*options] if option in _VARIANT})
    if (make := BUILT_IN_GRAPHS.get(key)) is not None:
        if variant.split is not None:
            raise InputError(f"{key} has one split: leave split={variant.split} out")
        return _vary(make(**options), variant)
    return _vary(_from_files(key, Path(root).expanduser(), variant.split), variant)


def prepared_graph(name: str, root: str | os.PathLike[str] = "data", transform: Transform | None = None) -> Data:
    """A graph as one trains on it: `load_graph`, with its usual transform or with another.

    Raises:
        InputError: There is no such graph, or it cannot be had.
    """
    graph = load_graph(name, root)
    if (transform or usual_transform(name)) == "normalize-features":
        graph = NormalizeFeatures()(graph)
    return graph


def usual_transform(name: str) -> Transform:
    """What is done to the features of a graph before most work trains on it.

    The citation graphs of Planetoid (Cora, CiteSeer, PubMed) are bags of words whose rows are divided by their sums
    (`torch_geometric.transforms.NormalizeFeatures`), in GCN, GAT and PyG's examples as in "Are GATs Out of Balance?".
    On the others practice differs (Geom-GCN divides them, too); here they are left as they are, as in that paper.

    Raises:
        InputError: No graph has this name.
    """
    key, _ = _parsed(name)
    return "none" if key in BUILT_IN_GRAPHS else SOURCES[key].transform


def _parsed(name: str) -> tuple[str, dict[str, Any]]:
    """The graph's own name, as the tables have it, and its options as values."""
    called, _, text = name.partition(":")
    key = {known.lower(): known for known in (*BUILT_IN_GRAPHS, *SOURCES)}.get(called.lower())
    if key is None:
        raise InputError(f"no graph is called {called!r}: expected one of {', '.join((*BUILT_IN_GRAPHS, *SOURCES))}")
    own = {} if key in SOURCES else inspect.signature(BUILT_IN_GRAPHS[key]).parameters
    known = {**_VARIANT, **{option: parameter.annotation for option, parameter in own.items()}}
    options = {}
    for part in text.split(",") if text else ():
        option, _, value = part.strip().partition("=")
        if option not in known:
            raise InputError(f"{key} has no option {option!r}: expected KEY=VALUE, with KEY one of {', '.join(known)}")
        if option in options:
            raise InputError(f"{key}: expected {option} once, got it again in {text!r}")
        try:
            options[option] = known[option](value)
        except ValueError as error:
            raise InputError(f"{key}: expected {option} to be a number, got {value!r}") from error
    return key, options


_VARIANT: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {"split": int, "edges": str, "isolated": str, "test": str, "missing": float, "missing_seed": int}
)


def _from_files(name: str, base: Path, split: int | None) -> Data:
    source = SOURCES[name]
    files = Path(source.folder, source.name)
    options = {**source.options, **({"name": source.name} if source.name else {})}
    if source.data_set == "Planetoid" and split is not None:
        options["split"] = "geom-gcn"
    try:
        with TemporaryDirectory(prefix="gatdiag-") as mirror, redirect_stdout(sys.stderr):  # some data sets print
            _link(base, files, Path(mirror))
            is_file = source.data_set == "npz"
            data = _read_npz(Path(mirror, files, "raw", name)) if is_file else _read(source, Path(mirror), options)
            _keep(Path(mirror), files, base)
    except Exception as error:
        raise InputError(
            f"the graph {name} is not to be had: expected its raw files below {base / files} (root=FOLDER sets "
            f"another folder), or a network to download them from ({type(error).__name__}: {error})"
        ) from error
    for mask in _MASKS:
        if data[mask].dim() > 1:
            data[mask] = data[mask][:, _PAPERS_SPLIT if split is None else split]
        data[mask] = data[mask].bool()  # PyG has those of Geom-GCN as uint8, of which ~ is not the others
    return data


def _read(source: Source, base: Path, options: Mapping[str, Any]) -> Data:
    """Torch's random state is kept, from which a data set may draw.

    What PyG makes of the raw files is not kept, so that it would print "Processing..." each time.
    """
    kind = getattr(datasets, source.data_set)
    silent = type(kind.__name__, (kind,), {"log": property(lambda _: False, lambda *_: None)})
    with torch.random.fork_rng(devices=[]):
        data: Data = silent(str(base / source.folder), **options)[0]
    return data


def _read_npz(file: Path) -> Data:
    if not file.exists():
        download_url(f"{_NPZ_URL}/{file.name}", str(file.parent))
    with np.load(file) as arrays:  # pickles are refused
        return Data(
            x=torch.from_numpy(arrays["node_features"]).float(),
            y=torch.from_numpy(arrays["node_labels"]).long(),
            edge_index=torch.from_numpy(arrays["edges"]).long().T.contiguous(),
            **{f"{split}_mask": torch.from_numpy(arrays[f"{split}_masks"]).bool().T for split in SPLITS},
        )


def _vary(graph: Data, variant: Variant) -> Data:
    if variant.edges == "undirected":
        graph.edge_index = to_undirected(graph.edge_index, num_nodes=graph.num_nodes)
    if variant.test == "rest":
        graph.test_mask = ~(graph.train_mask | graph.val_mask)
    if variant.isolated == "unmasked":
        linked = torch.zeros(int(graph.num_nodes or 0), dtype=torch.bool)
        linked[remove_self_loops(graph.edge_index)[0].flatten()] = True
        for mask in _MASKS:
            graph[mask] = graph[mask] & linked
    if variant.missing:
        others = (~graph.train_mask).nonzero().flatten()
        order = torch.randperm(len(others), generator=seeded(variant.missing_seed))
        graph.x = graph.x.clone()
        graph.x[others[order[: round(variant.missing * len(others))]]] = 0
    return graph


def _link(base: Path, folder: Path, mirror: Path) -> None:
    """PyG writes processed/ beside raw/, and downloads what is missing; links let it do both elsewhere."""
    for file in (base / folder).rglob("raw/*"):
        link = mirror / file.relative_to(base)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())


def _keep(mirror: Path, folder: Path, base: Path) -> None:
    """Copy what was downloaded below the root; a file that is there is never replaced."""
    for file in (mirror / folder).rglob("raw/*"):
        kept = base / file.relative_to(mirror)
        if file.is_symlink() or os.path.lexists(kept):
            continue
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, kept)
