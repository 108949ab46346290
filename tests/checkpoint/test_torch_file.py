"""Files of torch.save: what torch's weights-only loader refuses is refused in one line, and nothing is executed."""

import os
import pickle
import zipfile

import pytest
import torch

from gatdiag.checkpoint import open_checkpoint
from gatdiag.errors import InputError


class Runs:
    """Runs a command when it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("new", [True, False])
def test_what_is_not_a_weight_is_named_and_never_run(tmp_path, new):
    marker, path = tmp_path / "ran", tmp_path / "a.pt"
    torch.save({"weight": Runs(f"touch {marker}")}, path, _use_new_zipfile_serialization=new)
    with pytest.raises(InputError) as caught:
        open_checkpoint(path)
    assert not marker.exists()
    text = str(caught.value)
    assert text.startswith(f"Cannot read '{path}': torch's weights-only loader refuses it ('Trying to load unsupported")
    assert "GLOBAL posix.system" in text
    assert text.endswith("save the weights by themselves, with torch.save(model.state_dict(), FILE)")
    assert "False" not in text, "torch's advice to load the file unsafely"
    assert text.isprintable()
    torch.load(path, weights_only=False)
    assert marker.exists(), "the file would run it"


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("kept", [100, 300, 0.5, -10])
def test_a_truncated_file_is_refused(tmp_path, new, kept):
    torch.save({"weight": torch.ones(1000)}, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    data = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(data[: int(kept * len(data)) if kept == 0.5 else kept])
    with pytest.raises(InputError, match=r"a\.pt': (it is damaged|torch's .* refuses it).*torch\.save\(model"):
        open_checkpoint(tmp_path / "a.pt")


def test_a_file_that_was_packed_again_with_compression_has_the_same_numbers(tmp_path):
    """Its mapped bytes are not those of the tensors."""
    weight = torch.arange(1000.0)
    torch.save({"weight": weight}, tmp_path / "a.pt")
    with (
        zipfile.ZipFile(tmp_path / "a.pt") as saved,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in saved.namelist():
            packed.writestr(name, saved.read(name))
    assert torch.equal(open_checkpoint(tmp_path / "b.pt").tensors["weight"], weight)


def test_names_with_escapes_are_kept_in_the_data_and_shown_escaped(tmp_path):
    path = tmp_path / "model.pt"
    nasty = "lin\x1b[2J\n<script>alert(1)</script>\u202e.weight"
    torch.save({nasty: torch.ones(1)}, path)
    assert list(open_checkpoint(path).tensors) == [nasty]
    torch.save({nasty: 1}, path)
    with pytest.raises(InputError, match=r"\\x1b\[2J\\n<script>"):
        open_checkpoint(path)


def test_a_pickle_of_something_else_is_not_opened(tmp_path):
    (tmp_path / "a.pt").write_bytes(pickle.dumps(Runs(f"touch {tmp_path / 'ran'}")))
    with pytest.raises(InputError, match="a pickle not written by torch"):
        open_checkpoint(tmp_path / "a.pt")
    assert not (tmp_path / "ran").exists()
