"""Named graphs: built-in ones, and the benchmark graphs of the papers.

Options may follow the name, ``NAME:KEY=VALUE,KEY=VALUE``, as in ``Cora:missing=1`` or
``csbm:homophily=0.2,nodes=500``. Every graph has the options of `Variant`; a built-in graph also has the arguments of
the function in `BUILT_IN_GRAPHS` that makes it.
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
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch_geometric import datasets
from torch_geometric.data import Data, download_url
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import remove_self_loops, to_undirected

from gatdiag.errors import InputError
from gatdiag.experiments.settings import check_choices
from gatdiag.experiments.synthetic import block_model, contextual_block_model, make_generator, tree_neighbors_match

SPLITS: Final = ("train", "val", "test")
_MASKS: Final = ("train_mask", "val_mask", "test_mask")

_PAPER_SPLIT = 1  # of the ten splits of the heterophilic graphs, the one in "Are GATs Out of Balance?"
_NPZ_URL = "https://raw.githubusercontent.com/yandex-research/heterophilous-graphs/main/data"

Transform: TypeAlias = Literal["normalize-features", "none"]
TRANSFORMS: Final[tuple[Transform, ...]] = get_args(Transform)
BUILT_IN: Final = "sbm"
BUILT_IN_GRAPHS: Final[Mapping[str, Callable[..., Data]]] = {
    BUILT_IN: block_model,
    "csbm": contextual_block_model,
    "tree": tree_neighbors_match,
}
"""Functions that make the built-in graphs, by name."""


@dataclass(frozen=True)
class Source:
    """Where PyG finds a graph.

    Attributes:
        data_set: Class in `torch_geometric.datasets`, or ``npz`` for a file of the repository heterophilous-graphs.
        folder: Root of the data set, below the data set folder.
        name: Argument ``name`` of the class, and folder of its raw files; "" if the class has a single graph.
        options: Other arguments of the class.
        transform: The usual feature transform.
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
    """Changes to a graph before training.

    Attributes:
        split: Index of one of the ten splits of a graph; for Cora, CiteSeer and PubMed, those of Geom-GCN. None: the
            public split of these three, and split 1 of all others, which "Are GATs Out of Balance?" trained on. The
            graphs of that paper are those called ``.npz``, with edges as stored.
        edges: ``undirected``: add the reverse of each edge.
        isolated: ``unmasked``: remove isolated nodes from all masks, as for CiteSeer in that paper.
        missing: Share of the nodes outside of the training mask whose features are set to zero, as in semi-supervised
            classification with missing vectors (SSNC-MV).
        missing_seed: Seed for the choice of these nodes; the global random state is not touched.

    Raises:
        InputError: A value is out of range.

    Source:
        Zhao & Akoglu, "PairNorm: Tackling Oversmoothing in GNNs", ICLR 2020. With ``--transform none``, missing
        features are those of "Lipschitz Normalization for Self-Attention Layers" (Dasoulas, Scaman, Virmaux, ICML
        2021).
    """

    split: int | None = None
    edges: Literal["stored", "undirected"] = "stored"
    isolated: Literal["kept", "unmasked"] = "kept"
    missing: float = 0.0
    missing_seed: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        check_choices(self)
        if self.split is not None and not 0 <= self.split < 10:
            raise InputError(f"Expected split to be from 0 to 9, got {self.split}")
        if not 0 <= self.missing <= 1:
            raise InputError(f"Expected missing to be from 0 to 1, got {self.missing}")


def load_graph(name: str, root: str | os.PathLike[str] = "data") -> Data:
    """A graph by name, with features ``x``, labels ``y``, ``edge_index`` and the masks (nodes,) of one split.

    Raw files are read from ``root``, where PyG's classes store them (``planetoid/Cora/raw``, ``actor/raw``, ...).
    Missing ones are downloaded and stored there; nothing else is written below ``root``.

    Args:
        name: A key of `BUILT_IN_GRAPHS` or `SOURCES`, in upper or lower case, optionally with options.
        root: Data set folder; ``--root`` of commands.

    Raises:
        InputError: There is no such graph or option, or the graph is neither below the root nor can be downloaded.

    Example:
        >>> load_graph("sbm").num_features
        64
        >>> load_graph("csbm:nodes=100,classes=2,missing=1").x.any(1).sum()  # training nodes keep their features
        tensor(40)
    """
    key, options = _parse_name(name)
    variant = Variant(**{option: options.pop(option) for option in [*options] if option in _VARIANT})
    if (make := BUILT_IN_GRAPHS.get(key)) is not None:
        if variant.split is not None:
            raise InputError(f"{key} has only one split: leave out split={variant.split}")
        return _apply_variant(make(**options), variant)
    return _apply_variant(_load_files(key, Path(root).expanduser(), variant.split), variant)


def prepared_graph(name: str, root: str | os.PathLike[str] = "data", transform: Transform | None = None) -> Data:
    """A graph from `load_graph` after a feature transform, by default the usual one.

    Raises:
        InputError: There is no such graph, or it cannot be loaded.
    """
    graph = load_graph(name, root)
    if (transform or usual_transform(name)) == "normalize-features":
        graph = NormalizeFeatures()(graph)
    return graph


