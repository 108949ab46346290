"""The conservation laws of every convolution of PyG, found by `gatdiag.find_laws` and confirmed by the null space.

Each layer stands between two linear ones, ``after(relu(layer(relu(before(x)))))``, so that its laws are complete: those
that share a channel with the weights before it, those with the weights after it, and those among its own weights.
The confirmation knows no operation and no layer: it draws weights, inputs and losses at random, and finds the null
space of the rows w * dLoss/dw (`tests.laws.referee`).
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gatdiag.law import Exclusion, Law, Term
from gatdiag.laws import Laws, find_laws
from gatdiag.structure.isolation import random_state
from reports.papers.layers import LAYERS, NODES, WIDE, WIDTH, Layer
from reports.papers.markdown import table as markdown
from reports.papers.measurements import format_statements
from reports.papers.study import Measured, Study
from tests.laws.loops import exponents
from tests.laws.referee import LARGE_EPS, TINY_EPS, ZERO, Draws, Spectrum, UnclearGapError, converge, with_eps

SIDES: Final = {"in": "before", "out": "after", "through": "before and after", "own": "none"}
"""Which weights beside those of the layer a law includes."""
_INPUTS: Final = 3
_OUTPUTS: Final = 2
_SEEDS: Final = 3
CHANGES: Final[dict[str, dict[str, Any]]] = {
    "elu": {"act": F.elu},
    "norm": {"norm": True},
    "square": {"square": True},
    "skip": {"square": True, "skip": True},
}
"""Changes of the network that laws are counted for, as options of `Between`."""
_HOW_TO_READ: Final = (
    "The network is `after(relu(layer(relu(before(x)))))`, with linear layers before and after. A law is a sum of "
    "terms with signs: the sum of `<w, dL/dw>` over them is zero at every point, whatever the loss and the optimizer; "
    "the sum of their squared norms is conserved by gradient flow, and nearly so by gradient descent at small rates "
    "(not by Adam, momentum or weight decay). `in[i]` is what writes channel i of the layer's input "
    "(`before.weight[i, :]` and `before.bias[i]`, or the output terms of an earlier convolution), `out[i]` what reads "
    "channel i of its output (`after.weight[:, i]`, or the input terms of the next). Laws of a stack of convolutions "
    "follow: put the terms of the first with `out[i]` and those of the second with `in[i]` together. Slices are "
    "Python's. A law with none beside it is among the layer's own weights. Approximate laws hold up to an epsilon in "
    "the layer."
)
_HOW_TO_COUNT: Final = (
    "null space: its dimension among the entries that get a gradient. without gradient: entries of parameters that get "
    "none, such as biases that cancel out in a softmax. The other columns count the laws that include weights of the "
    "layer or before it if the network is changed: ELU in place of ReLU; a LayerNorm after the layer; as many outputs "
    "as inputs, and then a skip, that is, `x + layer(x)`, which ties the channel that is read to the one that is "
    "written."
)


class Between(nn.Module):
    """A layer between two linear ones, with an activation before and after it.

    Args:
        of: The layer and how it is called.
        act: The activation.
        square: As many outputs of the layer as inputs.
        skip: Add the input of the layer to its output.
        norm: Normalize the output of the layer (`torch.nn.LayerNorm`).
    """

    def __init__(
        self,
        of: Layer,
        *,
        act: Callable[[Tensor], Tensor] = F.relu,
        square: bool = False,
        skip: bool = False,
        norm: bool = False,
    ) -> None:
        super().__init__()
        width = WIDTH if of.keeps_width or square else WIDE
        self.before, self.layer = nn.Linear(_INPUTS, WIDTH), of.make(WIDTH, width)
        self.after = nn.Linear(width, _OUTPUTS)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self._call, self._act, self._skip = of.call, act, skip

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        """The output of ``after``."""
        hidden = self._act(self.before(x))
        new = self._call(self.layer, hidden, *rest)
        out: Tensor = self.after(self._act(self.norm(hidden + new if self._skip else new)))
        return out


def build(layer: Layer, **options: Any) -> tuple[Between, tuple[Any, ...]]:
    """A layer between two others, and its inputs: the same at every call."""
    with random_state(0, ()):
        return Between(layer, **options), (torch.randn(NODES, _INPUTS), *layer.inputs())


# --- formulas ---------------------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Laws that have the same formula, one for each i."""

    side: str
    laws: Sequence[Law]
    formula: str
    range: str  # of i; "" if the formula has none


