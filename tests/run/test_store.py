import json
import multiprocessing
import time

import numpy as np
import pytest

import gatdiag.run.store as store_module
from gatdiag.errors import InputError
from gatdiag.run import Store, load, seal
from tests.run.recorded import META, SEALED, append_step, check, files


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "one"


def recorded(folder, steps, **more):
    store = Store.create(folder, META, **more)
    for step in steps:
        append_step(store, step)
    return store


@pytest.mark.parametrize("flush_every", [1, 3, 1000])
def test_what_is_appended_is_what_is_read_before_and_after_sealing(folder, flush_every):
    store = Store.create(folder, META)
    for step in range(20):
        append_step(store, step)
        if step % flush_every == 0:
            store.flush()
    store.flush()
    check(load(folder), [(step, 0.0) for step in range(20)])
    store.seal("finished")
    assert files(folder) == SEALED
    check(load(folder), [(step, 0.0) for step in range(20)])


def test_rows_reach_the_disk_within_a_second_or_4_mib(folder, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(store_module.time, "monotonic", lambda: now[0])
    store = Store.create(folder, META)
    append_step(store, 0)
    assert files(folder) == ["meta.json"]
    now[0] += 1.0
    store.append("steps", {"step": 1, "loss": 0.5})
    assert [len(load(folder).arrow(name)) for name in ("steps", "neurons")] == [2, 3]
    store.append("neurons", {"step": np.zeros(100_000, int), "law": 0, "delta": np.zeros(100_000)})
    assert len(load(folder).arrow("neurons")) == 3
    store.append("neurons", {"step": np.zeros(100_000, int), "law": 0, "delta": np.zeros(100_000)})
    assert len(load(folder).arrow("neurons")) == 200_003
    store.close()


def test_a_new_logged_scalar_begins_a_segment_and_is_null_before(folder):
    store = Store.create(folder, META)
    store.append("steps", {"step": 0, "loss": 1.0})
    store.flush()
    store.append("steps", {"step": 1, "loss": 2.0, "f1.macro": 3})
    store.append("steps", {"step": 2, "loss": np.nan})
    store.flush()
    assert files(folder) == ["meta.json", "steps.0.arrows", "steps.1.arrows"]
    expected = [(0, 1.0, None), (1, 2.0, 3.0)]
    for _ in range(2):
        rows = load(folder).arrow("steps").to_pylist()
        assert [(row["step"], row["loss"], row["f1.macro"]) for row in rows[:2]] == expected
        assert np.isnan(rows[2]["loss"])
        assert rows[2]["f1.macro"] is None
        assert load(folder).logged == ("loss", "f1.macro")
        store.seal("finished")


def test_create_fills_in_the_meta_data_and_writes_them_at_once(folder):
    Store.create(folder, {"laws": META["laws"], "versions": {"residual": np.float64("inf"), "n": np.int64(3)}})
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["versions"] == {"residual": None, "n": 3}
    assert (meta["schema"], meta["status"], meta["name"], meta["ended"]) == (2, "recording", "one", None)
    assert meta["created"].startswith("20")


def test_update_meta_replaces_keys_at_once_and_refuses_what_does_not_fit(folder):
    store = recorded(folder, [0])
    store.update_meta(notes=["entropy is hidden"], best={"value": float("nan")})
    assert load(folder).meta["notes"] == ["entropy is hidden"]
    assert load(folder).meta["best"] == {"value": None}
    before = (folder / "meta.json").read_text()
    with pytest.raises(InputError, match='"notes" should be a list, got'):
        store.update_meta(notes="none")
    with pytest.raises(InputError, match="The laws of a run cannot change once rows are recorded"):
        store.update_meta(laws={"found": META["laws"]["found"][1:], "excluded": [], "error": None})
    assert (folder / "meta.json").read_text() == before
    more = [*META["laws"]["found"], {"layer": "first", "neuron": 8}]
    store.update_meta(laws={"found": more, "excluded": [], "error": None})
    store.append("neurons", {"step": 1, "law": [3]})
    store.seal("failed", "ValueError: no")
    assert load(folder).arrow("neurons").to_pylist()[-1]["neuron"] == 8
    assert (load(folder).status, load(folder).meta["error"]) == ("failed", "ValueError: no")


def test_laws_may_be_anything_before_the_first_row(folder):
    store = Store.create(folder, META)
    store.update_meta(laws={"found": [], "excluded": [], "error": None})
    with pytest.raises(InputError, match="law should be positions from 0 to -1"):
        store.append("neurons", {"step": 0, "law": [0]})


class TestCreate:
    def test_refuses_a_folder_that_holds_a_run(self, folder):
        recorded(folder, range(3)).seal("finished")
        with pytest.raises(InputError, match=r"already holds a run. Say overwrite=True to delete it, resume=True"):
            Store.create(folder, META)
        check(load(folder), [(step, 0.0) for step in range(3)])

    def test_overwrites_the_files_of_the_run_and_no_other(self, folder):
        recorded(folder, range(3)).seal("finished")
        (folder / "steps.7.arrows").write_bytes(b"")
        (folder / "notes.txt").write_text("mine")
        (folder / "steps.parquet.bak").write_text("mine too")
        recorded(folder, [0], overwrite=True).seal("finished")
        assert files(folder) == sorted([*SEALED, "notes.txt", "steps.parquet.bak"])
        check(load(folder), [(0, 0.0)])

    def test_a_failure_while_overwriting_leaves_a_folder_that_can_be_overwritten(self, folder, monkeypatch):
        recorded(folder, range(3)).seal("finished")
        with monkeypatch.context() as broken:
            broken.setattr("pathlib.Path.write_text", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
            with pytest.raises(OSError, match="full"):
                Store.create(folder, META, overwrite=True)
        assert len(load(folder).steps) == 0
        recorded(folder, [0], overwrite=True).seal("finished")
        check(load(folder), [(0, 0.0)])

    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize("name", ["model.pt", "layers.parquet", "steps.0.arrows", ".hidden"])
    def test_refuses_a_folder_that_holds_anything_else(self, folder, name, overwrite):
        folder.mkdir(parents=True)
        (folder / name).write_text("mine")
        with pytest.raises(InputError, match="is not empty"):
            Store.create(folder, META, overwrite=overwrite)
        assert files(folder) == [name]

    @pytest.mark.parametrize("text", ["{}", "no json", '{"schema": "1"}', "[1]", "[" * 100_000, '{"schema": 1}'])
    def test_overwrites_nothing_beside_a_meta_file_that_is_not_ours(self, folder, text):
        folder.mkdir(parents=True)
        (folder / "meta.json").write_text(text)
        (folder / "layers.parquet").write_text("mine")
        with pytest.raises(InputError, match="is not that of a run, so nothing is overwritten"):
            Store.create(folder, META, overwrite=True)
        assert files(folder) == ["layers.parquet", "meta.json"]
        assert (folder / "meta.json").read_text() == text

    def test_refuses_a_file_and_wrong_meta_data_and_makes_nothing(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="is a file"):
            Store.create(tmp_path / "file", META)
        with pytest.raises(InputError, match='"name" should be text, got 3'):
            Store.create(tmp_path / "new", {"name": 3})
        with pytest.raises(InputError, match="may hold text, numbers, lists and mappings of them, got"):
            Store.create(tmp_path / "new", {"cadence": {"folder": tmp_path}})
        assert not (tmp_path / "new").exists()

    def test_an_empty_folder_and_a_relative_path_will_do(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Store.create(".", META).seal("finished")
        assert load(".").name == tmp_path.name


class TestOneWriter:
    def test_a_second_one_is_refused_whatever_it_asks_for(self, folder):
        store = recorded(folder, range(3))
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
        check(load(folder), [(step, 0.0) for step in range(4)])

    def test_a_fork_of_the_writer_does_not_write(self, folder):
        store = recorded(folder, [0])
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
        store.seal("finished")
        check(load(folder), [(0, 0.0)])

    def test_an_ended_store_refuses_rows_and_ends_again_in_peace(self, folder):
        store = recorded(folder, [0])
        store.seal("finished")
        store.seal("failed", "too late")
        store.close()
        assert load(folder).status == "finished"
        with pytest.raises(InputError, match=r"has ended; Store.resume continues it"):
            append_step(store, 1)


class TestResume:
    def first(self, folder, how):
        store = recorded(folder, range(6))
        if how == "sealed":
            store.seal("finished")
        else:
            store.close()

    @pytest.mark.parametrize("how", ["sealed", "killed"])
    def test_after_the_last_step(self, folder, how):
        self.first(folder, how)
        store = Store.resume(folder)
        assert store.next_step == 6
        assert load(folder).status == "recording"
        append_step(store, 6, 0.5)
        store.flush()
        expected = [*((step, 0.0) for step in range(6)), (6, 0.5)]
        check(load(folder), expected)
        store.seal("finished")
        assert files(folder) == SEALED
        check(load(folder), expected)
        assert load(folder).meta["resumed_at"] == [6]

    @pytest.mark.parametrize("how", ["sealed", "killed"])
    def test_at_earlier_steps_time_and_again(self, folder, how):
        self.first(folder, how)
        expected = [(step, 0.0) for step in range(6)]
        for round_, at in enumerate([4, 2, 9, 2, 0, 3]):
            store = Store.resume(folder, at)
            expected = [pair for pair in expected if pair[0] < at]
            check(load(folder), expected)
            for step in range(at, at + 3):
                append_step(store, step, round_ + 1.0)
                expected.append((step, round_ + 1.0))
            store.flush()
            check(load(folder), expected)
            if round_ % 2:
                store.seal("finished")
                assert files(folder) == SEALED
            else:
                store.close()
            check(load(folder), expected)

    def test_without_new_rows_still_takes_the_later_ones_away(self, folder):
        self.first(folder, "sealed")
        Store.resume(folder, 2).seal("interrupted")
        check(load(folder), [(0, 0.0), (1, 0.0)])
        before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}
        time.sleep(0.01)
        seal(folder)
        assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")} == before

    def test_after_a_cut_tail(self, folder):
        self.first(folder, "killed")
        for path in folder.glob("*.arrows"):
            path.write_bytes(path.read_bytes()[:-20])
        assert Store.resume(folder).next_step == 0
        self_made = load(folder)
        assert [len(self_made.arrow(name)) for name in ("steps", "layers")] == [0, 0]
        assert len(self_made.problems) == 2

    @pytest.mark.parametrize("step", [-1, 1.5, True, "3"])
    def test_refuses_a_step_that_is_none(self, folder, step):
        self.first(folder, "sealed")
        with pytest.raises(InputError, match="should be a whole number from 0"):
            Store.resume(folder, step)

    def test_refuses_a_folder_without_a_run(self, tmp_path):
        with pytest.raises(InputError, match="is not the folder of a run"):
            Store.resume(tmp_path)
        assert not list(tmp_path.iterdir())


def test_snapshots_are_whole_or_the_former_ones(folder, monkeypatch):
    store = Store.create(folder, META)
    store.save_snapshot("best", {"w": np.array([[1.5, 2.5]], np.float32).T})
    with monkeypatch.context() as broken:
        broken.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(OSError, match="No space left"):
            store.save_snapshot("best", {"w": np.zeros(1)})
    assert files(folder) == ["best.safetensors", "meta.json"]
    np.testing.assert_array_equal(load(folder).snapshot("best")["w"], np.array([[1.5], [2.5]], np.float32))
    assert load(folder).snapshot("initial") is None
    with pytest.raises(InputError, match="A snapshot is one of initial, best, final, got 'last'"):
        store.save_snapshot("last", {})
