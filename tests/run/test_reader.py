"""Reading runs with pandas, Arrow and other tools: complete, live, truncated, damaged and hostile ones."""

import contextlib
import csv
import math
import pickle
import subprocess
import sys

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gatdiag
from gatdiag import quantities
from gatdiag.errors import InputError
from gatdiag.quantities import Quantity
from gatdiag.run import Store, export, load, seal, tables
from tests.run.recorded import LAWS, LAYERS, META, PARAMETERS, ROWS, append_step, check, files, record, same, value
from tests.run.synthetic import synthetic_run


@pytest.fixture(params=["sealed", "killed"])
def run(tmp_path, request):
    store = record(tmp_path / "run", range(20))
    store.seal("finished") if request.param == "sealed" else store.close()
    return load(tmp_path / "run")


@pytest.fixture
def sealed(tmp_path):
    record(tmp_path / "run", range(20)).seal("finished")
    return tmp_path / "run"


class TestFrames:
    def test_they_have_pandas_own_types_and_the_values_recorded(self, run):
        assert list(run.layers.columns) == ["step", "layer", *(c.name for c in quantities.columns("layers"))]
        assert list(run.parameters.columns[:4]) == ["step", "layer", "parameter", "role"]
        assert list(run.neurons.columns) == ["step", "layer", "neuron", "law", "delta", "c", "predicted_c"]
        for frame in (run.steps, run.layers, run.parameters, run.neurons):
            assert frame["step"].dtype == np.int64
            measured = [c for c in frame.columns if c not in {"step", "layer", "parameter", "role", "neuron", "law"}]
            assert set(frame[measured].dtypes) == {np.dtype(np.float64)}
        rows = [(step, layer, value(step, at, 0.0)) for step in range(20) for at, layer in enumerate(LAYERS)]
        got = zip(run.layers["step"], run.layers["layer"], run.layers["mu"], strict=True)
        for (step, layer, mu), found in zip(rows, got, strict=True):
            assert found[:2] == (step, layer)
            assert same(found[2], mu)

    def test_names_are_categoricals_in_structure_order(self, run):
        assert tuple(run.layers["layer"].cat.categories) == LAYERS == run.layer_names
        assert tuple(run.neurons["layer"].cat.categories) == LAYERS
        names = tuple(name for _, name, _ in PARAMETERS)
        assert tuple(run.parameters["parameter"].cat.categories) == names == run.parameter_names
        assert list(run.parameters["role"][:3]) == [role for *_, role in PARAMETERS]
        assert list(run.parameters["layer"][:3]) == [layer for layer, *_ in PARAMETERS]

    def test_neurons_without_an_index_or_a_recorded_layer_are_missing(self, run):
        assert run.neurons["neuron"].dtype == pd.Int32Dtype()
        assert list(run.neurons["neuron"][:3]) == [7, pd.NA, 0]
        assert run.neurons["layer"][:3].isna().tolist() == [layer not in LAYERS for layer, _ in LAWS]
        assert list(run.neurons["law"][:4]) == [0, 1, 2, 0]

    def test_a_table_is_read_once_and_may_be_changed(self, run):
        assert run.layers is run.layers
        for frame in (run.layers, run.neurons, run.steps):
            column = frame.columns[-1]
            frame.loc[0, column] = 5.0
            assert frame.loc[0, column] == 5.0
            frame["step"] += 1
        assert load(run.folder).steps["step"][0] == 0

    def test_facts_about_the_run(self, run):
        assert run.name == "run"
        assert run.logged_names == ("loss",)
        assert not run.is_live
        assert repr(run) == f"Run({str(run.folder)!r}, {run.status})"
        assert pickle.loads(pickle.dumps(run)).steps.equals(run.steps)
        assert gatdiag.load(str(run.folder)).layers.equals(run.layers)
        with pytest.raises(InputError, match=r"name of a table \(steps, layers, parameters, neurons\), got 'units'"):
            run.arrow("units")

    def test_an_empty_run_has_empty_tables_of_the_right_types(self, tmp_path):
        store = Store.create(tmp_path / "run", {})
        for _ in range(2):
            run = load(tmp_path / "run")
            assert [len(getattr(run, name)) for name in ROWS] == [0, 0, 0, 0]
            assert run.layers["step"].dtype == np.int64
            assert isinstance(run.parameters["role"].dtype, pd.CategoricalDtype)
            store.seal("finished")


