import csv
import math

import numpy as np
import pandas as pd
import pytest

import gatdiag.run
from gatdiag.errors import InputError
from gatdiag.run import Store, export, load
from tests.run.recorded import META, TABLES, append_step, check, files, same


@pytest.fixture(params=["sealed", "recording"])
def run(tmp_path, request):
    store = Store.create(tmp_path / "run", META)
    for step in range(20):
        append_step(store, step)
    store.append("steps", {"step": 20, "loss": -np.inf, 'a "quoted", name\n': 1 / 3})
    store.flush()
    if request.param == "sealed":
        store.seal("finished")
        yield load(tmp_path / "run")
    else:
        yield load(tmp_path / "run")
        store.close()


@pytest.mark.parametrize("table", TABLES)
def test_csv_gives_back_every_bit_null_and_nan(run, tmp_path, table):
    folder = export(run, tmp_path / "a" / "csv", "csv")
    assert files(folder) == ["layers.csv", "meta.json", "neurons.csv", "parameters.csv", "steps.csv"]
    with (folder / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    expected = run.arrow(table).to_pylist()
    assert header == run.arrow(table).column_names
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        for text, value in zip(row, wanted.values(), strict=True):
            assert text == value if isinstance(value, str) else same(float(text) if text else None, value)


def test_pandas_reads_the_csv(run, tmp_path):
    path = export(run, tmp_path / "csv", "csv") / "layers.csv"
    frame = pd.read_csv(path, dtype={name: kind for name, kind in run.layers.dtypes.items() if name != "step"})
    pd.testing.assert_frame_equal(frame, run.layers, rtol=1e-14)
    assert math.isinf(frame["mu"][10])


def test_parquet_is_a_run_that_can_be_loaded(run, tmp_path):
    folder = export(run, tmp_path / "parquet", "parquet")
    again = load(folder)
    for table in TABLES:
        assert again.arrow(table).schema.equals(run.arrow(table).schema)
        pairs = zip(again.arrow(table).to_pylist(), run.arrow(table).to_pylist(), strict=True)
        for found, wanted in pairs:
            assert all(value == found[key] or same(found[key], value) for key, value in wanted.items())
    assert again.meta["structure"] == run.meta["structure"]
    store = Store.resume(folder, 5)
    append_step(store, 5, 1.0)
    store.seal("finished")
    check(load(folder), [*((step, 0.0) for step in range(5)), (5, 1.0)])


def test_nothing_is_overwritten_without_being_told_and_then_only_its_own(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "layers.csv").write_text("mine too")
    with pytest.raises(InputError, match=r"already holds layers.csv; say overwrite=True"):
        export(run, tmp_path / "out", "csv")
    assert files(tmp_path / "out") == ["layers.csv", "notes.txt"]
    export(run, tmp_path / "out", "csv", overwrite=True)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "out" / "layers.csv").read_text() != "mine too"


def test_what_cannot_be_exported_to_is_refused(run, tmp_path):
    before = files(run.folder)
    with pytest.raises(InputError, match="is the folder of the run itself"):
        export(run, run.folder / ".." / "run", "parquet", overwrite=True)
    with pytest.raises(InputError, match="to csv or parquet, got 'xls'"):
        export(run, tmp_path / "out", "xls")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        export(run, tmp_path / "file", "csv")
    assert files(run.folder) == before
    assert not (tmp_path / "out").exists()


def test_it_is_public():
    assert gatdiag.run.export is export
