"""Rows that are appended can be read: while recording, sealed, resumed, after interrupts, and with a full disk."""

import contextlib
import json
import multiprocessing
import resource
import shutil
import signal

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatdiag.errors import InputError
from gatdiag.run import Store, fill_parameters, load, seal
from gatdiag.run.files import acquire_lock
from tests.run.recorded import META, ROWS, SEALED, STREAMS, append_step, check, files, record, same, step_rows


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "one"


class TestAppend:
    def test_what_is_appended_is_what_is_read_before_and_after_sealing(self, folder):
        store = Store.create(folder, META)
        for step in range(20):
            append_step(store, step)
            check(load(folder), range(step + 1))
        assert files(folder) == STREAMS
        store.seal("finished")
        assert files(folder) == SEALED
        check(load(folder), range(20))

    @settings(deadline=None, max_examples=20)
    @given(
        st.lists(
            st.lists(st.none() | st.floats(), min_size=2, max_size=2) | st.none() | st.floats(), min_size=1, max_size=6
        )
    )
    def test_any_number_null_and_nan_come_back(self, tmp_path_factory, given):
        folder = tmp_path_factory.mktemp("run")
        store = Store.create(folder, META)
        for step, mu in enumerate(given):
            if isinstance(mu, list):
                mu = np.ma.array([0.0 if x is None else x for x in mu], mask=[x is None for x in mu])
            store.append("layers", {"step": step, "layer": [1, 0], "mu": mu})
        expected = [each if isinstance(each, list) else [each, each] for each in given]
        for status in ("finished", None):
            found = load(folder).arrow("layers").to_pylist()
            assert [row["layer"] for row in found] == ["first", "second"] * len(given)
            wanted = [x for pair in expected for x in pair]
            assert all(same(row["mu"], x) for row, x in zip(found, wanted, strict=True))
            if status:
                store.seal(status)

    def test_rows_of_several_steps_at_once_are_those_of_one_after_the_other(self, tmp_path):
        steps, layers, mu = [0, 2, 7], np.tile([1, 0], 3), np.ma.array(np.arange(6.0), mask=[0, 1, 0, 0, 0, 0])
        loss, accuracy = np.array([1.0, np.nan, 3.0], np.float32), [0.1, 0.2, None]
        rows = [
            {"step": step, "loss": loss[at], "accuracy": accuracy[at], "rate": 0.1} for at, step in enumerate(steps)
        ]
        stores = [Store.create(tmp_path / name, META) for name in ("at once", "in turn")]
        stores[0].append("steps", rows)
        stores[0].append("layers", {"step": np.repeat(steps, 2), "layer": layers, "mu": mu, "mad": 0.5})
        for at, step in enumerate(steps):
            stores[1].append("steps", rows[at])
            stores[1].append("layers", {"step": step, "layer": [1, 0], "mu": mu[2 * at : 2 * at + 2], "mad": 0.5})
        for is_sealed in (False, True):
            for store in stores:
                store.seal("finished") if is_sealed else None
            for table in ("steps", "layers"):
                one, other = (load(store.folder).arrow(table).to_pylist() for store in stores)
                assert len(one) == (3 if table == "steps" else 6)
                assert repr(one) == repr(other)
        assert [store.next_step for store in stores] == [8, 8]

    def test_some_of_the_layers_and_any_number_of_rows(self, folder):
        store = Store.create(folder, META)
        for step in range(5):
            store.append("layers", {"step": step, "layer": [step % 2], "mu": step})
        store.append("layers", {"step": 5, "layer": [0, 1] * 20, "mu": np.arange(40.0)})
        store.close()
        rows = load(folder).arrow("layers").to_pydict()
        assert rows["layer"] == ["second", "first", "second", "first", "second", *["second", "first"] * 20]
        assert rows["mu"] == [*range(5), *range(40)]

    def test_a_new_logged_scalar_is_null_before(self, folder):
        store = Store.create(folder, META)
        store.append("steps", {"step": 0, "loss": 1.0, "later": None})
        store.append("steps", {"step": 1, "loss": 2.0, "f1.macro": 3})
        store.append("steps", {"step": 2, "loss": np.float32("nan")})
        for _ in range(2):
            rows = load(folder).arrow("steps").to_pylist()
            assert [(row["step"], row["loss"], row["f1.macro"]) for row in rows[:2]] == [(0, 1.0, None), (1, 2.0, 3.0)]
            assert np.isnan(rows[2]["loss"])
            assert rows[2]["f1.macro"] is None
            assert load(folder).logged_names == ("loss", "f1.macro")
            store.seal("finished")

    @pytest.mark.parametrize(
        "columns",
        [
            {"step": 0, "layer": [0, 1], "mu": [1.0, 2.0, 3.0]},
            {"layer": [0]},
            {"step": 0, "layer": [0, 2]},
            {"step": 0, "layer": [0], "nu": 1.0},
            {"step": 0, "layer": [0], "mu": "high"},
        ],
    )
    def test_what_does_not_fit_is_refused_and_leaves_nothing(self, folder, columns):
        store = Store.create(folder, META)
        with pytest.raises((ValueError, LookupError)):
            store.append("layers", columns)
        store.append("layers", {"step": 7, "layer": [0, 1]})
        store.close()
        found = load(folder).arrow("layers").select(["step", "mu", "mad"])
        assert found.to_pylist() == [{"step": 7, "mu": None, "mad": None}] * 2