def test_quantities_come_from_the_metadata_or_are_the_bare_column(tmp_path):
    known = {"name": "mu_2", "table": "layers", "label": "mu of X", "unit": "X", "equation": "μ₂", "high": 3}
    Store.create(tmp_path / "run", {"quantities": [{**known, "paper": None}]}).close()
    run = load(tmp_path / "run")
    expected = Quantity("mu_2", "layers", label="mu of X", unit="X", equation="μ₂", high="3")
    assert run.quantity("layers", "mu_2") == expected
    assert run.quantity("steps", "val_f1") == Quantity("val_f1", "steps", label="val_f1")


@pytest.mark.parametrize("known", [quantities.quantity("layers", "mu"), *quantities.STORED], ids=lambda each: each.name)
def test_an_older_run_with_latex_shows_the_equation_of_the_catalog(tmp_path, known):
    old = {"name": known.name, "table": known.table, "label": known.label, "equation": r"\|X\|_F"}
    Store.create(tmp_path / "run", {"quantities": [old]}).close()
    assert load(tmp_path / "run").quantity(known.table, known.name).equation == known.equation


@pytest.mark.parametrize("collapse", [False, True])
def test_the_made_up_run_is_what_it_says(tmp_path, collapse):
    run = load(synthetic_run(tmp_path / "run", steps=101, layers=5, neurons=3, collapse=collapse))
    last = run.parameters[(run.parameters["step"] == 100) & (run.parameters["role"] == "feature weight")]
    gradient = last["relative_gradient_norm"].to_numpy()
    assert bool(gradient[2] < 1e-4 * gradient[0]) is collapse
    assert bool(run.steps["loss"].iloc[-1] > 1.5) is collapse
    assert run.layers["effective_rank"].notna().sum() == 5 * 3
    assert not (run.layers[list(quantities.GROUPS["ranks"].columns)] < 1).any(axis=None)
    assert {*run.snapshot("final")} == {*run.parameter_names}
    assert run.neurons["predicted_c"].isna().sum() == 4 * 3


# --- other tools ------------------------------------------------------------------------------------------------------


def by_pandas(path):
    frame = pd.read_parquet(path)
    assert isinstance(frame["layer"].dtype, pd.CategoricalDtype)
    return list(zip(frame["step"], frame["layer"], frame["mu"], strict=True))


def by_polars(path):
    return pl.read_parquet(path).select("step", pl.col("layer").cast(pl.String), "mu").rows()


def by_duckdb(path):
    return duckdb.sql(f"select step, layer, mu from '{path}'").fetchall()


@pytest.mark.parametrize("reader", [by_pandas, by_polars, by_duckdb])
def test_other_tools_read_every_value(sealed, reader):
    rows = reader(sealed / "layers.parquet")
    expected = [(step, layer, value(step, at, 0.0)) for step in range(20) for at, layer in enumerate(LAYERS)]
    assert [row[:2] for row in rows] == [row[:2] for row in expected]
    assert all(same(row[2], wanted[2]) for row, wanted in zip(rows, expected, strict=True))


def test_duckdb_and_polars_tell_null_from_nan_and_join_the_tables(sealed):
    ((nulls, nans),) = duckdb.sql(
        f"select count(*) filter (c is null), count(*) filter (isnan(c)) from '{sealed}/neurons.parquet'"
    ).fetchall()
    frame = pl.read_parquet(sealed / "neurons.parquet")
    assert nulls == frame["c"].null_count() == 3 * sum(step % 2 for step in range(20))
    assert (nans, frame["delta"].is_nan().sum(), frame["delta"].null_count()) == (0, 3 * 2, 0)
    joined = duckdb.sql(
        f"select loss, mu from '{sealed}/steps.parquet' join '{sealed}/layers.parquet' using (step) "
        "where layer = 'first' and step = 4"
    ).fetchall()
    assert joined == [(value(4, 0, 0.0), value(4, 1, 0.0))]


def test_plain_arrow_reads_a_stream_with_its_names(tmp_path):
    record(tmp_path / "run", range(3)).close()
    table = pa.ipc.open_stream((tmp_path / "run" / "parameters.arrows").read_bytes()).read_all()
    assert table.column("parameter").to_pylist() == [name for _, name, _ in PARAMETERS] * 3
    assert table.column("norm").to_pylist() == [value(step, at, 0.0) for step in range(3) for at in range(3)]


