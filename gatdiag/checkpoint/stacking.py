"""Which layer feeds which, from names and shapes alone; and from that c, one value a neuron.

A state dict holds no forward pass. So a layer's successor is taken for known only where there is a single candidate:

- Layers whose paths differ in numbers alone (`convs.0`, `convs.1`; `conv1`, `conv2`; the maps inside a GIN) are a
  series, and each feeds the next if their widths agree.
- Any other layer feeds the one layer that takes as many inputs as it has outputs, if no second one does.

Of a layer that is no later one of a series only its width tells what it reads. If that fits a part of what some other
layer puts out, or what the first layer reads, neither that layer nor the one that would feed it has a law.

A neuron has a law if, besides, nothing else in the file may read, normalize or add to what its layer puts out: all
layers form one chain, and each of them is understood. Where not, the layer has no law, and the reason is given. What is
not in the file at all is assumed, as `ASSUMED` says. With a model, `gatdiag.find_laws` needs no assumption.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Final

from torch import Tensor

from gatdiag.checkpoint.links import Link, links_of
from gatdiag.checkpoint.measures import Measured
from gatdiag.checkpoint.modules import numbered, output_axes
from gatdiag.law import Kind
from gatdiag.laws import Exclusion, Law, Laws
from gatdiag.names import listed
from gatdiag.run.laws import RecordedLaws, pack
from gatdiag.structure import Layer, Structure
from gatdiag.summary import FEATURES

ASSUMED: Final = (
    "activations are positively homogeneous (ReLU, LeakyReLU), not ELU, GELU or tanh",
    "aggregation and pooling without weights are too (sum, mean, max), not softmax or variance",
    "no skip connection or jumping knowledge without weights leads around a layer",
    "no normalization without weights (PairNorm, L2) stands between layers",
    "weights are used as they are, each once, and of numbered layers each reads all of the one before",
)

# Numbered layers that may stand side by side: decoders.0, head1; not decoder.0, which is a place in a Sequential.
_BRANCH: Final = re.compile(
    r"(^|[._])(head|branch|task|classifier|predictor|decoder|dec|output|out|expert|tower)(_?\d|e?s_?\.?\d)",
    re.IGNORECASE,
)
_EITHER_WAY: Final = ("Linear", "GCNConv")  # kinds of a lone matrix, by the axis that counts outputs


@dataclass(frozen=True, eq=False)
class Stacking:
    """Which layer feeds which, where that is unambiguous.

    Attributes:
        pairs: A layer, and the one that all its outputs feed and nothing else does.
        excluded: Each layer without laws, and why.
    """

    pairs: tuple[tuple[Link, Link], ...]
    excluded: tuple[Exclusion, ...]

    def c(self, measured: Mapping[str, Measured]) -> dict[str, Tensor]:
        """c of every neuron that has a law, from norms that were measured already.

        Args:
            measured: Name -> `measure(tensor)`, of this state dict or of another one of the same model.

        Returns:
            Path of the layer (of the map inside it, for a GIN) -> (neurons,), float64. Positive: the incoming weights
            of the neuron outweigh attention and outgoing ones.
        """
        return {
            link.path: link.written_squares(measured, following.inputs) - following.read_squares(measured)
            for link, following in self.pairs
        }

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The laws as meta.json has them, in the order of `laws` and of the values of `c`."""
        return [entry for link, following in self.pairs for entry in _entries(link, following)]

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the parameters that laws are of."""
        sides = ((*link.read, *link.written, *link.scores, *following.read) for link, following in self.pairs)
        return frozenset(info.name for infos in sides for info in infos)

    def laws(self, tensors: Mapping[str, Tensor]) -> Laws:
        """The same as laws with names and terms; `laws.c()` takes some 0.1 ms a neuron to prepare.

        No residual is measured, so it is NaN.
        """
        laws = [_law(link, following, neuron) for link, following in self.pairs for neuron in range(following.inputs)]
        used = {term.parameter for law in laws for term in law.terms}
        return Laws(laws, {name: tensor for name, tensor in tensors.items() if name in used}, self.excluded)


def find_stacking(tensors: Mapping[str, Tensor], structure: Structure) -> Stacking:
    """Find which layer feeds which, and with that the conservation laws that a state dict shows by itself.

    For neuron i of a layer l that feeds layer l + 1,

        c_i = ||W^l[i, :]||^2 + b^l[i]^2 - a^l[i]^2 - ||W^(l+1)[:, i]||^2

    with every matrix, bias and attention vector of the two layers, as `gatdiag.find_laws` finds it by tracing the
    model. Concatenated heads are neurons of their own, averaged ones are summed. It holds if `ASSUMED` is true of the
    model, which a state dict does not tell.

    Args:
        tensors: Name -> tensor, named as in a model's `state_dict()`.
        structure: Its layers, from `find_layers(tensors)`.

    Returns:
        The pairs of layers whose neurons have laws, and for each other layer the reason why its have none.

    Source:
        Theorem 2.2 and equation 5 of "Are GATs Out of Balance?" (Mustafa, Bojchevski, Burkholz, NeurIPS 2023).

    Example:
        >>> from torch_geometric.nn import GCN
        >>> from gatdiag.checkpoint.layers import find_layers
        >>> tensors = GCN(5, 4, 2, out_channels=3).state_dict()
        >>> stacking = find_stacking(tensors, find_layers(tensors))
        >>> print(stacking.laws(tensors)[1])
        layer 1 (convs.0), neuron 1: convs.0.lin.weight[1, :] + convs.0.bias[1] - convs.1.lin.weight[:, 1]
        >>> print(*stacking.excluded)
        Exclusion(what='convs.1', reason='no layer takes its 3 outputs: they are those of the model, ...)
    """
    stack = _Stack(tensors, structure)
    reasons = {link: stack.obstacle(link) for link in stack.links}
    excluded = [Exclusion(layer.name, reason) for layer, reason in stack.opaque]
    excluded += [Exclusion(link.path, reason) for link, reason in reasons.items() if reason]
    return Stacking(
        tuple((link, stack.following[link]) for link, reason in reasons.items() if not reason), tuple(excluded)
    )


class _Stack:
    """The links of a state dict and what is between them.

    Attributes:
        links: Maps from features to features, in module order.
        opaque: Layers that are none, and why.
        following: Link -> the link that it feeds, where there is a single candidate.
    """

    def __init__(self, tensors: Mapping[str, Tensor], structure: Structure) -> None:
        self.links: list[Link] = []
        self.opaque: list[tuple[Layer, str]] = []
        for layer in structure:
            found = links_of(layer, tensors)
            if isinstance(found, str):
                self.opaque.append((layer, found))
            else:
                self.links += found
        self._order = {name: number for number, name in enumerate(tensors)}
        self._unclear = _unclear(structure)
        self._norms = list(_norms(tensors, structure))
        paths = [link.path.rpartition(".") for link in self.links]
        self._sequences = {parent for parent, _, number in paths if number.isdigit()}
        self._series = _series([link for link in self.links if not _BRANCH.search(link.path)])
        self._numbered = {after for before, after in self._series.items() if after.inputs in before.widths}
        self._place = {link: number for number, link in enumerate(self.links)}
        self._by_inputs: dict[int, list[Link]] = {}
        for link in self.links:
            self._by_inputs.setdefault(link.inputs, []).append(link)
        self._candidates = {link: self._candidates_of(link) for link in self.links}
        self.following = {link: found[0] for link, found in self._candidates.items() if len(found) == 1}
        for link in [link for link in self.following if self._leads_back(link)]:
            self._candidates[link] = []
            del self.following[link]
        self._fed = Counter(self.following.values())
        unfed = [link for link in self.links if link not in self._fed]
        self._stray = unfed[1:]  # the first one reads the input of the model
        if unfed and unfed[0] is not self.links[0] and self._wider(unfed[0], unfed[:1]):
            self._stray = unfed  # unless it reads a part of what a layer before it in the file puts out
        self._doubts = {other: why for link in self._fed for other, why in self._doubted(link, unfed[:1])}

    def _candidates_of(self, link: Link) -> list[Link]:
        following = self._series.get(link)
        if following is not None and following.inputs in link.widths:
            return [following]
        fitting = [other for width in link.widths for other in self._by_inputs.get(width, ())]
        free = [other for other in fitting if other is not link and other not in self._numbered]
        later = [other for other in free if self._place[other] > self._place[link]]
        return later or free

    def _leads_back(self, link: Link) -> bool:
        """Whether a layer would feed an earlier one that in the end feeds it: then it is the last one instead."""
        if self._place[self.following[link]] > self._place[link]:
            return False
        seen: set[Link] = set()
        after: Link | None = link
        while after is not None and after not in seen:
            seen.add(after)
            after = self.following.get(after)
        return after is link

    def _wider(self, link: Link, apart: Container[Link]) -> list[Link]:
        """The layers that put out more than a layer reads, so that it may read a part of that."""
        return [other for other in self.links if other not in apart and link.inputs < max(other.widths)]

    def _doubted(self, link: Link, first: Sequence[Link]) -> Iterator[tuple[Link, str]]:
        """The layers that have no law, and why, if a layer of which widths alone tell what it reads may read others."""
        if link in self._numbered:
            return
        after, later = self.following.get(link), {link}
        while after is not None and after not in later:
            later.add(after)
            after = self.following.get(after)
        feeding = [other for other, following in self.following.items() if following is link]
        wider = self._wider(link, later)
        reads = f"{link.path} takes {link.inputs} inputs: it may read"
        if wider:
            part = f"{reads} a part of the {max(wider[0].widths)} of {wider[0].path}"
            yield from ((other, part) for other in (*feeding, *wider))
        elif any(link.inputs == other.inputs for other in first):
            yield from ((other, f"{reads} what {first[0].path} reads") for other in feeding)

    def obstacle(self, link: Link) -> str:
        """Why a link has no law; "" if it has."""
        candidates, width = self._candidates[link], min(link.widths)
        if not candidates:
            return f"no layer takes its {width} outputs: they are those of the model, or are joined with others first"
        if len(candidates) > 1:
            return f"{listed(other.path for other in candidates)} take {width} inputs each: any may follow"
        following = candidates[0]
        if self._fed[following] > 1:
            others = [other.path for other, after in self.following.items() if after is following]
            return f"{listed(others)} may all feed {following.path}"
        width = following.inputs
        if self._stray:
            stray = self._stray[0]
            return f"what feeds {stray.path} is not known: it may read this layer too, or what is added to it"
        if link in self._doubts:
            return self._doubts[link]
        for layer, _ in self.opaque:
            if layer.kind != "Embedding" or width in layer.parameters[0].shape[1:]:
                return f"{layer.name} ({layer.kind}) may read it, or be added to it"
        return self._normalized(link, following) or self._unclear_of(link) or self._unclear_of(following)

    def _unclear_of(self, link: Link) -> str:
        name = self._unclear.get(link.path, "")
        return name and f"whether rows or columns of {name} count outputs is not known: it may be stored transposed"

    def _normalized(self, link: Link, following: Link) -> str:
        """Whether a normalization may stand between; in a Sequential its number says where it stands."""
        first, last = self._order[link.read[0].name], self._order[following.read[0].name]
        for path, name, width in self._norms:
            parent, _, number = path.rpartition(".")
            placed = number.isdigit() and parent in self._sequences
            if width % following.inputs == 0 and (not placed or first < self._order[name] < last):
                return f"{path} normalizes as many channels, and {'stands' if placed else 'may stand'} after it"
        return ""


def _series(links: Sequence[Link]) -> dict[Link, Link]:
    """Link -> the next one of the series whose paths differ in numbers alone."""
    return dict(chain.from_iterable(map(pairwise, numbered(links, lambda link: link.path))))


def _unclear(structure: Structure) -> dict[str, str]:
    """Layer -> its matrix, where neither a bias nor other layers tell which way round it is stored."""
    leaves: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for info in structure.parameters:
        leaves[info.module][info.name.removeprefix(f"{info.module}.")] = info.shape
    axes = output_axes(leaves)
    return {
        layer.name: info.name
        for layer in structure
        for info in layer.parameters
        if layer.kind in _EITHER_WAY and info.module == layer.name.replace(Structure.ROOT, "") and info.role == FEATURES
        if axes.get(info.module) != _EITHER_WAY.index(layer.kind)
    }


def _norms(tensors: Mapping[str, Tensor], structure: Structure) -> Iterator[tuple[str, str, int]]:
    """Path, one tensor and width of each normalization that left a trace."""
    for info in structure.parameters:
        if info.role == "norm scale":
            yield info.module, info.name, max(info.shape, default=1)
    for name, tensor in tensors.items():
        if name.endswith("running_mean"):
            yield name.rpartition(".")[0], name, tensor.numel()


def _entries(link: Link, following: Link) -> list[dict[str, Any]]:
    """The laws of a layer, told from a few where neurons differ in their number alone: there may be thousands."""
    neurons = range(following.inputs)
    found = pack(_law(link, following, neuron) for neuron in neurons[:2])
    found[0]["count"] = len(neurons)
    told = RecordedLaws(found[:1], link.path)
    if all(told[neuron].terms == _law(link, following, neuron).terms for neuron in {*neurons[:2], *neurons[-1:]}):
        return found[:1]
    return pack(_law(link, following, neuron) for neuron in neurons)


def _law(link: Link, following: Link, neuron: int) -> Law:
    terms = (*link.incoming(neuron, following.inputs), *following.outgoing(neuron))
    ordered = tuple(sorted(terms, key=lambda term: term.exponent < 0))
    inner = link.layer is following.layer
    name = f"layer {link.layer.index} ({link.layer.name}), {'product channel' if inner else 'neuron'} {neuron}"
    kind: Kind = "product" if inner else "neuron"
    return Law(name, kind, link.layer.name, neuron, ordered, exact=True, residual=math.nan)
