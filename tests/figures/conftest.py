import gc

import matplotlib as mpl
import pandas as pd
import pytest

from gatdiag.figures import table
from gatdiag.run import load
from tests.figures.canvas import drawn
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


@pytest.fixture(scope="session")
def shown(runs, grown):
    """A figure, the name of a run (or several) and a width -> its data, and its drawing, made once."""
    made = {}

    def show(figure, name="ordinary", width="double"):
        key = figure.name, name, width
        if key not in made:
            of = [runs[one] for one in name] if isinstance(name, tuple) else runs[name]
            values = table(figure, grown if figure.is_comparison and name == "ordinary" else of)
            before, settings = values.copy(), dict(mpl.rcParams)
            made[key] = values, drawn(figure, values, width)
            pd.testing.assert_frame_equal(values, before)  # drawing changes neither the data nor the settings
            assert dict(mpl.rcParams) == settings
            gc.freeze()  # what is kept need not be searched for garbage again and again
        return made[key]

    yield show
    gc.unfreeze()
