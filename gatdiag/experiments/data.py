"""Named graphs: one that is built in, and the benchmark graphs of the papers."""

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch_geometric import datasets
from torch_geometric.data import Data

from gatdiag.errors import InputError

_INSIDE, _ACROSS = 0.06, 0.003  # chance of a link in the built-in graph
_OWN, _FOREIGN = 0.2, 0.03  # chance of a word

Transform: TypeAlias = Literal["normalize-features", "none"]
TRANSFORMS: Final[tuple[Transform, ...]] = get_args(Transform)
BUILT_IN: Final = "sbm"


@dataclass(frozen=True)
class Source:
    """Where PyG finds a graph.

    Attributes:
        data_set: Class in `torch_geometric.datasets`.
        folder: Its root, below the root of all data.
        options: Its other arguments.
        files: Folder below which its raw files lie, below the root of all data.
        transform: What most work trains on.
    """

    data_set: str
    folder: str
    files: str
    options: Mapping[str, Any] = field(default_factory=dict)
    transform: Transform = "none"


def _planetoid(name: str) -> Source:
    return Source(
        "Planetoid", "planetoid", f"planetoid/{name}", {"name": name, "split": "public"}, "normalize-features"
    )


def _webkb(name: str) -> Source:
    return Source("WebKB", "webkb", f"webkb/{name}", {"name": name})


def _wikipedia(name: str) -> Source:
    return Source("WikipediaNetwork", "wikipedia", f"wikipedia/{name}", {"name": name, "geom_gcn_preprocess": True})


SOURCES = {
    "Cora": _planetoid("Cora"),
    "CiteSeer": _planetoid("CiteSeer"),
    "PubMed": _planetoid("PubMed"),
    "Actor": Source("Actor", "actor", "actor"),
    "Chameleon": _wikipedia("chameleon"),
    "Squirrel": _wikipedia("squirrel"),
    "Cornell": _webkb("cornell"),
    "Texas": _webkb("texas"),
    "Wisconsin": _webkb("wisconsin"),
}


def load_graph(name: str, root: str | os.PathLike[str] = "data") -> Data:
    """A graph by name, with features ``x``, labels ``y``, ``edge_index`` and the masks of its standard split.

    Raw files are looked for below ``root`` where PyG's own classes put them (``planetoid/Cora/raw``, ``actor/raw``,
    ...). Those that are missing are downloaded by PyG and then kept there; nothing else is written below ``root``.

    Args:
        name: ``sbm`` (built in: see `block_model`) or a key of `SOURCES`, in any case.
        root: Folder of the data sets.

    Raises:
        InputError: No graph has this name, or it is neither below the root nor can be downloaded.

    Example:
        >>> load_graph("sbm").num_features
        64
    """
    source = _source(name)
    if source is None:
        return block_model()
    base = Path(root).expanduser()
    try:
        with TemporaryDirectory(prefix="gatdiag-") as mirror:
            _link(base, source.files, Path(mirror))
            data = _read(source, Path(mirror))
            _keep(Path(mirror), source.files, base)
    except Exception as error:
        where = base / source.files
        raise InputError(
            f"the graph {name} is not to be had: expected its raw files below {where}, or a network to download them "
            f"from ({type(error).__name__}: {error})"
        ) from error
    return data


def usual_transform(name: str) -> Transform:
    """What is done to the features of a graph before most work trains on it.

    The citation graphs of Planetoid (Cora, CiteSeer, PubMed) are bags of words whose rows are divided by their sums
    (`torch_geometric.transforms.NormalizeFeatures`), in GCN, GAT and PyG's examples as in "Are GATs Out of Balance?".
    On the others practice differs (Geom-GCN divides them, too); here they are left as they are, as in that paper.

    Raises:
        InputError: No graph has this name.
    """
    source = _source(name)
    return "none" if source is None else source.transform


def _source(name: str) -> Source | None:
    """Where to find a graph; None for the one that is built in."""
    if name.lower() == BUILT_IN:
        return None
    source = {key.lower(): source for key, source in SOURCES.items()}.get(name.lower())
    if source is None:
        raise InputError(f"no graph is called {name!r}: expected one of {BUILT_IN}, {', '.join(SOURCES)}")
    return source


def _read(source: Source, base: Path) -> Data:
    """Torch's random state is kept, from which a data set may draw, and standard output, to which one may print."""
    with torch.random.fork_rng(devices=[]), redirect_stdout(sys.stderr):
        data: Data = getattr(datasets, source.data_set)(str(base / source.folder), **source.options)[0]
    return data


def _link(base: Path, folder: str, mirror: Path) -> None:
    """PyG writes processed/ beside raw/, and downloads what is missing; links let it do both elsewhere."""
    for file in (base / folder).rglob("raw/*"):
        link = mirror / file.relative_to(base)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())


def _keep(mirror: Path, folder: str, base: Path) -> None:
    """Copy what was downloaded below the root; a file that is there is never replaced."""
    for file in (mirror / folder).rglob("raw/*"):
        kept = base / file.relative_to(mirror)
        if file.is_symlink() or os.path.lexists(kept):
            continue
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, kept)


def block_model(nodes: int = 400, classes: int = 4, words: int = 64, seed: int = 0) -> Data:
    """An undirected graph of equal classes, the same for the same arguments.

    Two nodes of one class are linked with probability 0.06, two of different classes with 0.003. Each class has an
    equal share of the words; a node has a word of its own class with probability 0.2, any other with 0.03. Twenty nodes
    of each class are for training, the next twenty-five for validation, the others for testing.

    Args:
        nodes: Number of nodes, a multiple of ``classes``.
        classes: Number of classes.
        words: Number of features, a multiple of ``classes``.
        seed: Seed of a generator of its own; the global random state is not touched.

    Returns:
        ``x`` (nodes, words) of zeros and ones, ``edge_index`` (2, edges) with both directions of each link and no
        self-loops, ``y`` (nodes,), ``train_mask``, ``val_mask`` and ``test_mask`` (nodes,).

    Source:
        Holland, Laskey, Leinhardt, "Stochastic blockmodels: first steps" (1983).

    Example:
        >>> graph = block_model()
        >>> graph.is_undirected(), int(graph.train_mask.sum())
        (True, 80)
    """
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(nodes) * classes // nodes
    alike = y[:, None] == y[None, :]
    links = _chosen(torch.where(alike, _INSIDE, _ACROSS), generator).triu(1)
    topic = torch.arange(words) * classes // words
    x = _chosen(torch.where(y[:, None] == topic[None, :], _OWN, _FOREIGN), generator)
    place = torch.arange(nodes) % (nodes // classes)
    return Data(
        x=x.float(),
        edge_index=(links | links.T).nonzero().T.contiguous(),
        y=y,
        train_mask=place < 20,
        val_mask=(place >= 20) & (place < 45),
        test_mask=place >= 45,
    )


def _chosen(chance: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(chance.shape, generator=generator) < chance