def group_laws(laws: Sequence[Law]) -> list[Group]:
    """Laws by formula, in the layer's parameter names and Python's notation of slices.

    ``in[i]`` stands for the weights that write channel i of the input (``before.weight[i, :] + before.bias[i]``),
    ``out[i]`` for those that read channel i of the output (``after.weight[:, i]``).
    """
    alike: dict[tuple[Any, ...], list[Law]] = {}
    for law in laws:
        terms = ((term.parameter, term.axes, term.exponent, len(term.indices)) for term in law.terms)
        alike.setdefault((law.kind, law.exact, *terms), []).append(law)
    return [Group(_side(rows[0]), rows, formula(rows), _range(rows)) for rows in alike.values()]


def _side(law: Law) -> str:
    parts = {term.parameter.partition(".")[0] for term in law.terms}
    return {(True, True): "through", (True, False): "in", (False, True): "out", (False, False): "own"}[
        "before" in parts, "after" in parts
    ]


def formula(laws: Sequence[Law]) -> str:
    """The formula of laws that differ in their indices only; i counts them by the channel that they share.

    Example:
        >>> laws = find_laws(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(4, 2))
        >>> formula([*laws])
        '0.weight[i, :] + 0.bias[i] − 2.weight[:, i]'
    """
    columns = _columns(laws)
    counter = _counter(columns)
    parts = [_term(terms, counter) for terms in columns if terms[0].parameter != "before.bias"]
    signs = {(sign, rest) for sign, rest in parts}
    kept = [(sign, rest) for sign, rest in parts if ({"+": "−", "−": "+"}[sign], rest) not in signs]
    kept.sort(key=lambda part: (part[0] == "−", part[1].startswith("out[")))
    return " ".join(f"{sign} {rest}" for sign, rest in kept).removeprefix("+ ")


def _columns(laws: Sequence[Law]) -> list[list[Term]]:
    return [[law.terms[number] for law in laws] for number in range(len(laws[0].terms))]


def _range(laws: Sequence[Law]) -> str:
    counter = _counter(_columns(laws))
    return f"{min(counter)} to {max(counter)}" if len(laws) > 1 else ""


def _counter(columns: Sequence[Sequence[Term]]) -> list[int]:
    """What i is in each law: the position of a term with one index that differs, of the weights beside it at best."""
    order = sorted(columns, key=lambda terms: terms[0].parameter.partition(".")[0] not in ("after", "before"))
    for terms in order:
        for axis in range(len(terms[0].axes)):
            values = [term.indices[0][axis] for term in terms]
            if len({*values}) == len(values) > 1 and len(terms[0].indices) == 1:
                return values
    return [*range(len(columns[0]))]


def _term(terms: Sequence[Term], counter: Sequence[int]) -> tuple[str, str]:
    """Sign and text of the terms that laws have at the same place."""
    term = terms[0]
    sign = "−" if term.exponent < 0 else "+"
    factor = "" if abs(term.exponent) == 1 else f"{abs(term.exponent)} "
    places = {axis: _along(terms, position, counter) for position, axis in enumerate(term.axes)}
    shown = ", ".join(places.get(axis, ":") for axis in range(len(term.shape)))
    beside = {"before.weight": ("in", 0), "after.weight": ("out", 1)}.get(term.parameter)
    if beside and {*term.axes} <= {beside[1]}:
        return sign, f"{factor}{beside[0]}[{places.get(beside[1], ':')}]"
    return sign, f"{factor}{term.parameter.removeprefix('layer.')}[{shown}]"


def _along(terms: Sequence[Term], position: int, counter: Sequence[int]) -> str:
    """The positions along one of the axes of a term, in terms of i."""
    length = terms[0].shape[terms[0].axes[position]]
    values = [sorted({index[position] for index in term.indices}) for term in terms]
    first = [of_law[0] for of_law in values]
    steps = {after - before for of_law in values for before, after in pairwise(of_law)}
    if len({len(of_law) for of_law in values}) > 1 or len(steps) > 1:
        return "{" + "; ".join(", ".join(map(str, of_law)) for of_law in values) + "}"
    start = _in_terms_of(counter, first)
    if len(values[0]) == 1:
        return start
    if values[0] == [*range(length)]:
        return ":"
    step = steps.pop()
    end = [of_law[-1] + step for of_law in values]
    stop = "" if all(value >= length for value in end) else _in_terms_of(counter, end)
    return f"{'' if start == '0' else start}:{stop}" + (f":{step}" if step > 1 else "")


def _in_terms_of(counter: Sequence[int], values: Sequence[int]) -> str:
    """The values as an expression of i, or listed."""
    if len({*values}) == 1:
        return str(values[0])
    for text, of in _EXPRESSIONS.items():
        shift = values[0] - of(counter[0])
        if all(of(i) + shift == value for i, value in zip(counter, values, strict=True)):
            return text + (f" + {shift}" if shift > 0 else f" − {-shift}" if shift < 0 else "")
    return "{" + ", ".join(map(str, values)) + "}"


