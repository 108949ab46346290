import numpy as np
import pytest

from tests.figures.odd_runs import broken_run, recorded_run
from tests.run.synthetic import synthetic_meta

ROLES = ("feature weight", "attention vector", "bias")


@pytest.fixture(scope="session")
def broken(tmp_path_factory):
    return broken_run(tmp_path_factory.mktemp("runs") / "broken")


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """Three layers, each with two feature weights of different size; random values; mu at every second step only."""
    meta = synthetic_meta(3, 4)
    for layer in meta["structure"]["layers"]:
        second = {**layer["parameters"][0], "name": f"{layer['name']}.second", "names": [], "shape": [4, 2]}
        layer["parameters"].append(second)
    random = np.random.default_rng(0)

    def rows(step):
        return {
            "steps": {"loss": 1.0, **({"val_accuracy": 0.1 * step} if step % 2 else {})},
            "layers": {"layer": np.arange(3), **({"mu": random.random(3)} if step % 2 == 0 else {})},
            "parameters": {
                "parameter": np.arange(12),
                **{name: random.random(12) for name in ("norm", "gradient_norm", "unchanged_fraction")},
                "relative_gradient_norm": random.random(12),
                "changed_fraction_005": random.random(12),
                "significant_fraction": random.random(12),
            },
            "neurons": {"law": np.arange(8), "delta": random.normal(size=8), "c": random.normal(size=8)},
        }

    return recorded_run(tmp_path_factory.mktemp("runs") / "shared", meta, rows, 5)