class TestFill:
    def test_only_the_rows_of_the_step_and_the_columns_change(self, folder):
        record(folder, range(3)).seal("finished")
        fill_parameters(folder, 2, {"dead_rows": {"first.w": 4.0}, "second_moment": {"first.w": 0.0, "second.w": 1.5}})
        check(load(folder), range(3))
        rows = load(folder).arrow("parameters").to_pylist()
        assert [(row["dead_rows"], row["dead_columns"], row["second_moment"]) for row in rows] == [
            *[(None, None, None)] * 6,
            (None, None, 1.5),
            (4.0, None, 0.0),
            (None, None, None),
        ]
        assert files(folder) == SEALED

    def test_a_table_written_before_there_were_these_columns_is_read(self, folder):
        record(folder, range(3)).seal("finished")
        path = folder / "parameters.parquet"
        pq.write_table(pq.read_table(path).drop_columns(["dead_rows", "dead_columns", "second_moment"]), path)
        check(load(folder), range(3))
        assert load(folder).parameters["second_moment"].isna().all()

    def test_a_run_that_is_being_recorded_is_refused(self, folder):
        store = record(folder, range(3))
        with pytest.raises(InputError):
            fill_parameters(folder, 2, {})
        store.close()


class TestMeta:
    def test_create_fills_in_the_metadata_and_writes_them_at_once(self, folder):
        Store.create(folder, {"laws": META["laws"], "versions": {"residual": np.float64("inf"), "n": np.int64(3)}})
        meta = json.loads((folder / "meta.json").read_text())
        assert meta["versions"] == {"residual": None, "n": 3}
        assert (meta["schema"], meta["status"], meta["name"], meta["ended"]) == (2, "recording", "one", None)
        assert meta["created"].startswith("20")

    def test_update_meta_replaces_keys_at_once(self, folder):
        store = record(folder, [0])
        store.update_meta(notes=["entropy is hidden"], best={"value": float("nan")})
        assert load(folder).meta["notes"] == ["entropy is hidden"]
        assert load(folder).meta["best"] == {"value": None}
        before = (folder / "meta.json").read_text()
        with pytest.raises(InputError, match="The laws of a run cannot change once rows are recorded"):
            store.update_meta(laws={"found": META["laws"]["found"][1:], "excluded": [], "error": None})
        assert (folder / "meta.json").read_text() == before
        store.append("neurons", {"step": 1, "law": [0]})
        more = [*META["laws"]["found"], {"layer": "first", "neuron": 8, "count": 3}]
        store.update_meta(laws={"found": more, "excluded": [], "error": None})
        store.append("neurons", {"step": 1, "law": [5]})
        store.seal("failed", "ValueError: no")
        rows = load(folder).arrow("neurons").to_pylist()[-2:]
        assert [(row["layer"], row["neuron"], row["law"]) for row in rows] == [("first", 7, 0), ("first", 10, 5)]
        assert (load(folder).status, load(folder).meta["error"]) == ("failed", "ValueError: no")

    def test_an_unwritten_change_is_written_with_the_next(self, folder, monkeypatch):
        store = Store.create(folder, META)
        with monkeypatch.context() as broken:
            broken.setattr("pathlib.Path.write_text", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
            with pytest.raises(OSError, match="full"):
                store.update_meta(notes=["first"])
        assert load(folder).meta["notes"] == []
        assert files(folder) == ["meta.json"]
        store.update_meta(best=None)
        assert load(folder).meta["notes"] == ["first"]

    def test_unknown_keys_are_kept(self, folder):
        Store.create(folder, {**META, "a key of later": {"x": [1]}}).seal("finished")
        Store.resume(folder).seal("finished")
        assert load(folder).meta["a key of later"] == {"x": [1]}


class TestCheck:
    """What `create`, `create_beside` and `resume` would do, without doing it."""

    def test_names_the_place_of_a_new_run(self, folder):
        assert Store.check(folder) == Store.check(folder, beside=True) == folder
        assert not folder.parent.exists()
        record(folder, range(3)).seal("finished")
        assert Store.check(folder, beside=True) == folder.with_name(f"{folder.name}-2")
        assert Store.check(folder, overwrite=True) == folder
        check(load(folder), range(3))
        with pytest.raises(InputError, match="already holds a run"):
            Store.check(folder)

    def test_a_folder_that_is_being_recorded(self, folder):
        folder.mkdir(parents=True)
        lock = acquire_lock(folder)
        try:
            assert Store.check(folder, beside=True) == folder.with_name(f"{folder.name}-2")
            with pytest.raises(InputError, match="is being recorded"):
                Store.check(folder)
        finally:
            lock.release()

    def test_a_folder_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").touch()
        (tmp_path / "others").mkdir()
        (tmp_path / "others" / "mine").touch()
        for beside in (False, True):
            with pytest.raises(NotADirectoryError):
                Store.check(tmp_path / "file" / "below" / "run", beside=beside)
            with pytest.raises(InputError, match="holds other files"):
                Store.check(tmp_path / "others", beside=beside)

    def test_the_step_at_which_a_run_is_resumed(self, folder):
        record(folder, range(3)).seal("finished")
        assert Store.check_resume(folder) == 3
        store = Store.resume(folder)
        store.seal("finished")
        assert store.next_step == 3
        assert Store.check_resume(folder, 1) == 1
        with pytest.raises(InputError, match="integer from 0"):
            Store.check_resume(folder, -1)
        with pytest.raises(InputError):
            Store.check_resume(folder.with_name("none"))


class TestCreate:
    def test_refuses_a_folder_that_holds_a_run(self, folder):
        record(folder, range(3)).seal("finished")
        with pytest.raises(InputError, match=r"already holds a run: overwrite or resume it"):
            Store.create(folder, META)
        check(load(folder), range(3))

    def test_writes_a_numbered_sibling_beside_a_run_and_names_it(self, folder, monkeypatch, capsys):
        folder.parent.mkdir()
        monkeypatch.chdir(folder.parent)
        stores = [Store.create_beside(folder, META) for _ in range(2)]  # the first is being recorded
        for store in stores:
            store.seal("finished")
        folder.with_name(f"{folder.name}-3").touch()
        assert [store.folder for store in stores] == [folder, folder.with_name(f"{folder.name}-2")]
        expected = f"gatdiag: {folder.name} already holds a run: writing to {folder.name}-2\n"
        assert capsys.readouterr().err == expected
        third = Store.create_beside(folder, META)
        third.seal("finished")
        assert third.folder.name == f"{folder.name}-4"
        assert third.meta["name"] == f"{folder.name}-4"

    def test_takes_the_next_sibling_where_another_process_was_faster(self, folder, capsys):
        folder.mkdir(parents=True)
        lock = acquire_lock(folder)  # and no metadata yet
        try:
            store = Store.create_beside(folder, META)
        finally:
            lock.release()
        store.seal("finished")
        assert store.folder == folder.with_name(f"{folder.name}-2")
        assert "already holds a run" in capsys.readouterr().err

    def test_the_current_folder_has_siblings_too(self, folder, monkeypatch, capsys):
        record(folder, range(3)).seal("finished")
        monkeypatch.chdir(folder)
        store = Store.create_beside(".", META)
        store.seal("finished")
        assert store.folder == folder.with_name(f"{folder.name}-2")

    def test_writes_no_sibling_beside_other_files(self, folder):
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("mine")
        with pytest.raises(InputError, match="holds other files"):
            Store.create_beside(folder, META)

    def test_overwrites_the_files_of_the_run_and_no_other(self, folder):
        record(folder, range(3)).seal("finished")
        kept = ["model.safetensors", "notes.txt", "steps.parquet.bak"]
        for name in ("steps.jsonl", ".gatdiag.0a1b2c3d.part", *kept):
            (folder / name).write_text("mine")
        record(folder, [0], overwrite=True).seal("finished")
        assert files(folder) == sorted([*SEALED, *kept])
        check(load(folder), [0])

    def test_begins_where_a_kill_came_before_the_metadata(self, folder):
        folder.mkdir(parents=True)
        for name in (".lock", ".gatdiag.0a1b2c3d.part"):
            (folder / name).touch()
        record(folder, range(3)).seal("finished")
        assert files(folder) == SEALED
        check(load(folder), range(3))

    def test_a_failure_while_overwriting_leaves_a_folder_that_can_be_overwritten(self, folder, monkeypatch):
        record(folder, range(3)).seal("finished")
        with monkeypatch.context() as broken:
            broken.setattr("pathlib.Path.write_text", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
            with pytest.raises(OSError, match="full"):
                Store.create(folder, META, overwrite=True)
        record(folder, [0], overwrite=True).seal("finished")
        check(load(folder), [0])

    def test_refuses_what_is_not_a_run(self, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(InputError, match=r"holds other files \('notes.txt', ...\)"):
            Store.create(tmp_path, META, overwrite=True)
        with pytest.raises(InputError, match="is a file"):
            Store.create(tmp_path / "notes.txt", META)
        (tmp_path / "meta.json").write_text("{}")
        with pytest.raises(InputError, match=r"meta.json is not that of a run, so nothing is overwritten"):
            Store.create(tmp_path, META, overwrite=True)
        assert (tmp_path / "notes.txt").read_text() == "mine"

    def test_refuses_metadata_before_it_touches_the_folder(self, tmp_path):
        with pytest.raises(InputError, match="Expected text, numbers, lists and mappings of them in metadata, got"):
            Store.create(tmp_path / "new", {"cadence": {"folder": tmp_path}})
        assert not (tmp_path / "new").exists()

    def test_an_empty_folder_and_a_relative_path_will_do(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Store.create(".", META).seal("finished")
        assert load(".").name == tmp_path.name


class TestOneWriter:
    def test_a_second_one_is_refused_whatever_it_asks_for(self, folder):
        store = record(folder, range(3))
        assert load(folder).is_live
        for second in (
            lambda: Store.create(folder, META, overwrite=True),
            lambda: Store.resume(folder),
            lambda: seal(folder),
        ):
            with pytest.raises(InputError, match="is being recorded by another process, or elsewhere in this one"):
                second()
        append_step(store, 3)
        store.seal("finished")
        assert not load(folder).is_live
        check(load(folder), range(4))

    def test_a_fork_of_the_writer_does_not_write(self, folder):
        store = record(folder, [0])
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def in_the_fork():
            try:
                append_step(store, 1)
                answers.put("it wrote")
            except InputError as error:
                answers.put(str(error))

        process = context.Process(target=in_the_fork)
        process.start()
        assert "this is a fork of it" in answers.get()
        process.join()
        assert load(folder).is_live
        store.seal("finished")
        check(load(folder), [0])

    def test_an_ended_store_refuses_rows_and_ends_again_in_peace(self, folder):
        store = record(folder, [0])
        store.seal("finished")
        store.seal("failed", "too late")
        store.close()
        assert load(folder).status == "finished"
        with pytest.raises(InputError, match=r"has ended; Store.resume continues it"):
            append_step(store, 1)


class TestResume:
    def test_after_the_last_step(self, folder):
        record(folder, range(6)).close()
        store = Store.resume(folder)
        assert store.next_step == 6
        assert load(folder).status == "recording"
        append_step(store, 6, 0.5)
        store.seal("finished")
        check(load(folder), [*range(6), (6, 0.5)])
        assert load(folder).meta["resumed_at"] == [6]

    @pytest.mark.parametrize("how", ["sealed", "killed"])
    def test_at_earlier_steps_time_and_again(self, folder, how):
        store = record(folder, range(6))
        store.seal("finished") if how == "sealed" else store.close()
        expected = [(step, 0.0) for step in range(6)]
        for round_, at in enumerate([4, 2, 9, 2, 0, 3]):
            store = Store.resume(folder, at)
            expected = [pair for pair in expected if pair[0] < at]
            check(load(folder), expected)
            for step in range(at, at + 3):
                append_step(store, step, round_ + 1.0)
                expected.append((step, round_ + 1.0))
            store.seal("finished") if round_ % 2 else store.close()
            assert files(folder) == (SEALED if round_ % 2 else STREAMS)
            check(load(folder), expected)

    def test_rows_of_later_steps_leave_the_files_even_if_no_new_ones_came(self, folder):
        record(folder, range(6)).seal("finished")
        Store.resume(folder, 2).seal("interrupted")
        for name in ROWS:
            assert duckdb.sql(f"select max(step) from '{folder}/{name}.parquet'").fetchall() == [(1,)]
        before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("[!.]*")}
        seal(folder)
        assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("[!.]*")} == before

    def test_with_more_layers_than_before(self, folder):
        record(folder, [0]).seal("finished")
        store = Store.resume(folder)
        layers = [{"name": "new", "parameters": []}, *META["structure"]["layers"]]
        store.update_meta(structure={"order": "execution", "layers": layers})
        store.append("layers", {"step": 1, "layer": [0, 1, 2]})
        store.close()
        for _ in range(2):
            assert list(load(folder).layers["layer"]) == ["second", "first", "new", "second", "first"]
            assert list(load(folder).layers["layer"].cat.categories) == ["new", "second", "first"]
            seal(folder)

    @pytest.mark.parametrize("step", [-1, 1.5, True])
    def test_refuses_a_step_that_is_none_and_a_folder_without_a_run(self, folder, tmp_path, step):
        record(folder, [0]).seal("finished")
        with pytest.raises(InputError, match="should be an integer from 0"):
            Store.resume(folder, step)
        (tmp_path / "empty").mkdir()
        for function in (Store.resume, seal):
            with pytest.raises(InputError, match="is not the folder of a run"):
                function(tmp_path / "empty")
        assert not list((tmp_path / "empty").iterdir())


class TestSeal:
    def test_a_killed_run_is_sealed_and_says_how_it_ended(self, folder):
        record(folder, range(6)).close()
        seal(folder)
        assert files(folder) == SEALED
        check(load(folder), range(6))
        assert load(folder).status == "interrupted"
        assert load(folder).meta["error"] == "the process ended without closing the run"
        assert load(folder).meta["ended"]

    def test_streams_that_outlive_their_parquet_file_are_not_read_again(self, folder, monkeypatch):
        record(folder, range(6)).close()
        with monkeypatch.context() as broken:
            broken.setattr("pathlib.Path.unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError("no")))
            with pytest.raises(PermissionError):
                seal(folder)
        assert {"steps.parquet", "steps.jsonl"} <= {*files(folder)}
        check(load(folder), range(6))
        store = Store.resume(folder)
        append_step(store, 6)
        store.seal("finished")
        assert files(folder) == SEALED
        check(load(folder), range(7))

    def test_row_groups_bound_the_memory(self, folder, monkeypatch):
        monkeypatch.setattr("gatdiag.run.tables._MAX_GROUP_ROWS", 7)
        record(folder, range(20)).seal("finished")
        ((most,),) = duckdb.sql(
            f"select max(row_group_num_rows) from parquet_metadata('{folder}/neurons.parquet')"
        ).fetchall()
        assert most <= 7
        check(load(folder), range(20))


def test_snapshots_are_whole_or_the_former_ones(folder, monkeypatch):
    store = Store.create(folder, META)
    store.save_snapshot("best", {"w": np.array([[1.5, 2.5]], np.float32).T})
    with monkeypatch.context() as broken:
        broken.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(OSError, match="No space left"):
            store.save_snapshot("best", {"w": np.zeros(1)})
    assert files(folder) == ["best.safetensors", "meta.json"]
    np.testing.assert_array_equal(load(folder).snapshot("best")["w"], np.array([[1.5], [2.5]], np.float32))
    assert (folder / "best.safetensors").stat().st_mode == (folder / "meta.json").stat().st_mode
    assert load(folder).snapshot("initial") is None
    with pytest.raises(InputError, match=r"Expected the name of a snapshot \(initial, best, final\), got 'last'"):
        store.save_snapshot("last", {})


# --- full disks and interrupts ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def file_size_limit(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("left", [0, 1, 700, 2000])
def test_rows_that_the_disk_has_no_room_for_are_lost_whole_and_it_goes_on(folder, left):
    store = record(folder, range(4))
    written, errors = {name: [*range(4)] for name in ROWS}, []
    with file_size_limit((folder / "layers.arrows").stat().st_size + left):
        for step in range(4, 30):
            for table, columns in step_rows(step):
                try:
                    store.append(table, columns)
                    written[table].append(step)
                except OSError as error:
                    errors.append(str(error))
    assert all("could not be written: [Errno 27] File too large" in error for error in errors)
    assert len(written["layers"]) < 30
    append_step(store, 30)
    for end in (lambda: store.seal("finished"), lambda: None):
        for name, rows in ROWS.items():
            assert load(folder).arrow(name).column("step").to_pylist()[::rows] == [*written[name], 30]
        end()


def test_a_full_disk_at_the_end_leaves_a_run_that_can_be_sealed_later(folder):
    store = record(folder, range(3))
    with file_size_limit(1), pytest.raises(OSError, match="File too large"):
        store.seal("finished")
    check(load(folder), range(3))
    store.close()
    seal(folder)
    assert files(folder) == SEALED
    check(load(folder), range(3))


def test_a_deleted_folder_is_an_error_and_the_end_is_peaceful(folder):
    store = record(folder, [0])
    shutil.rmtree(folder)
    for action in (
        lambda: store.update_meta(notes=[]),
        lambda: store.save_snapshot("best", {"w": np.zeros(1)}),
        lambda: store.seal("finished"),
    ):
        with pytest.raises(OSError, match=r"No such file|not be written"):
            action()
    store.close()
    with pytest.raises(InputError, match="has ended"):
        append_step(store, 2)
    assert not folder.exists()


def test_ctrl_c_while_writing_leaves_no_part_of_a_row(folder):
    class Interrupted:
        def __init__(self, file):
            self.file, self.seek, self.truncate = file, file.seek, file.truncate

        def write(self, data):
            self.file.write(data[: len(data) // 2])
            raise KeyboardInterrupt

    store = record(folder, range(3))
    for stream in store._streams.values():
        file, stream._file = stream._file, Interrupted(stream._file)
        with pytest.raises(KeyboardInterrupt):
            stream.write(b"12345678", 1)
        stream._file = file
    append_step(store, 3)
    store.seal("interrupted")
    check(load(folder), range(4))


def test_ctrl_c_at_any_instant_of_recording(tmp_path):
    """A timer sends signals between any two instructions."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(10):
            store = Store.create(tmp_path / str(number), META)
            store.append("steps", {"step": 0})
            steps = 1
            signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.0011 * number)
            try:
                while True:
                    store.append("steps", {"step": steps})
                    steps += 1
            except KeyboardInterrupt:
                store.seal("interrupted")
            recorded = load(tmp_path / str(number)).arrow("steps").column("step").to_pylist()
            assert recorded in (list(range(steps)), list(range(steps + 1))), (steps, recorded)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
