"""Zip archives that torch.save did not write are refused."""

import zipfile

import pytest

from gatdiag.checkpoint import open_checkpoint
from gatdiag.errors import InputError
from tests.checkpoint.assembly import archive, mapping, storage, tensor

GOOD = mapping({"weight": tensor(storage(4), (2, 2), (2, 1))})


def refusal(path):
    with pytest.raises(InputError) as caught:
        open_checkpoint(path)
    return str(caught.value)


def test_a_zip_bomb_is_refused(tmp_path):
    path = tmp_path / "model.pt"
    body = mapping({"a": tensor(storage(2**24), (2**24,), (1,))})
    path.write_bytes(archive(body, {"0": bytes(2**26)}, compression=zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 2**20
    assert "compressed" in refusal(path)


def test_a_script_is_refused(tmp_path):
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as file:
        for record in ("m/data.pkl", "m/constants.pkl", "m/code/__torch__.py"):
            file.writestr(record, b"\x80\x02}.")
    assert "TorchScript" in refusal(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_record_that_is_there_twice(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(archive(GOOD))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("archive/data/0", bytes(16))
    assert "there twice" in refusal(path)


def test_a_comment(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(archive(GOOD))
    with zipfile.ZipFile(path, "a") as file:
        file.comment = b"PK"
    assert "no comment" in refusal(path)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("archive/data/0", "brchive/data/0", "differ"),
        ("archive/data.pkl", "archive/none.pkl", "without data.pkl"),
        ("archive/data/0", "archive/data/1", "differ"),
    ],
)
def test_a_directory_with_other_names(tmp_path, old, new, reason):
    path = tmp_path / "model.pt"
    data = archive(GOOD)
    start = data.index(b"PK\1\2")
    path.write_bytes(data[:start] + data[start:].replace(old.encode(), new.encode()))
    assert reason in refusal(path)


@pytest.mark.parametrize(
    ("place", "new", "reason"),
    [
        (8, b"\1", "damaged"),
        (10, b"\x08", "compressed"),
        (24, b"\xff\xff", "compressed"),
        (20, b"\xff\xff\0\0\xff\xff", "outside"),
        (42, b"\xff\xff", "damaged"),
        (42, b"\0\0", "differ"),
    ],
)
def test_a_directory_with_other_places(tmp_path, place, new, reason):
    path = tmp_path / "model.pt"
    path.write_bytes(directory_changed(archive(GOOD), "archive/data/0", place, new))
    assert reason in refusal(path)


def test_records_over_one_another(tmp_path):
    path = tmp_path / "model.pt"
    data = bytearray(archive(GOOD, {"0": bytes(200), "1": bytes(16)}))
    second = data.index(b"archive/data/1") - 30
    header = data[second : data.index(b"archive/data/1") + 14]
    inside = data.index(b"archive/data/0") + 14 + 8
    data[inside : inside + len(header)] = header
    path.write_bytes(directory_changed(bytes(data), "archive/data/1", 42, inside.to_bytes(4, "little")))
    assert "'archive/data/0' overlaps another" in refusal(path)


def test_no_pickle(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(archive(GOOD).replace(b"archive/data.pkl", b"archive/none.pkl"))
    assert "without data.pkl" in refusal(path)


def directory_changed(data, record, place, new):
    """Other bytes at a place of a record's entry in the directory, which begins 46 bytes before its name."""
    entry = data.index(record.encode(), data.index(b"PK\1\2")) - 46
    return data[: entry + place] + new + data[entry + place + len(new) :]