def test_a_file_rewritten_by_another_tool_is_read_as_well(sealed):
    expected = load(sealed).layers
    duckdb.sql(f"copy (from '{sealed}/layers.parquet') to '{sealed}/again.parquet'")
    (sealed / "again.parquet").replace(sealed / "layers.parquet")
    assert load(sealed).layers.equals(expected)


class TestExport:
    @pytest.mark.parametrize("table", ROWS)
    def test_csv_gives_back_every_bit_null_and_nan(self, run, tmp_path, table):
        folder = export(run, tmp_path / "a" / "csv", "csv")
        assert files(folder) == ["layers.csv", "meta.json", "neurons.csv", "parameters.csv", "steps.csv"]
        with (folder / f"{table}.csv").open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        expected = run.arrow(table).to_pylist()
        assert header == run.arrow(table).column_names
        for row, wanted in zip(rows, expected, strict=True):
            for text, number in zip(row, wanted.values(), strict=True):
                assert text == number if isinstance(number, str) else same(float(text) if text else None, number)

    def test_pandas_reads_the_csv(self, run, tmp_path):
        path = export(run, tmp_path / "csv", "csv") / "layers.csv"
        frame = pd.read_csv(path, dtype={name: kind for name, kind in run.layers.dtypes.items() if name != "step"})
        pd.testing.assert_frame_equal(frame, run.layers, rtol=1e-14)
        assert math.isinf(frame["mu"][10])

    def test_parquet_is_a_run_that_can_be_loaded_and_resumed(self, run, tmp_path):
        folder = export(run, tmp_path / "parquet", "parquet")
        check(load(folder), range(20))
        assert load(folder).meta["structure"] == run.meta["structure"]
        store = Store.resume(folder, 5)
        append_step(store, 5, 1.0)
        store.seal("finished")
        check(load(folder), [*range(5), (5, 1.0)])

    def test_nothing_is_overwritten_without_being_told_and_then_only_its_own(self, run, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "notes.txt").write_text("mine")
        (tmp_path / "out" / "layers.csv").write_text("mine too")
        with pytest.raises(InputError, match=r"already holds layers.csv: replace them with overwrite=True"):
            export(run, tmp_path / "out", "csv")
        assert files(tmp_path / "out") == ["layers.csv", "notes.txt"]
        export(run, tmp_path / "out", "csv", overwrite=True)
        assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
        assert (tmp_path / "out" / "layers.csv").read_text() != "mine too"

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    @pytest.mark.parametrize("is_there", [False, True])
    def test_all_tables_are_exported_or_none(self, run, tmp_path, kind, is_there):
        if is_there:
            export(run, tmp_path / "out", kind)
        before = {path.name: path.read_bytes() for path in tmp_path.glob("out/*")}
        seal(run.folder)
        (run.folder / "neurons.parquet").write_bytes(b"no table")
        with pytest.raises(InputError, match=r"neurons\.parquet is damaged"):
            export(load(run.folder), tmp_path / "out", kind, overwrite=True)
        assert {path.name: path.read_bytes() for path in tmp_path.glob("out/*")} == before

    def test_what_cannot_be_exported_to_is_refused(self, run, tmp_path):
        before = files(run.folder)
        with pytest.raises(InputError, match="is the folder of the run itself"):
            export(run, run.folder / ".." / "run", "parquet", overwrite=True)
        with pytest.raises(InputError, match="Expected the format csv or parquet, got 'xls'"):
            export(run, tmp_path / "out", "xls")
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="is a file"):
            export(run, tmp_path / "file", "csv")
        assert files(run.folder) == before
        assert not (tmp_path / "out").exists()


# --- live -------------------------------------------------------------------------------------------------------------

WRITER = """
import sys, time
from gatdiag.run import Store
from tests.run.recorded import META, append_step
store = Store.create(sys.argv[1], META)
print("begun", flush=True)
for life in range(3):
    for step in range(life * 20, life * 20 + 20):
        append_step(store, step)
        time.sleep(0.002)
    store.seal("finished")
    if life < 2:
        store = Store.resume(sys.argv[1])
"""


