"""Models whose first batch may be poor: what rows, edges, kinds or steps others have is data."""

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F


class Product(nn.Module):
    """Matrix factorization."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.u, self.v = nn.Embedding(9, 3), nn.Embedding(7, 3)
        self.shifts = nn.ModuleList([nn.Embedding(9, 1), nn.Embedding(7, 1)]) if bias else None

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        score = (self.u(a) * self.v(b)).sum(1)
        return score if self.shifts is None else score + self.shifts[0](a)[:, 0] + self.shifts[1](b)[:, 0]


class Triples(nn.Module):
    """DistMult, with one table for both ends; or with unit rows of the entities."""

    def __init__(self, *, unit: bool = False) -> None:
        super().__init__()
        self.entities, self.relations, self.unit = nn.Embedding(9, 4), nn.Parameter(torch.randn(3, 4)), unit

    def forward(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        h, t = self.entities(head), self.entities(tail)
        if self.unit:
            h, t = F.normalize(h), F.normalize(t)
        return (h * self.relations[relation] * t).sum(-1)


class SkipGram(nn.Module):
    """The score of one word against several others, by a batched matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.center, self.context = nn.Embedding(9, 3), nn.Embedding(9, 3)

    def forward(self, word: Tensor, others: Tensor) -> Tensor:
        return F.logsigmoid(torch.bmm(self.context(others), self.center(word).unsqueeze(2)))


class Filtering(nn.Module):
    """Neural collaborative filtering: a product of rows beside a network of joined rows."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.u, self.v = Product(), nn.Embedding(9, 3), nn.Embedding(7, 3)
        self.hidden, self.out = nn.Linear(6, 4), nn.Linear(7, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        joined = self.hidden(torch.cat([self.u(a), self.v(b)], 1)).relu()
        return self.out(torch.cat([self.product.u(a) * self.product.v(b), joined], 1))


class Words(nn.Module):
    """Tokens and positions; rows of positions by a range, by a slice, or as an input."""

    def __init__(self, positions: str) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(9, 4), nn.Embedding(6, 4)
        self.hidden, self.out, self.positions = nn.Linear(4, 5), nn.Linear(5, 2), positions

    def forward(self, words: Tensor) -> Tensor:
        length = words.shape[1]
        place = self.place.weight[:length] if self.positions == "slice" else self.place(torch.arange(length))
        return self.out(self.hidden(self.token(words) + place).relu())


class Featureless(nn.Module):
    """A graph whose nodes have learned features."""

    def __init__(self, conv: type[nn.Module] = gnn.GCNConv) -> None:
        super().__init__()
        self.features = nn.Embedding(8, 3)
        self.convs = nn.ModuleList([conv(3, 4), conv(4, 2)])

    def forward(self, nodes: Tensor, edge_index: Tensor) -> Tensor:
        x = self.features(nodes)
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return x


class Chosen(nn.Module):
    """Rows by a mask, a gather, a selection and two indices at once."""

    def __init__(self, how: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.out, self.how = nn.Parameter(torch.randn(6, 3)), nn.Parameter(torch.randn(4, 3)), how

    def forward(self, index: Tensor) -> Tensor:
        rows = self.how(self.table, index)
        return rows * self.out[: len(rows)]


class Stack(nn.Module):
    def __init__(self, *convs: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Any, edge_index: Any, *more: Any) -> Any:
        for conv in self.convs:
            x = conv(x, edge_index, *more)
            x = {kind: value.relu() for kind, value in x.items()} if isinstance(x, dict) else x.relu()
        return x


class Recurrent(nn.Module):
    """Over the first axis, from a state of zeros."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core, self.out = core, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.core, nn.RNNBase):
            return self.out(self.core(x)[0].relu())
        state = x.new_zeros(x.shape[1], 3)
        for step in x:
            state = self.core(step, state) if isinstance(self.core, nn.RNNCell) else self.core[0](step, state)
        return self.out(state)


class Looked(nn.Module):
    """Words with options of the table; its rows may also be what the output is compared with."""

    def __init__(self, *, tied: bool = False, pads: bool = True, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3, **options)
        self.hidden, self.out, self.tied = nn.Linear(3, 4), nn.Linear(4, 3), tied
        if not pads:
            nn.init.normal_(self.table.weight)

    def forward(self, words: Tensor) -> Tensor:
        out = self.out(self.hidden(self.table(words)).relu())
        return F.linear(out, self.table.weight) if self.tied else out


class Pictured(nn.Module):
    """Words, some of which are replaced by features of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.image, self.hidden, self.out = (
            nn.Embedding(9, 4),
            nn.Linear(3, 4),
            nn.Linear(4, 5),
            nn.Linear(5, 2),
        )

    def forward(self, words: Tensor, image: Tensor) -> Tensor:
        x = self.token(words)
        x = x.masked_scatter((words == 0).unsqueeze(-1).expand_as(x), self.image(image))
        return self.out(self.hidden(x).relu())


class Paired(nn.Module):
    """Two tables of positions, the second one read from another place."""

    def __init__(self, read: Callable[[nn.Embedding, int], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.read = nn.Parameter(torch.randn(6, 3)), nn.Embedding(6, 3), read

    def forward(self, x: Tensor) -> Tensor:
        return x * self.first[: len(x)] * self.read(self.second, len(x))


class Masked(nn.Module):
    """Rows that a mask selects are replaced by a learned one."""

    def __init__(self, how: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.fill, self.out, self.how = nn.Linear(3, 4), nn.Parameter(torch.randn(4)), nn.Linear(4, 2), how

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows = self.fill.expand(int(mask.sum()), 4)
        return self.out(self.how(self.enter(x), mask, rows).relu())


class Kinds(nn.Module):
    """Nodes of two kinds in one tensor, each kind with an output layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = (nn.ModuleList(nn.Linear(*sizes) for _ in range(2)) for sizes in ((3, 4), (4, 2)))

    def forward(self, x: Tensor, edge_index: Tensor) -> list[Tensor]:
        nodes = torch.cat([enter(part) for enter, part in zip(self.enter, x, strict=True)])
        sums = torch.zeros_like(nodes).index_add(0, edge_index[1], nodes[edge_index[0]]).relu()
        return [leave(part) for leave, part in zip(self.leave, sums.chunk(2), strict=True)]


class Experts(nn.Module):
    """Experts that run only if a row is sent to them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(3, 3), nn.ModuleList(Words("range").hidden for _ in range(3))
        self.enter = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden, chosen = self.enter(x).relu(), self.gate(x).softmax(-1).max(-1)
        out = x.new_zeros(len(x), 5)
        for number in chosen.indices.unique().tolist():
            rows = (chosen.indices == number).nonzero().flatten()
            out = out.index_add(0, rows, self.experts[number](hidden[rows]) * chosen.values[rows, None])
        return out


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.stay = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return (self.enter(x) + self.stay(state)).relu()


class Joined(nn.Module):
    """A cell on its input joined with its state."""

    def __init__(self) -> None:
        super().__init__()
        self.join = nn.Linear(7, 3)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return self.join(torch.cat([x, state], 1)).relu()


class Normed(Cell):
    """A cell whose state is normalized and scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(3)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return self.norm(self.enter(x) + self.stay(state)).relu()


class Buffered(nn.Module):
    """A cell whose first state is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = Cell(), nn.Linear(3, 2)
        self.register_buffer("first", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        state = self.first.expand(x.shape[1], 3)
        for step in x:
            state = self.cell(step, state)
        return self.out(state)
