"""Labels follow tensors through views, in-place writes, subclasses and operations nobody knows."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from gatdiag.laws.exponents import Exponents
from gatdiag.laws.label import Label
from gatdiag.laws.solver import solve
from gatdiag.laws.trace import Trace


class Tracer:
    """A trace with labeled tensors, and the names of the unknowns that a tensor's entries depend on."""

    def __init__(self) -> None:
        self.exponents = Exponents()
        self.trace = Trace(self.exponents, lambda: "layer")
        self.names: dict[int, str] = {0: "0"}

    def labeled(self, name: str, *shape: int) -> Tensor:
        tensor = torch.rand(shape, dtype=torch.float64) + 1
        ids = self.exponents.new_unknowns(shape, name, is_entry=True)
        self.names |= {unknown: f"{name}{k}" for k, unknown in enumerate(ids.flatten().tolist())}
        self.trace.set_label(tensor, Label(((Fraction(1), ids),)))
        return tensor

    def exponents_of(self, tensor: Tensor) -> list[str]:
        """Entry by entry, the sum of names; '-' where it is an exact zero."""
        label = self.exponents.resolve(self.trace.label_of(tensor))
        zeros = torch.zeros(tensor.shape, dtype=torch.bool) if label.zeros is None else label.zeros.expand(tensor.shape)
        texts = [""] * tensor.numel()
        for coefficient, ids in label.terms:
            for k, unknown in enumerate(ids.expand(tensor.shape).flatten().tolist()):
                if unknown:
                    texts[k] += ("" if coefficient == 1 else str(coefficient)) + self.names.get(unknown, "?")
        return ["-" if hole else text or "0" for hole, text in zip(zeros.flatten().tolist(), texts, strict=True)]

    def freedom(self, *tensors: Tensor) -> int:
        labels = [self.exponents.resolve(self.trace.label_of(tensor)) for tensor in tensors]
        return len(solve(self.exponents, [ids for label in labels for _, ids in label.terms]).free)


@pytest.fixture
def tracer() -> Tracer:
    return Tracer()


def test_a_write_through_a_view_relabels_the_base_and_its_other_views(tracer: Tracer) -> None:
    a = tracer.labeled("a", 2)
    with torch.no_grad(), tracer.trace:
        base = torch.zeros(2, 2, dtype=torch.float64)
        row, column, turned = base[0], base[:, 1], base.t()
        row.copy_(a)

    assert tracer.exponents_of(base) == ["a0", "a1", "-", "-"]
    assert tracer.exponents_of(column) == ["a1", "-"]
    assert tracer.exponents_of(turned) == ["a0", "-", "a1", "-"]


def test_after_a_write_through_a_view_of_complex_numbers_all_views_keep_their_scale(tracer: Tracer) -> None:
    a, b = tracer.labeled("a", 3, 1, 2), tracer.labeled("b", 3, 1)
    with torch.no_grad(), tracer.trace:
        parts = a.expand(3, 2, 2).clone()
        torch.view_as_complex(parts)[:, 1:].mul_(b)

    assert tracer.exponents_of(parts) == ["0"] * 12
    assert tracer.freedom(a, b) == 0


def test_an_assignment_by_index_relabels_only_what_it_writes(tracer: Tracer) -> None:
    a, b = tracer.labeled("a", 2, 3), tracer.labeled("b", 2)
    with torch.no_grad(), tracer.trace:
        x = a.clone()
        x[:, 1] = b

    assert tracer.exponents_of(x) == ["a0", "b0", "a2", "a3", "b1", "a5"]
    assert tracer.exponents_of(a) == [f"a{k}" for k in range(6)]


def test_writing_zeros_frees_and_writing_a_constant_fixes(tracer: Tracer) -> None:
    a = tracer.labeled("a", 3)
    with torch.no_grad(), tracer.trace:
        x = a.clone()
        x[0] = 0.0
        y = a.clone()
        y[0] = 1.0

    assert tracer.exponents_of(x) == ["-", "a1", "a2"]
    assert tracer.exponents_of(y) == ["0", "a1", "a2"]


