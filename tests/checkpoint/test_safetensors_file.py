"""safetensors, alone and in shards: headers and indices that lie are refused."""

import json
import struct

import pytest
import torch

from gatdiag.checkpoint import open_checkpoint
from gatdiag.checkpoint.safetensors_file import read_offsets
from gatdiag.errors import InputError
from tests.checkpoint.saved import save

GOOD = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def file(path, header, data=bytes(16), length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def test_a_file_by_hand(tmp_path):
    checkpoint = open_checkpoint(file(tmp_path / "a", {"w": GOOD, "__metadata__": {"a": "b"}}))
    assert torch.equal(checkpoint.tensors["w"], torch.zeros(2, 2))


@pytest.mark.parametrize(
    "header",
    [
        {"w": GOOD | {"shape": [10**6, 10**6]}},
        {"w": GOOD | {"shape": [2**32, 2**32]}},
        {"w": GOOD | {"data_offsets": [0, 10**12]}},
        {"w": GOOD | {"dtype": "F64"}},
        {"w": GOOD | {"dtype": "PICKLE"}},
        {"w": GOOD, "v": GOOD},
        b"{" * 100_000,
        b'{"w": ',
        b"{}",
    ],
)
def test_headers_that_lie(tmp_path, header):
    with pytest.raises(InputError, match="Cannot read"):
        open_checkpoint(file(tmp_path / "a", header))


@pytest.mark.parametrize("length", [0, 2**64 - 1])
def test_lengths_that_lie(tmp_path, length):
    with pytest.raises(InputError, match="Cannot read"):
        open_checkpoint(file(tmp_path / "a", {"w": GOOD}, length=length))


def test_positions(tmp_path):
    path = save("safetensors", {"a": torch.arange(3.0), "b": torch.arange(4)}, tmp_path)
    data = path.read_bytes()
    for name, begin in read_offsets(path).items():
        stored = open_checkpoint(path).tensors[name].numpy().tobytes()
        assert data[begin : begin + len(stored)] == stored


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"a": "../b.safetensors"}, "same folder"),
        ({"a": "/etc/passwd"}, "same folder"),
        ({"a": ""}, "same folder"),
        ({"a": 3}, "damaged"),
        ([1], "damaged"),
        (None, "damaged"),
        ({"a": "gone"}, "'gone' is missing"),
        ({"a": "model-00001-of-00002.safetensors", "z": "model-00001-of-00002.safetensors"}, "such as 'z'"),
    ],
)
def test_indices_that_lie(tmp_path, names, reason):
    save("safetensors (sharded)", {"a": torch.ones(1), "b": torch.ones(1)}, tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    for path in (index, tmp_path):
        with pytest.raises(InputError, match=reason):
            open_checkpoint(path)
