"""Read files of torch.save with torch's weights-only loader, which executes nothing in a file."""

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from gatdiag.checkpoint.state_dict import NoModelError
from gatdiag.names import quote

ZIP_MAGIC = b"PK\3\4"
LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."  # torch's magic number, pickled
SAVE_WEIGHTS = "save the weights by themselves, with torch.save(model.state_dict(), FILE)"  # for error messages


def read_torch(path: Path) -> Any:
    """Read a file of torch.save; its tensors are memory-mapped.

    Raises:
        NoModelError: It needs more than weights-only loading.
    """
    with zipfile.ZipFile(path) as archive:  # of a compressed archive, the mapped bytes would not be the numbers
        is_stored = all(record.compress_type == zipfile.ZIP_STORED for record in archive.infolist())
    if is_stored and path.suffix != ".safetensors":  # torch.load takes a path with this suffix for another format
        return _load(str(path), mmap=True)
    return read_in_memory(path)


def read_in_memory(path: Path) -> Any:
    """Read a file of torch.save that cannot be memory-mapped, as those from before version 1.6."""
    with path.open("rb") as file:
        return _load(file)


def first_sentence(text: str) -> str:
    """The reason in an error message of torch, which goes on with advice, such as to load the file unsafely."""
    return quote(" ".join(text.split()).partition(". ")[0].rstrip("."), 200)


def _load(source: str | IO[bytes], *, mmap: bool = False) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about typed storages and quantization in the file
        try:
            return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
        except pickle.UnpicklingError as error:
            reason = first_sentence(str(error.__context__ or error))  # the context is without torch's long preamble
            raise NoModelError(f"torch's weights-only loader refuses it ({reason}): {SAVE_WEIGHTS}") from error