_EXPRESSIONS: Final[dict[str, Callable[[int], int]]] = {
    "i": lambda i: i,
    **{f"{n}i": (lambda i, n=n: n * i) for n in range(2, 9)},  # type: ignore[misc]
    **{f"i // {n}": (lambda i, n=n: i // n) for n in range(2, 9)},  # type: ignore[misc]
    **{f"i % {n}": (lambda i, n=n: i % n) for n in range(2, 9)},  # type: ignore[misc]
}


# --- the null space ---------------------------------------------------------------------------------------------------


class Confirmation(NamedTuple):
    """What random draws say of the laws of a network.

    Attributes:
        null_space: Dimension of the null space among the entries that get a gradient in any draw.
        null_space_exact: That with large epsilons in place of small ones.
        without_gradient: Number of entries of the parameters that never get a gradient.
        gap: The smallest singular value that counts as not zero, relative to the largest that counts as zero.
        outside: The largest component of a law outside of the null space; laws and rows have length one.
    """

    null_space: int
    null_space_exact: int
    without_gradient: int
    gap: float
    outside: float


def confirm(layer: Layer, laws: Laws) -> Confirmation:
    """Compare laws with the null space of w * dLoss/dw over random draws.

    Raises:
        UnclearGapError: The singular values do not separate into zero and others.
    """
    for seed in range(_SEEDS):  # one draw in thousands blurs the gap
        try:
            draws, found = _draw(layer, TINY_EPS, seed)
            exact = _draw(layer, LARGE_EPS, seed)[1] if with_eps(draws.model) else found
        except UnclearGapError:
            if seed == _SEEDS - 1:
                raise
            continue
        break
    dead = int((~_get_gradients(draws.rows[:, draws.reached])).sum())
    vectors = [_vector(law, draws) for law in laws]
    outside = max((float((draws.rows @ vector).abs().max()) for vector in vectors), default=0.0)
    return Confirmation(found.laws - dead, exact.laws - dead, dead, found.gap, outside)


def _draw(layer: Layer, eps: float, seed: int) -> tuple[Draws, Spectrum]:
    with _double_precision(), torch.random.fork_rng(devices=[]):
        model, inputs = build(layer)
        torch.manual_seed(seed)
        draws = Draws(model.double(), inputs, {}, eps)
        return draws, converge(draws)


@contextmanager
def _double_precision() -> Iterator[None]:
    """Tensors that a forward pass makes are in float64, too; one thread, as they are tiny."""
    precision, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_default_dtype(precision)
        torch.set_num_threads(threads)


def _get_gradients(rows: Tensor) -> Tensor:
    sizes = rows.norm(dim=0)
    has_gradient: Tensor = sizes > ZERO * sizes.max()
    return has_gradient


def _vector(law: Law, draws: Draws) -> Tensor:
    """The exponents of a law as a vector of length one over all entries."""
    tables = exponents(law)
    parts = [tables.get(name, torch.zeros(p.shape)).double().flatten() for name, p in draws.named.items()]
    vector = torch.cat(parts)
    of_length_one: Tensor = vector / vector.norm()
    return of_length_one


# --- the table --------------------------------------------------------------------------------------------------------


def measure_layer(layer: Layer) -> list[dict[str, Any]]:
    """The rows of a layer: one for each formula of its laws, or one that says why there is none."""
    head = {"layer": layer.name, "options": layer.options}
    try:
        model, inputs = build(layer)
        model(*inputs)
    except ImportError as error:
        return [{**head, "reasons": f"not run: {error}"}]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # of vmap
        laws = find_laws(model, *inputs)
        confirmed = confirm(layer, laws)
        counts = {f"laws_{name}": _count(layer, "before", "layer", **options) for name, options in CHANGES.items()}
        counts["laws_elu_beside"] = _count(layer, "before", "after", **CHANGES["elu"])
    shared = {
        **head,
        "laws": len(laws),
        "exact_laws": sum(law.exact for law in laws),
        **confirmed._asdict(),
        "inputs": WIDTH,
        "outputs": model.after.in_features,
        **counts,
        "reasons": "; ".join(_reasons(laws.excluded)),
    }
    groups = [{**shared, **_group_row(group)} for group in group_laws([*laws])]
    return groups or [shared]


def _count(layer: Layer, *parts: str, **options: Any) -> int:
    """The number of laws with weights of these parts of another network."""
    model, inputs = build(layer, **options)
    return sum(any(term.parameter.startswith(parts) for term in law.terms) for law in find_laws(model, *inputs))


def _group_row(group: Group) -> dict[str, Any]:
    return {
        "side": group.side,
        "kind": group.laws[0].kind,
        "count": len(group.laws),
        "i": group.range,
        "exact": group.laws[0].exact,
        "formula": group.formula,
        "residual": max(law.residual for law in group.laws),
    }


def _reasons(excluded: Sequence[Exclusion]) -> Iterator[str]:
    """Where laws end, in the layer's own names."""
    for one in excluded:
        what = one.what.replace("layer.", "")
        if "never reaches" in one.reason:
            yield f"{what} is not used"
        elif one.reason.startswith("no effect"):
            yield f"{what} cancel out"
        elif "laws may be missed" not in one.reason:  # the null space says that none was
            yield f"{what}: {one.reason.replace('layer.', '')}"


def measure(_root: Path) -> Measured:
    """Find and confirm the laws of all layers."""
    return pd.DataFrame([row for layer in LAYERS for row in measure_layer(layer)]), {}


def describe(table: pd.DataFrame) -> str:
    """The statements, the laws, how many there are, and what is not in the table."""
    run = table[table["laws"].notna()]
    each = run.drop_duplicates(["layer", "options"])
    counted, kinds = each["laws"] == each["null_space"], each["exact_laws"] == each["null_space_exact"]
    names = f"{each['layer'].nunique()} of PyG's {table['layer'].nunique()} convolutions"
    statements = [
        (
            bool(counted.all()),
            "`gatdiag.find_laws` finds as many laws as the null space has dimensions: "
            f"{counted.sum()} of {len(each)} rows, {names}.",
        ),
        (
            bool(kinds.all()),
            f"It tells exact laws from those that an epsilon breaks: {kinds.sum()} of {len(each)} rows.",
        ),
        (
            bool((each["outside"] < ZERO).all()),
            "Each law is in the null space: the largest component outside of it is "
            f"{each['outside'].max():.0e}; the singular values that are zero and the others are at least a factor of "
            f"{each['gap'].min():.0e} apart.",
        ),
        (
            bool((each["laws_elu_beside"] == 0).all()),
            "With ELU in place of ReLU on both sides, no law with weights before or after the layer remains.",
        ),
    ]
    missing = table[table["laws"].isna()]
    return format_statements(
        statements,
        _HOW_TO_READ,
        "## Laws",
        markdown(_law_rows(run)),
        "## Numbers, and what breaks laws",
        _HOW_TO_COUNT,
        markdown(_count_rows(each)),
        "## Not in the table",
        markdown(missing[["layer", "reasons"]]),
    )


def _law_rows(run: pd.DataFrame) -> pd.DataFrame:
    rows = run[run["formula"].notna()]
    counts, ranges = rows["count"].astype(int).astype(str), rows["i"].fillna("")
    approximate = ["" if exact else ", approximate" for exact in rows["exact"].astype(bool)]
    return pd.DataFrame(
        {
            "layer": _names(rows),
            "beside it": rows["side"].map(SIDES),
            "laws": counts + (", i = " + ranges).where(ranges != "", "") + approximate,
            "conserved: squared norms of": "`" + rows["formula"] + "`",
        }
    )


def _names(rows: pd.DataFrame) -> pd.Series:
    options = rows["options"].fillna("")
    return rows["layer"] + (" (" + options + ")").where(options != "", "")


def _count_rows(each: pd.DataFrame) -> pd.DataFrame:
    columns = ["laws", "null_space", "without_gradient", "laws_elu", "laws_norm", "laws_square", "laws_skip"]
    numbers = each[columns].astype(int)
    names = ["laws", "null space", "without gradient", "with ELU", "with LayerNorm", "as wide as before", "with a skip"]
    shown = numbers.set_axis(names, axis=1)
    shown.insert(0, "layer", _names(each))
    return shown.assign(**{"where laws end": each["reasons"].fillna("")})


STUDY: Final = Study(
    name="laws",
    title="What each convolution of PyG conserves",
    claim="For each convolution of torch_geometric.nn.conv, its conservation laws under gradient flow, found by one "
    "call of gatdiag.find_laws, and confirmed by a null space that knows nothing of the layer.",
    script=measure,
    describe=describe,
    notes=(
        "Derived by hand, and summed over gradients by plain autograd, in tests/reports/test_laws.py: the laws of "
        'GCNConv, SAGEConv, GATConv with one head and with two averaged ones (theorem 6.4 of "Are GATs Out of '
        'Balance?"), GATv2Conv with shared weights (its theorem 2.2) and with separate ones (its theorem 6.3, whose '
        "printed form lacks the columns of `lin_r` of the next layer), TransformerConv, GINConv and GCN2Conv.",
        "MeshCNNConv is run on edges as (neighbor, edge). PyG documents (edge, neighbor); in that order, version 2.8 "
        "subtracts each edge from itself, and two of its five kernels get no gradient.",
        "The laws of EGConv and of RGCNConv with bases are one of several bases of the same space.",
        "PDNConv, HEATConv, NNConv and others have networks inside of any depth; here each has one hidden layer.",
    ),
)
