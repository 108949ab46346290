"""A thousand damaged copies of a checkpoint of each format: read or refused, never anything else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.checkpoint.formats import mutating
from tests.checkpoint.saved import FORMATS, kinds_of_tensors, lightning, save, trained


def write(kind, folder):
    model, optimizer = trained()
    if kind in FORMATS:
        tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return save(kind, tensors | {"large": torch.ones(3000)}, folder)
    torch.save(lightning(model, optimizer) if kind == "lightning" else kinds_of_tensors(), folder / "model.pt")
    return folder / "model.pt"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", [*FORMATS, "lightning", "all kinds of tensors"])
def test_damaged_files(tmp_path, kind):
    count, source = 1000, write(kind, tmp_path)
    command = [sys.executable, "-W", "ignore", "-m", mutating.__name__, str(source), str(count), "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert outcomes["refused"] + outcomes["read"] == count
    assert outcomes["refused"] > count / 10
    assert outcomes["read"] > count / 100
