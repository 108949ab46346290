"""What a sealed run is to tools that know nothing of gatdiag, and what is left of a damaged one."""

import warnings

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

from gatdiag.run import Store, load, parquet, seal
from tests.run.recorded import LAYERS, META, append_step, check, files, same, value


@pytest.fixture
def folder(tmp_path):
    store = Store.create(tmp_path / "run", META)
    for step in range(20):
        append_step(store, step)
    store.seal("finished")
    return tmp_path / "run"


def by_pandas(path):
    frame = pd.read_parquet(path)
    assert isinstance(frame["layer"].dtype, pd.CategoricalDtype)
    return list(zip(frame["step"], frame["layer"], frame["mu"], strict=True))


def by_polars(path):
    return pl.read_parquet(path).select("step", pl.col("layer").cast(pl.String), "mu").rows()


def by_duckdb(path):
    return duckdb.sql(f"select step, layer, mu from '{path}'").fetchall()


@pytest.mark.parametrize("reader", [by_pandas, by_polars, by_duckdb])
def test_other_tools_read_every_value(folder, reader):
    rows = reader(folder / "layers.parquet")
    expected = [(step, layer, value(step, at, 0.0)) for step in range(20) for at, layer in enumerate(LAYERS)]
    assert [row[:2] for row in rows] == [row[:2] for row in expected]
    assert all(same(row[2], wanted[2]) for row, wanted in zip(rows, expected, strict=True))


def test_duckdb_and_polars_tell_null_from_nan_and_join_the_tables(folder):
    ((nulls, nans),) = duckdb.sql(
        f"select count(*) filter (c is null), count(*) filter (isnan(c)) from '{folder}/neurons.parquet'"
    ).fetchall()
    frame = pl.read_parquet(folder / "neurons.parquet")
    assert nulls == frame["c"].null_count() == 3 * sum(step % 2 for step in range(20))
    delta = pl.read_parquet(folder / "neurons.parquet")["delta"]
    assert (nans, delta.is_nan().sum(), delta.null_count()) == (0, 3 * 2, 0)
    joined = duckdb.sql(
        f"select loss, mu from '{folder}/steps.parquet' join '{folder}/layers.parquet' using (step) "
        "where layer = 'first' and step = 4"
    ).fetchall()
    assert joined == [(value(4, 0, 0.0), value(4, 1, 0.0))]


def test_row_groups_bound_the_memory_of_sealing(folder, monkeypatch):
    monkeypatch.setattr(parquet, "_ROWS_A_GROUP", 7)
    store = Store.resume(folder)
    for step in range(20, 40):
        append_step(store, step)
        store.flush()
    sizes = []
    write = pq.ParquetWriter.write_table
    monkeypatch.setattr(
        pq.ParquetWriter, "write_table", lambda self, t, **k: (sizes.append(len(t)), write(self, t, **k))
    )
    store.seal("finished")
    file = pq.ParquetFile(folder / "neurons.parquet")
    groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    assert max(groups) <= 7
    assert max(sizes) <= 60 + 7  # one batch of the former file, and what was left over
    check(load(folder), [(step, 0.0) for step in range(40)])


def test_a_damaged_row_group_costs_its_rows_alone(folder, monkeypatch):
    monkeypatch.setattr(parquet, "_ROWS_A_GROUP", 10)
    store = Store.resume(folder, 19)
    append_step(store, 19)
    store.seal("finished")
    path = folder / "layers.parquet"
    file = pq.ParquetFile(path)
    column = file.metadata.row_group(1).column(file.schema_arrow.names.index("mu"))
    data = bytearray(path.read_bytes())
    at = column.data_page_offset + column.total_compressed_size - 3
    data[at] ^= 0xFF
    path.write_bytes(data)
    run = load(folder)
    with pytest.warns(UserWarning, match="layers.parquet: row group 1 is damaged; its rows are lost"):
        assert list(run.layers["step"]) == [*(row // 2 for row in range(10)), *(row // 2 for row in range(20, 40))]
    assert len(run.problems) == 1
    assert len(run.neurons) == 60


@pytest.mark.parametrize("data", [b"", b"PAR1", b"nonsense" * 100, b"PAR1" + b"\xff" * 200 + b"PAR1"])
def test_a_table_that_cannot_be_read_at_all_is_empty_with_a_warning(folder, data):
    (folder / "layers.parquet").write_bytes(data)
    run = load(folder)
    with pytest.warns(UserWarning, match=r"layers.parquet is damaged and cannot be read"):
        assert len(run.layers) == 0
    assert len(run.parameters) == 60
    store = Store.resume(folder)
    append_step(store, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.seal("finished")
    assert "layers.parquet.damaged" in files(folder)
    assert (folder / "layers.parquet.damaged").read_bytes() == data
    assert any("layers.parquet is damaged" in note for note in load(folder).meta["notes"])
    assert list(load(folder).layers["step"]) == [20, 20]


def test_a_table_of_other_types_costs_what_does_not_fit(folder):
    frame = pd.read_parquet(folder / "layers.parquet")
    frame.assign(mu="high", step=frame["step"].astype(float)).to_parquet(folder / "layers.parquet")
    run = load(folder)
    assert run.layers["mu"].isna().all()
    assert list(run.layers["step"]) == [row // 2 for row in range(40)]
    frame.drop(columns="step").to_parquet(folder / "layers.parquet")
    run = load(folder)
    with pytest.warns(UserWarning, match="the column step is missing or damaged"):
        assert len(run.layers) == 0


def test_names_that_the_meta_data_do_not_have_are_left_out_with_a_warning(folder):
    frame = pd.read_parquet(folder / "layers.parquet")
    frame["layer"] = frame["layer"].astype(str).replace("first", "third")
    frame.to_parquet(folder / "layers.parquet")
    run = load(folder)
    with pytest.warns(UserWarning, match="20 rows are about a layer that meta.json does not have"):
        assert list(run.layers["layer"]) == ["second"] * 20


def test_a_file_rewritten_by_another_tool_is_read_as_well(folder):
    expected = load(folder).layers
    duckdb.sql(f"copy (from '{folder}/layers.parquet') to '{folder}/again.parquet'")
    (folder / "again.parquet").replace(folder / "layers.parquet")
    assert load(folder).layers.equals(expected)
    seal(folder)
    assert load(folder).layers.equals(expected)


def test_floats_keep_every_bit(folder):
    mu = load(folder).arrow("layers").column("mu").to_pylist()
    assert all(same(found, value(row // 2, row % 2, 0.0)) for row, found in enumerate(mu))
    assert np.signbit(load(folder).layers["mu"][12])
