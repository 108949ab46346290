"""meta.json is decoded again where it says something else, and only there."""

from pathlib import Path

import pytest

from gatdiag.errors import InputError
from gatdiag.run import Store, load, meta
from gatdiag.run.legend import Legend
from gatdiag.run.schema import TABLES
from tests.run.synthetic import synthetic_meta, synthetic_run


def test_what_was_read_before_is_used_as_long_as_the_file_says_the_same(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "run", {**synthetic_meta(3, 4), "notes": []})
    first = Legend.read(store.folder)
    assert Legend.read(store.folder, first) is first

    store.update_meta(notes=["something happened"])
    second = Legend.read(store.folder, first)

    assert second.contents["notes"] == ["something happened"]
    assert first.contents["notes"] == []
    assert second.names.layers == first.names.layers


def test_damage_is_seen_although_the_file_was_read_before(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path / "run", steps=3, layers=2)
    known = Legend.read(folder)
    (folder / "meta.json").write_text("{")

    with pytest.raises(InputError, match="damaged"):
        Legend.read(folder, known)


def test_reading_all_tables_of_a_run_decodes_meta_json_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = synthetic_run(tmp_path / "run", steps=3, layers=2)
    decoded: list[Path] = []
    decode = meta.decode
    monkeypatch.setattr(meta, "decode", lambda text, folder: decoded.append(folder) or decode(text, folder))
    run = load(folder)
    for name in TABLES:
        assert len(getattr(run, name)) == run.arrow(name).num_rows

    assert len(decoded) == 1
