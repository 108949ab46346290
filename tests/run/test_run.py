import math
import pickle

import numpy as np
import pandas as pd
import pytest

import gatdiag
from gatdiag.errors import InputError
from gatdiag.quantities import Quantity
from gatdiag.run import Store, load, schema
from tests.run.recorded import LAWS, LAYERS, META, PARAMETERS, append_step, value
from tests.run.synthetic import synthetic_run


@pytest.fixture(params=["sealed", "killed"])
def run(tmp_path, request):
    store = Store.create(tmp_path / "run", META)
    for step in range(9):
        append_step(store, step)
        if step == 4:
            store.flush()
    store.seal("finished") if request.param == "sealed" else store.close()
    return load(tmp_path / "run")


def test_the_frames_have_pandas_own_types_and_the_values_recorded(run):
    assert list(run.layers.columns) == ["step", "layer", *(c.name for c in schema.TABLES["layers"].columns)]
    assert list(run.parameters.columns[:4]) == ["step", "layer", "parameter", "role"]
    assert list(run.neurons.columns) == ["step", "layer", "neuron", "law", "delta", "c", "predicted_c"]
    for frame in (run.steps, run.layers, run.parameters, run.neurons):
        assert frame["step"].dtype == np.int64
        measured = [
            name for name in frame.columns if name not in {"step", "layer", "parameter", "role", "neuron", "law"}
        ]
        assert set(frame[measured].dtypes) == {np.dtype(np.float64)}
    rows = [(step, layer, value(step, at, 0.0)) for step in range(9) for at, layer in enumerate(LAYERS)]
    got = list(zip(run.layers["step"], run.layers["layer"], run.layers["mu"], strict=True))
    for (step, layer, mu), found in zip(rows, got, strict=True):
        assert found[:2] == (step, layer)
        assert found[2] == mu or math.isnan(mu) and math.isnan(found[2])  # noqa: RUF021


def test_names_are_categoricals_in_structure_order(run):
    assert tuple(run.layers["layer"].cat.categories) == LAYERS == run.layer_names
    assert tuple(run.neurons["layer"].cat.categories) == LAYERS
    names = tuple(name for _, name, _ in PARAMETERS)
    assert tuple(run.parameters["parameter"].cat.categories) == names == run.parameter_names
    assert list(run.parameters["role"][:3]) == [role for *_, role in PARAMETERS]
    assert list(run.parameters["layer"][:3]) == [layer for layer, *_ in PARAMETERS]


def test_neurons_without_an_index_or_a_recorded_layer_are_missing(run):
    assert run.neurons["neuron"].dtype == pd.Int32Dtype()
    assert list(run.neurons["neuron"][:3]) == [7, pd.NA, 0]
    assert run.neurons["layer"][:3].isna().tolist() == [layer not in LAYERS for layer, _ in LAWS]
    assert list(run.neurons["law"][:4]) == [0, 1, 2, 0]


def test_a_table_is_read_once_and_may_be_changed(run):
    assert run.layers is run.layers
    for frame in (run.layers, run.neurons, run.steps):
        column = frame.columns[-1]
        frame.loc[0, column] = 5.0
        assert frame.loc[0, column] == 5.0
        frame["step"] += 1
    assert load(run.folder).steps["step"][0] == 0


def test_facts_about_the_run(run):
    assert run.name == "run"
    assert run.logged == ("loss",)
    assert run.problems == ()
    assert not run.is_live
    assert repr(run) == f"Run({str(run.folder)!r}, {run.status})"
    assert pickle.loads(pickle.dumps(run)).steps.equals(run.steps)
    with pytest.raises(InputError, match="The tables of a run are steps, layers, parameters, neurons, got 'units'"):
        run.arrow("units")


def test_quantities_come_from_the_meta_data_or_are_the_bare_column(tmp_path):
    known = {
        "name": "mu",
        "table": "layers",
        "label": "mu of X",
        "unit": "X",
        "equation": r"\mu",
        "paper": None,
        "high": 3,
    }
    Store.create(tmp_path / "run", {"quantities": [known]}).close()
    run = load(tmp_path / "run")
    assert run.quantity("layers", "mu") == Quantity(
        "mu", "layers", label="mu of X", unit="X", equation=r"\mu", high="3"
    )
    assert run.quantity("steps", "val_f1") == Quantity("val_f1", "steps", label="val_f1")


def test_an_empty_run_has_empty_tables_of_the_right_types(tmp_path):
    store = Store.create(tmp_path / "run", {})
    for _ in range(2):
        run = load(tmp_path / "run")
        assert [len(getattr(run, name)) for name in ("steps", "layers", "parameters", "neurons")] == [0, 0, 0, 0]
        assert run.layers["step"].dtype == np.int64
        assert isinstance(run.parameters["role"].dtype, pd.CategoricalDtype)
        store.seal("finished")


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff" * 100, b"\x08\0\0\0\0\0\0\0{}{}{}{}", (2**63).to_bytes(8, "little") + b"{}", b"\x80\x04\x95cposix"],
)
def test_a_hostile_snapshot_is_refused(tmp_path, data):
    Store.create(tmp_path / "run", {}).close()
    (tmp_path / "run" / "best.safetensors").write_bytes(data)
    with pytest.raises(InputError, match=r"best.safetensors is damaged: expected tensors in the safetensors format"):
        load(tmp_path / "run").snapshot("best")
    with pytest.raises(InputError, match="A snapshot is one of"):
        load(tmp_path / "run").snapshot("../best")


def test_a_snapshot_of_a_type_numpy_lacks_is_refused_with_words(tmp_path):
    header = b'{"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    Store.create(tmp_path / "run", {}).close()
    (tmp_path / "run" / "best.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(InputError, match=r"best.safetensors is damaged.*(BF16|bfloat16)"):
        load(tmp_path / "run").snapshot("best")


def test_the_public_verb_is_the_same(tmp_path):
    folder = synthetic_run(tmp_path / "run", steps=2, layers=2, neurons=2)
    assert gatdiag.load(str(folder)).layers.equals(load(folder).layers)


@pytest.mark.parametrize("collapse", [False, True])
def test_the_made_up_run_is_what_it_says(tmp_path, collapse):
    run = load(synthetic_run(tmp_path / "run", steps=101, layers=5, neurons=3, collapse=collapse))
    last = run.parameters[(run.parameters["step"] == 100) & (run.parameters["role"] == "feature weight")]
    gradient = last["relative_gradient_norm"].to_numpy()
    assert bool(gradient[2] < 1e-4 * gradient[0]) is collapse
    assert bool(run.steps["loss"].iloc[-1] > 1.5) is collapse
    assert run.layers["effective_rank"].notna().sum() == 5 * 3
    assert {*run.snapshot("final")} == {*run.parameter_names}
    assert run.neurons["predicted_c"].isna().sum() == 4 * 3
