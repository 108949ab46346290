import pytest

from gatdiag.run import load
from tests.figures.odd_runs import odd_runs
from tests.run.synthetic import synthetic_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    return odd_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def grown(tmp_path_factory):
    """Two variants, two depths, two seeds."""
    folder = tmp_path_factory.mktemp("grown")
    made = [(kind, layers, seed) for kind in ("stuck", "trained") for layers in (3, 5) for seed in (0, 1)]
    paths = [folder / f"{kind}-L{layers}-seed{seed}" for kind, layers, seed in made]
    for path, (kind, layers, seed) in zip(paths, made, strict=True):
        synthetic_run(path, steps=20, layers=layers, neurons=3, seed=seed, collapse=kind == "stuck")
    return [load(path) for path in paths]