def usual_transform(name: str) -> Transform:
    """The usual feature transform of a graph.

    Rows of the citation graphs of Planetoid (Cora, CiteSeer, PubMed), which are bags of words, are divided by their
    sums (`torch_geometric.transforms.NormalizeFeatures`), as in GCN, GAT, PyG's examples and "Are GATs Out of
    Balance?". For other graphs practice differs (Geom-GCN divides them, too); here they are unchanged, as in that
    paper.

    Raises:
        InputError: There is no such graph.
    """
    key, _ = _parse_name(name)
    return "none" if key in BUILT_IN_GRAPHS else SOURCES[key].transform


def _parse_name(name: str) -> tuple[str, dict[str, Any]]:
    """The graph's key in `BUILT_IN_GRAPHS` or `SOURCES`, and the values of its options."""
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
            raise InputError(f"{key}: expected {option} once, got it twice in {text!r}")
        try:
            options[option] = known[option](value)
        except ValueError as error:
            raise InputError(f"{key}: expected {option} to be a number, got {value!r}") from error
    return key, options


_VARIANT: Final[Mapping[str, Callable[[str], Any]]] = {
    "split": int,
    "edges": str,
    "isolated": str,
    "missing": float,
    "missing_seed": int,
}


def _load_files(name: str, base: Path, split: int | None) -> Data:
    source = SOURCES[name]
    files = Path(source.folder, source.name)
    options = {**source.options, **({"name": source.name} if source.name else {})}
    if source.data_set == "Planetoid" and split is not None:
        options["split"] = "geom-gcn"
    try:
        with TemporaryDirectory(prefix="gatdiag-") as mirror, redirect_stdout(sys.stderr):  # some data sets print
            _link_raw_files(base, files, Path(mirror))
            is_file = source.data_set == "npz"
            data = _read_npz(Path(mirror, files, "raw", name)) if is_file else _read(source, Path(mirror), options)
            _copy_downloads(Path(mirror), files, base)
    except Exception as error:
        raise InputError(
            f"the graph {name} cannot be loaded: expected its raw files in {base / files / 'raw'} (root=, or --root, "
            f"names another folder than {base}), or a network to download them ({type(error).__name__}: {error})"
        ) from error
    for mask in _MASKS:
        if data[mask].dim() > 1:
            data[mask] = data[mask][:, _PAPER_SPLIT if split is None else split]
        data[mask] = data[mask].bool()  # those of Geom-GCN are uint8, for which ~ is bitwise
    return data


def _read(source: Source, base: Path, options: Mapping[str, Any]) -> Data:
    """Load a data set without changing torch's random state, and without "Processing..." on standard error."""
    kind = getattr(datasets, source.data_set)
    silent = type(kind.__name__, (kind,), {"log": property(lambda _: False, lambda *_: None)})
    with torch.random.fork_rng(devices=[]):
        data: Data = silent(str(base / source.folder), **options)[0]
    return data


def _read_npz(file: Path) -> Data:
    if not file.exists():
        download_url(f"{_NPZ_URL}/{file.name}", str(file.parent))
    with np.load(file) as arrays:  # refuses pickles
        return Data(
            x=torch.from_numpy(arrays["node_features"]).float(),
            y=torch.from_numpy(arrays["node_labels"]).long(),
            edge_index=torch.from_numpy(arrays["edges"]).long().T.contiguous(),
            **{f"{split}_mask": torch.from_numpy(arrays[f"{split}_masks"]).bool().T for split in SPLITS},
        )


def _apply_variant(graph: Data, variant: Variant) -> Data:
    if variant.edges == "undirected":
        graph.edge_index = to_undirected(graph.edge_index, num_nodes=graph.num_nodes)
    if variant.isolated == "unmasked":
        linked = torch.zeros(int(graph.num_nodes or 0), dtype=torch.bool)
        linked[remove_self_loops(graph.edge_index)[0].flatten()] = True
        for mask in _MASKS:
            graph[mask] = graph[mask] & linked
    if variant.missing:
        others = (~graph.train_mask).nonzero().flatten()
        order = torch.randperm(len(others), generator=make_generator(variant.missing_seed))
        graph.x = graph.x.clone()
        graph.x[others[order[: round(variant.missing * len(others))]]] = 0
    return graph


def _link_raw_files(base: Path, folder: Path, mirror: Path) -> None:
    """Link raw files into a temporary folder, into which PyG downloads missing ones and writes processed/."""
    for file in (base / folder).rglob("raw/*"):
        link = mirror / file.relative_to(base)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())


def _copy_downloads(mirror: Path, folder: Path, base: Path) -> None:
    """Copy downloaded files below the root, without replacing any file."""
    for file in (mirror / folder).rglob("raw/*"):
        kept = base / file.relative_to(mirror)
        if file.is_symlink() or os.path.lexists(kept):
            continue
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, kept)