def test_an_out_argument_is_labeled(tracer: Tracer) -> None:
    a, b = tracer.labeled("a", 3), tracer.labeled("b", 3)
    with torch.no_grad(), tracer.trace:
        out = torch.empty(3, dtype=torch.float64)
        torch.mul(a, b, out=out)

    assert tracer.exponents_of(out) == ["a0b0", "a1b1", "a2b2"]


def test_an_unknown_operation_is_reported_by_name_and_holds_what_it_touches(tracer: Tracer) -> None:
    a, b = tracer.labeled("a", 3), tracer.labeled("b", 3)
    with torch.no_grad(), tracer.trace:
        for _ in range(2):
            out = torch.special.i0e(a) * b

    assert tracer.trace.unknown == {("special_i0e", "layer"): 2}
    assert tracer.exponents_of(a) == ["0"] * 3
    assert tracer.exponents_of(out) == ["b0", "b1", "b2"]
    assert tracer.exponents.zero_causes()[int(tracer.trace.label_of(b).terms[0][1][0]) - 3] == "special_i0e in layer"


def test_a_label_dies_with_its_tensor(tracer: Tracer) -> None:
    a = tracer.labeled("a", 3)
    with torch.no_grad(), tracer.trace:
        for _ in range(20):
            a = a * 2.0
        del a

    assert len(tracer.trace._labels) == 0


def test_subclasses_pass_and_what_is_computed_with_them_is_followed(tracer: Tracer) -> None:
    index = EdgeIndex([[0, 1, 2], [1, 2, 0]], sparse_size=(3, 3), sort_order="row")
    a = tracer.labeled("a", 1, 2)
    with torch.no_grad(), tracer.trace:
        rows = a.float().expand(3, 2)[index[0]]
        adjacency = index.matmul(rows)

    assert tracer.exponents_of(rows) == ["a0", "a1"] * 3
    assert tracer.exponents_of(adjacency) == ["a0", "a1"] * 3
    assert tracer.freedom(a) == 2
    assert not tracer.trace.unknown


@pytest.mark.parametrize("edges", [20, 2000])
def test_a_lookup_adds_at_most_one_unknown_however_many_channels(tracer: Tracer, edges: int) -> None:
    nodes, links = tracer.labeled("n", 5, 4), tracer.labeled("e", 3, 2)
    weight, shift = tracer.labeled("w", 6, 10), tracer.labeled("b", 6)
    ends = torch.randint(5, (2, edges), generator=torch.Generator().manual_seed(0))
    kinds = torch.arange(edges) % 3
    with torch.no_grad(), tracer.trace:
        x = torch.nn.functional.embedding(torch.arange(edges) % 5, nodes)
        e = torch.nn.functional.embedding(kinds, links)
        message = torch.nn.functional.linear(torch.cat([x[ends[0]], x[ends[1]], e], dim=-1), weight, shift)
        tower = torch.stack([message, message], dim=1)

    assert tracer.freedom(tower, nodes, links, weight) == 4 + 2 + 6
    assert int(tracer.exponents.new_unknowns((1,))) < 1000 + edges


def test_unknowns_do_not_grow_with_nodes_that_no_edge_leads_to(tracer: Tracer) -> None:
    messages, own, weight = tracer.labeled("m", 8), tracer.labeled("o", 8), tracer.labeled("w", 6, 24)
    ends = torch.arange(40) // 2
    with torch.no_grad(), tracer.trace:
        edges = messages.expand(40, 8) * 1.0
        empty = torch.zeros(60, 8, dtype=torch.float64)
        total = empty.scatter_add(0, ends[:, None].expand(40, 8), edges)
        largest = empty.scatter_reduce(0, ends[:, None].expand(40, 8), edges, "amax", include_self=False)
        out = torch.cat([own.expand(60, 8) * 1.0, total, largest], dim=1) @ weight.T

    assert tracer.freedom(out, messages, own, weight) == 8 + 8 + 6
    assert int(tracer.exponents.new_unknowns((1,))) < 2 * weight.numel()
