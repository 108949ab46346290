"""Folders of torch.distributed.checkpoint: as torch reads them, and as nobody should."""

import io
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from gatdiag.checkpoint import open_checkpoint
from gatdiag.errors import InputError
from tests.checkpoint.assembly import name, program

WHOLE = torch.arange(12.0).reshape(4, 3)
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of torch, where it saves


def saved(value):
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def write(folder, size=(4, 3), pieces=None, **changes):
    """A tensor in parts, one file a part, and a number, described by torch's own classes."""
    pieces = {(0, 0): WHOLE[:1], (1, 0): WHOLE[1:]} if pieces is None else pieces
    places, chunks = {}, []
    for rank, (offset, piece) in enumerate(pieces.items()):
        data = saved(piece.clone())
        (folder / f"__{rank}_0.distcp").write_bytes(b"before" + data + b"after")
        place = {"relative_path": f"__{rank}_0.distcp", "offset": 6, "length": len(data)} | changes
        places[MetadataIndex("model.w", offset, rank)] = _StorageInfo(**place)
        chunks.append(ChunkStorageMetadata(torch.Size(offset), torch.Size(piece.shape)))
    (folder / "epoch").write_bytes(saved(3))
    places[MetadataIndex("epoch")] = _StorageInfo("epoch", 0, (folder / "epoch").stat().st_size)
    entries = {
        "model.w": TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(size), chunks),
        "epoch": BytesStorageMetadata(),
    }
    described = Metadata(entries, {"model.w": ("model", "w"), "epoch": ("epoch",)}, places)
    (folder / ".metadata").write_bytes(pickle.dumps(described))
    return folder


def test_parts_of_several_ranks(tmp_path):
    checkpoint = open_checkpoint(write(tmp_path))
    assert torch.equal(checkpoint.tensors["w"], WHOLE)
    assert (checkpoint.within, checkpoint.epoch) == (("model",), 3)
    by_torch = {"model": {"w": torch.zeros(4, 3)}}
    dcp.load(by_torch, checkpoint_id=tmp_path, no_dist=True)
    assert torch.equal(by_torch["model"]["w"], WHOLE)


def test_parts_along_both_axes(tmp_path):
    pieces = {(row, column): WHOLE[row : row + 2, column : column + 2] for row in (0, 2) for column in (0, 2)}
    assert torch.equal(open_checkpoint(write(tmp_path, pieces=pieces)).tensors["w"], WHOLE)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"relative_path": "../elsewhere"}, "in the same folder"),
        ({"relative_path": "/etc/passwd"}, "in the same folder"),
        ({"relative_path": "gone"}, "'gone' is missing"),
        ({"relative_path": "epoch", "offset": 0}, "truncated"),
        ({"offset": -1}, "truncated"),
        ({"length": 10**12}, "truncated"),
        ({"length": 6.0}, "truncated"),
        ({"offset": 5}, "torch.save"),
    ],
)
def test_places_that_are_not_there(tmp_path, changes, reason):
    with pytest.raises(InputError, match=reason):
        open_checkpoint(write(tmp_path, **changes))


@pytest.mark.parametrize(
    ("size", "pieces", "reason"),
    [
        ((10**6, 10**6), None, "of shape .* but its chunks hold"),
        ((4, 3), {(0, 0): WHOLE[:1], (0, 1): WHOLE[:1]}, "hold 6 elements"),
        ((4, 3), {(0, 0): WHOLE[:2], (3, 0): WHOLE[2:]}, "damaged"),
        ((4, 3), {}, "in none of its files"),
    ],
)
def test_parts_that_do_not_fit(tmp_path, size, pieces, reason):
    with pytest.raises(InputError, match=reason):
        open_checkpoint(write(tmp_path, size, pieces))


def test_one_place_for_many_tensors_is_refused(tmp_path):
    data = saved(torch.ones(1000))
    (tmp_path / "0").write_bytes(data)
    names = [f"w{i}" for i in range(5)]
    entry = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([1000]), [])
    places = {MetadataIndex(name, (0,)): _StorageInfo("0", 0, len(data)) for name in names}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata(dict.fromkeys(names, entry), None, places)))
    with pytest.raises(InputError, match="same bytes"):
        open_checkpoint(tmp_path)


def test_an_unfinished_one(tmp_path):
    write(tmp_path)
    (tmp_path / ".metadata").unlink()
    with pytest.raises(InputError, match=r"no \.metadata file"):
        open_checkpoint(tmp_path)


def test_a_shape_made_of_an_object_ends(tmp_path):
    held = name("torch.distributed.checkpoint.metadata.Metadata") + b")\x81"
    (tmp_path / ".metadata").write_bytes(program(name("torch.Size") + held + b"\x85R"))
    with pytest.raises(InputError, match="not iterable"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("described", [{}, [], 3, None, Metadata(None, None, None), Metadata({}, None, None)])
def test_what_describes_nothing(tmp_path, described):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(described))
    with pytest.raises(InputError):
        open_checkpoint(tmp_path)
