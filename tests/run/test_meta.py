import json
import shutil

import pytest

from gatdiag.errors import InputError
from gatdiag.run import Store, load
from tests.run.recorded import META


@pytest.fixture
def folder(tmp_path):
    Store.create(tmp_path / "run", META).seal("finished")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "2"}, 'expected an object with "schema": 2'),
        ({"schema": 1}, "has schema 1, but this gatdiag reads schema 2.*by an earlier one: record it again"),
        ({"schema": 3}, "has schema 3, but this gatdiag reads schema 2.*upgrade"),
        ({"laws": None}, 'is damaged: "laws" is missing'),
        ({"notes": "none"}, 'is damaged: "notes" is missing or of another type'),
        ({"signals": {"softmax_along_rows": {"0": None}}}, 'is damaged: "signals.softmax_along_rows.0" is missing'),
        ({"signals": {"data_hops": -1}}, 'is damaged: "signals.data_hops" is missing'),
        ({"signals": {"messages": {"labeled": 0}}}, 'is damaged: "signals.messages.labeled" is missing'),
        ({"signals": {"evaluation": {"calls": 3}}}, 'is damaged: "signals.evaluation.in_training_mode" is missing'),
    ],
)
def test_metadata_of_another_schema_or_type_are_refused(folder, changes, message):
    path = folder / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=message):
        load(folder)


def test_what_was_not_seen_may_be_empty_or_missing(folder):
    path = folder / "meta.json"
    signals = {"messages": {}, "evaluation": {}, "graphs": {}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"signals": signals}))
    assert load(folder).meta["signals"] == signals


@pytest.mark.parametrize(
    "data", [b"", b'{"schema": 1', b"[" * 10**6, b'{"schema": ' + b"9" * 5000 + b"}", b"\xff\xfe{}"]
)
def test_what_is_no_json_is_refused_with_what_it_means(folder, data):
    (folder / "meta.json").write_bytes(data)
    with pytest.raises(InputError, match=r"meta.json is damaged.*restore it from a copy"):
        load(folder)


def test_what_is_no_run_is_said_in_words(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"is a file; pass the folder that holds meta.json"):
        load(tmp_path / "file")
    with pytest.raises(InputError, match=r"it has no meta.json. Pass one that gatdiag recorded"):
        load(tmp_path)
    (tmp_path / "meta.json").mkdir()
    with pytest.raises(InputError, match=r"meta.json is damaged: it is no regular file"):
        load(tmp_path)


def test_the_only_run_inside_a_folder_is_taken_and_several_are_named(folder):
    assert load(folder.parent).folder == folder
    deeper = shutil.copytree(folder, folder.with_name("treatment") / "before" / "seed-0")
    assert load(deeper.parent.parent).folder == deeper
    other = shutil.copytree(folder, deeper.with_name("seed-1"))
    with pytest.raises(InputError) as raised:
        load(deeper.parent)
    assert str(raised.value).endswith(f"Pass one of the 2 inside it: {deeper} {other}")