@pytest.mark.filterwarnings("error")
def test_every_reading_of_a_live_run_is_a_beginning_of_it_and_no_shorter_than_the_last(tmp_path):
    folder = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"begun\n"
        seen, readings = dict.fromkeys(ROWS, 0), 0
        while writer.poll() is None:
            run = load(folder)
            for name, rows in reversed(ROWS.items()):
                found = getattr(run, name)
                assert list(found["step"]) == [row // rows for row in range(len(found))]
                assert seen[name] <= len(found)
                seen[name] = len(found)
            readings += 1
    assert writer.returncode == 0
    assert readings > 3
    check(load(folder), range(60))


def test_a_run_that_is_sealed_and_resumed_while_a_table_is_opened_is_not_empty(tmp_path, monkeypatch):
    store, read = record(tmp_path / "run", range(3)), tables.read

    def sealed_and_resumed_just_now(*given, **more):
        monkeypatch.setattr(tables, "read", read)
        store.seal("finished")
        Store.resume(store.folder).close()
        raise FileNotFoundError

    monkeypatch.setattr(tables, "read", sealed_and_resumed_just_now)
    assert len(load(store.folder).layers) == 6


def test_the_tables_of_a_run_that_is_being_recorded_are_of_one_moment(tmp_path):
    store = record(tmp_path / "run", range(3))
    run = load(store.folder)
    steps = run.steps
    append_step(store, 3)
    assert len(steps) == 3
    check(run, range(3))
    check(load(store.folder), range(4))
    store.seal("finished")
    check(run, range(3))


def test_a_layer_that_is_described_while_tables_are_read_is_known(tmp_path, monkeypatch):
    """As at the first step of a training: the recorder knows all layers, and then writes rows of them."""
    structure = META["structure"]
    store = Store.create(tmp_path / "run", META | {"structure": structure | {"layers": structure["layers"][:1]}})
    read = tables.read

    def just_before(folder, table, **more):
        if table == "layers":
            monkeypatch.setattr(tables, "read", read)
            store.update_meta(structure=structure)
            append_step(store, 0)
        return read(folder, table, **more)

    monkeypatch.setattr(tables, "read", just_before)
    run = load(store.folder)
    assert run.layer_names == LAYERS == tuple(run.layers["layer"])
    store.close()


# --- cut off and damaged ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A killed run, and the sizes of its streams after each step."""
    folder = tmp_path_factory.mktemp("pieces") / "run"
    store, sizes = Store.create(folder, META), []
    for step in range(6):
        append_step(store, step)
        sizes.append({name: (folder / name).stat().st_size for name in ("layers.arrows", "steps.jsonl")})
    store.close()
    return {path.name: path.read_bytes() for path in folder.iterdir()}, sizes


@pytest.fixture
def killed(pieces, tmp_path):
    for name, data in pieces[0].items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def steps_of(folder, name):
    return list(getattr(load(folder), name)["step"])[:: ROWS[name]]


@pytest.mark.parametrize(("name", "table"), [("layers.arrows", "layers"), ("steps.jsonl", "steps")])
def test_cut_anywhere_a_stream_gives_every_whole_step(killed, pieces, name, table):
    data, ends = pieces[0][name], [size[name] for size in pieces[1]]
    begin = ends[0] if table == "layers" else 0  # a stream begins whole
    for size in {*range(begin, len(data), 127), *ends, *(end - 1 for end in ends[1:]), *(end + 1 for end in ends[:-1])}:
        (killed / name).write_bytes(data[:size])
        assert steps_of(killed, table) == list(range(sum(end <= size for end in ends)))


def test_a_run_is_resumed_after_a_cut_tail(killed):
    for name in ("layers.arrows", "neurons.arrows", "parameters.arrows", "steps.jsonl"):
        (killed / name).write_bytes((killed / name).read_bytes()[:-20])
    store = Store.resume(killed)
    assert store.next_step == 5
    append_step(store, 5, 1.0)
    store.seal("finished")
    check(load(killed), [*range(5), (5, 1.0)])


@pytest.mark.parametrize("filling", [b"\0", b"\xff", b"A"])
def test_a_stream_is_read_up_to_its_first_damage(killed, pieces, filling):
    for name, table in (("layers.arrows", "layers"), ("steps.jsonl", "steps")):
        data, ends = bytearray(pieces[0][name]), [size[name] for size in pieces[1]]
        data[ends[1] + 16 : ends[2] - 1] = filling * (ends[2] - ends[1] - 17)
        (killed / name).write_bytes(data)
        assert steps_of(killed, table) == [0, 1]
        (killed / name).write_bytes(pieces[0][name][: ends[2]] + filling * 5000)
        assert steps_of(killed, table) == [0, 1, 2]
    seal(killed)
    assert steps_of(killed, "layers") == [0, 1, 2]


@pytest.mark.parametrize("name", ["layers.arrows", "steps.jsonl"])
def test_any_single_damaged_byte_neither_crashes_nor_invents_rows(killed, pieces, name):
    random = np.random.default_rng(0)
    data = pieces[0][name]
    for at in random.integers(0, len(data), 100):
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(random.integers(8))
        (killed / name).write_bytes(damaged)
        with contextlib.suppress(InputError):
            assert len(steps_of(killed, name.partition(".")[0])) <= 6


@pytest.mark.parametrize("data", [b"", b"PAR1", b"nonsense" * 100, b"PAR1" + b"\xff" * 200 + b"PAR1"])
def test_a_table_that_cannot_be_read_at_all_is_refused(sealed, killed, data):
    (killed / "layers.arrows").write_bytes(data)
    (sealed / "layers.parquet").write_bytes(data)
    for folder, name in ((killed, "layers.arrows"), (sealed, "layers.parquet")):
        with pytest.raises(InputError, match=f"{name} is damaged and cannot be read"):
            _ = load(folder).layers
        assert len(load(folder).parameters)


def test_a_damaged_page_of_parquet_is_noticed(sealed):
    path = sealed / "layers.parquet"
    file = pq.ParquetFile(path)
    column = file.metadata.row_group(0).column(file.schema_arrow.names.index("mu"))
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"layers.parquet is damaged and cannot be read"):
        _ = load(sealed).layers


