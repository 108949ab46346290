"""Run as a program: opens damaged copies of checkpoints, and prints what came of it as JSON.

    python mutating.py COUNT CHECKPOINT...
    python mutating.py FOLDER                   opens the files of a folder as they are

Each copy is cut off, has bits flipped, bytes replaced, or a stretch deleted, doubled or zeroed; in a zip archive, half
of them within its pickle, under a checksum that is right. Address space is limited, so that an allocation of what a
damaged size claims fails.
"""

import io
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from gatdiag.checkpoint import open_checkpoint
from gatdiag.errors import InputError

_MEMORY = 2 << 30  # bytes beyond what the imports take


def mutate(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    kind = chance.randrange(6)
    place = chance.randrange(len(out))
    if chance.random() < 0.5:  # where the structure is, in most formats: near an end
        place = chance.choice([place % 600, len(out) - 1 - place % 600]) % len(out)
    length = chance.choice([1, 2, 4, 8, 32])
    if kind == 0:
        del out[place:]
    elif kind == 1:
        for _ in range(chance.choice([1, 2, 8])):
            out[(place + chance.randrange(64)) % len(out)] ^= 1 << chance.randrange(8)
    elif kind == 2:
        out[place : place + length] = chance.randbytes(length)
    elif kind == 3:
        del out[place : place + length]
    elif kind == 4:
        out[place:place] = out[place : place + length]
    else:
        out[place : place + length] = chance.choice([b"\0", b"\xff", b"\x7f"]) * length
    return bytes(out)


def damaged(data: bytes, chance: random.Random) -> bytes:
    if not data.startswith(b"PK") or chance.random() < 0.5:
        return mutate(data, chance)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(out, "w") as after:
        for name in before.namelist():
            record = before.read(name)
            after.writestr(name, mutate(record, chance) if name.endswith("data.pkl") else record)
    return out.getvalue()


def outcome(path: Path) -> str:
    try:
        checkpoint = open_checkpoint(path)
        for tensor in checkpoint.tensors.values():
            tensor.double().sum()
    except InputError as error:
        text = str(error)
        assert text.isascii(), text
        assert text.isprintable(), text
        assert len(text) < 1000, text
        return "refused"
    return "read"


def started(*arguments: object, **environment: str) -> Any:
    """What this file prints when it is run as a program."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.checkpoint.mutating", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False,
                          env=os.environ | environment, cwd=Path(__file__).parents[2])  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))


def open_all(folder: Path) -> None:
    limit_memory()
    sys.stdout.write(json.dumps([outcome(path) for path in sorted(folder.iterdir())]))


def damage(source: Path, count: int) -> dict[str, int]:
    chance = random.Random(1)
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            target = Path(folder, f"{number}")
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
            file = chance.choice(files)
            (target / file.relative_to(source)).write_bytes(damaged(file.read_bytes(), chance))
            begin = time.process_time()
            try:
                outcomes[outcome(target)] += 1
                assert time.process_time() - begin < 2, "too slow"
            except BaseException:
                sys.stderr.write(f"mutation {number} of {source}\n")
                raise
            shutil.rmtree(target) if source.is_dir() else target.unlink()
    return outcomes


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) == 2:
        open_all(Path(sys.argv[1]))
    else:
        limit_memory()
        sys.stdout.write(json.dumps([damage(Path(source), int(sys.argv[1])) for source in sys.argv[2:]]))
