"""Tables with pages, against dictionaries."""

import torch

from gatdiag.laws.bindings import Bindings

COUNTS = (200, 10**4, 3 * 10**7)


def draw(count: int, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randint(1, count, shape, generator=torch.Generator().manual_seed(seed))


def test_what_was_bound_is_substituted_and_nothing_else() -> None:
    bindings, known = Bindings(), dict[int, tuple[int, int]]()
    for seed, count in enumerate(COUNTS):
        bindings.extend(count)
        ids = draw(count, (90,), seed).unique()[:60].reshape(6, 10)
        plus, minus = draw(count, (6, 1), seed + 10), draw(count, (1, 10), seed + 20)
        bindings.bind(ids, plus, minus)
        pairs = zip(plus.expand(6, 10).flatten().tolist(), minus.expand(6, 10).flatten().tolist(), strict=True)
        known |= zip(ids.flatten().tolist(), pairs, strict=True)

    asked = torch.tensor([0, *known, *draw(COUNTS[-1], (300,), 30).tolist()])
    found = bindings.substitute(asked)
    assert found is not None
    expected = [known.get(unknown, (unknown, 0)) for unknown in asked.tolist()]
    assert list(zip(*(part.tolist() for part in found), strict=True)) == expected
    assert bindings.substitute(torch.tensor([[0, COUNTS[-1] - 1]])) is None


def test_what_is_among_others_is_found_as_often_as_it_is_asked() -> None:
    bindings = Bindings()
    bindings.extend(COUNTS[-1])
    others = [draw(count, (4, 5), seed) for seed, count in enumerate(COUNTS)]
    asked = torch.cat([draw(COUNTS[0], (50, 2), 5), draw(COUNTS[-1], (50, 2), 6), others[2][:2, :2]])

    for _ in range(2):
        expected = torch.isin(asked, torch.cat([array.flatten() for array in others]))
        assert torch.equal(bindings.isin(asked, others), expected)
        assert bool(expected.any())
        assert not bool(expected.all())
    assert not bool(bindings.isin(asked, []).any())


def test_memory_is_taken_where_something_is_written_only() -> None:
    bindings = Bindings()
    bindings.extend(COUNTS[-1])
    ids = torch.arange(5) * (COUNTS[-1] // 5)
    bindings.bind(ids, ids + 1, ids + 2)

    assert sum(table.numel() for table in vars(bindings).values() if isinstance(table, torch.Tensor)) < COUNTS[-1] / 100
