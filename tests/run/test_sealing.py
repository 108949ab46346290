import duckdb
import pytest

from gatdiag.errors import InputError
from gatdiag.run import Store, load, seal
from tests.run.recorded import META, SEALED, TABLES, append_step, check, files

RECORDED = [(step, 0.0) for step in range(6)]


@pytest.fixture
def killed(tmp_path):
    store = Store.create(tmp_path / "run", META)
    for step in range(6):
        append_step(store, step)
        store.flush()
    store.close()
    return tmp_path / "run"


def test_a_killed_run_is_sealed_and_says_how_it_ended(killed):
    seal(killed)
    assert files(killed) == SEALED
    check(load(killed), RECORDED)
    assert load(killed).status == "interrupted"
    assert load(killed).meta["error"] == "the process ended without closing the run"
    assert load(killed).meta["ended"]


def test_sealing_a_sealed_run_leaves_every_byte(killed):
    seal(killed)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in killed.iterdir()}
    seal(killed)
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in killed.iterdir()} == before


def test_streams_that_outlive_their_parquet_file_are_not_read_again(killed, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr("pathlib.Path.unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError("no")))
        with pytest.raises(PermissionError):
            seal(killed)
    assert {"steps.parquet", "steps.0.arrows"} <= {*files(killed)}
    check(load(killed), RECORDED)
    store = Store.resume(killed)
    append_step(store, 6)
    store.flush()
    check(load(killed), [*RECORDED, (6, 0.0)])
    store.seal("finished")
    assert files(killed) == SEALED
    check(load(killed), [*RECORDED, (6, 0.0)])


def test_superseded_rows_leave_the_files_even_if_no_new_ones_came(killed):
    seal(killed)
    Store.resume(killed, 2).seal("finished")
    for name in TABLES:
        assert duckdb.sql(f"select max(step) from '{killed}/{name}.parquet'").fetchall() == [(1,)]


def test_what_was_lost_to_damage_is_noted(killed):
    path = killed / "layers.0.arrows"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 80] = b"\0" * 80
    path.write_bytes(data)
    seal(killed)
    (note,) = load(killed).meta["notes"]
    assert note.startswith("found when the run was sealed: layers.0.arrows: bytes ")
    assert len(load(killed).layers) < 12


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not the folder of a run"):
        seal(tmp_path)
    assert not list(tmp_path.iterdir())
