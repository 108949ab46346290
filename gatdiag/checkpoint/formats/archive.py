"""The zip archive of torch.save: where its records are, checked before torch reads them."""

import struct
import zipfile
from dataclasses import dataclass
from typing import IO

from gatdiag.checkpoint.naming import shown
from gatdiag.errors import InputError

_LOCAL = struct.Struct("<4s22xHH")  # signature, lengths of name and extra field
_RECORDS = 1_000_000
_PICKLE = "data.pkl"


@dataclass(frozen=True)
class Archive:
    """The records of an archive.

    Attributes:
        folder: The folder within the archive that holds all records.
        places: Name of a record below that folder -> where it begins and ends in the file.
    """

    folder: str
    places: dict[str, tuple[int, int]]

    def stored(self, key: str) -> int | None:
        """Bytes held of a storage."""
        place = self.places.get(f"data/{key}")
        return place and place[1] - place[0]

    @property
    def pickle(self) -> tuple[int, int]:
        """Where the description of the objects is."""
        return self.places[_PICKLE]


def read_archive(file: IO[bytes], data: memoryview) -> Archive:
    """Reads the directory of an archive.

    Args:
        file: The archive.
        data: Its bytes.

    Raises:
        InputError: It is no archive that torch.save could have written: damaged, compressed (zip bombs are), with
            records twice, over one another, or without a description of objects; or it is TorchScript, which is code.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            records, comment = archive.infolist(), archive.comment
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError, OSError) as error:
        raise InputError(f"its zip directory is damaged: cut off, or still being written ({shown(error)})") from error
    if not records or len(records) > _RECORDS or comment:
        raise InputError(f"expected from 1 to {_RECORDS:,} records and no comment in the archive, got {len(records):,}")
    _refuse_other_archives({record.filename for record in records})
    folder = records[0].filename.split("/", 1)[0]
    places: dict[str, tuple[int, int]] = {}
    for record in records:
        top, _, name = record.filename.partition("/")
        if top != folder or name in places:
            raise InputError(f"its record {shown(record.filename)} is there twice, or not where torch.save puts it")
        places[name] = _place(record, data)
    _check_overlap(places)
    if _PICKLE not in places:
        raise InputError(f"it is a zip archive without {_PICKLE}, so not a checkpoint of torch.save")
    return Archive(folder, places)


def _refuse_other_archives(names: set[str]) -> None:
    if any(name.endswith("/constants.pkl") for name in names):
        raise InputError("it is a TorchScript archive, which holds code: save the model's state_dict() instead")
    if all(name.endswith(".npy") for name in names):
        raise InputError("it is an archive of NumPy (.npz): save its arrays as tensors, with torch.save or safetensors")


def _place(record: zipfile.ZipInfo, data: memoryview) -> tuple[int, int]:
    if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size or record.flag_bits & 1:
        raise InputError(f"its record {shown(record.filename)} is compressed or encrypted, which torch.save never does")
    start = record.header_offset
    if start + _LOCAL.size > len(data):
        raise InputError(f"its record {shown(record.filename)} lies outside the file")
    signature, name, extra = _LOCAL.unpack_from(data, start)
    begin = start + _LOCAL.size + name + extra
    end = begin + record.file_size
    header = bytes(data[start + _LOCAL.size : start + _LOCAL.size + name])
    if signature != b"PK\3\4" or end > len(data) or header != record.orig_filename.encode("utf-8", "surrogateescape"):
        raise InputError(f"its record {shown(record.filename)} lies outside the file, or its header is damaged")
    return begin, end


def _check_overlap(places: dict[str, tuple[int, int]]) -> None:
    end, before = 0, ""
    for (begin, stop), name in sorted((place, name) for name, place in places.items()):
        if begin < end:
            raise InputError(f"its records {shown(before)} and {shown(name)} overlap")
        end, before = stop, name
