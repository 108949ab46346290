"""The laws found in every model of the zoo are as many as the null space of its gradients has dimensions."""

import pytest

from gatdiag.laws import find_laws
from tests.laws.referee import count_kinds, count_laws
from tests.laws.zoo import ZOO, build

SHORTFALLS: dict[str, str] = {}  # name -> why fewer laws are found than there are


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ZOO)
def test_as_many_laws_as_the_referee_counts(name: str, request: pytest.FixtureRequest) -> None:
    if name in SHORTFALLS:
        request.applymarker(pytest.mark.xfail(reason=SHORTFALLS[name], strict=True))
    model, args, kwargs = build(name)
    found = find_laws(model, *args, **kwargs)

    assert (len(found), sum(law.exact for law in found)) == count_kinds(*build(name)), found.excluded


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", SHORTFALLS)
def test_never_more_laws_than_there_are(name: str) -> None:
    model, args, kwargs = build(name)
    found = find_laws(model, *args, **kwargs)

    assert len(found) <= count_laws(*build(name))