def test_a_table_of_other_types_is_converted_or_refused(sealed):
    path = sealed / "layers.parquet"
    frame = pd.read_parquet(path)
    for wrong in (frame.assign(mu="high"), frame.assign(mu=[[1.0]] * len(frame))):
        wrong.to_parquet(path)
        with pytest.raises(InputError, match=r"layers.parquet is damaged"):
            _ = load(sealed).layers
    frame.assign(step=frame["step"].astype(float)).drop(columns="mu").to_parquet(path)
    assert load(sealed).layers["mu"].isna().all()
    assert list(load(sealed).layers["step"]) == [row // 2 for row in range(40)]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("steps", "step, but there are several of step 0;"),
        ("layers", "step and layer, but there are several of step 0 and layer second;"),
        ("parameters", "step and parameter, but there are several of step 0 and parameter"),
        ("neurons", "step and conservation law, but there are several of step 0 and law 0;"),
    ],
)
def test_rows_that_are_there_twice_are_told_of(sealed, name, what):
    path = sealed / f"{name}.parquet"
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table]), path)
    with pytest.raises(InputError, match=rf"table {name} of .* is damaged: expected one row per {what}"):
        getattr(load(sealed), name)


def test_a_table_that_is_missing_from_a_sealed_run_is_told_of(sealed):
    (sealed / "steps.parquet").unlink()
    with pytest.raises(InputError, match=r"steps\.parquet is missing, though the run was sealed"):
        _ = load(sealed).steps


HOSTILE = [
    b"",
    b"\xff" * 100,
    b"\x08\0\0\0\0\0\0\0{}{}{}{}",
    (2**63).to_bytes(8, "little") + b"{}",
    b"\x80\x04\x95cposix",
]
HEADER = b'{"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'


@pytest.mark.parametrize("data", [*HOSTILE, len(HEADER).to_bytes(8, "little") + HEADER + b"\0\0"])
def test_a_hostile_snapshot_is_refused(tmp_path, data):
    Store.create(tmp_path / "run", {}).close()
    (tmp_path / "run" / "best.safetensors").write_bytes(data)
    with pytest.raises(InputError, match=r"best.safetensors is damaged: expected tensors in the safetensors format"):
        load(tmp_path / "run").snapshot("best")
    with pytest.raises(InputError, match="Expected the name of a snapshot"):
        load(tmp_path / "run").snapshot("../best")
