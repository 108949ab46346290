"""Hundreds of damaged copies of a checkpoint of each format: read or refused, never anything else, and soon."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.checkpoint import mutating
from tests.checkpoint.saved import FORMATS, kinds_of_tensors, lightning, save, trained

COUNT = 500


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_damaged_files(tmp_path):
    model, optimizer = trained()
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()} | {"large": torch.ones(3000)}
    sources = [save(kind, tensors, tmp_path / kind) for kind in FORMATS]
    for name, data in (("lightning", lightning(model, optimizer)), ("kinds", kinds_of_tensors())):
        torch.save(data, tmp_path / name)
        sources.append(tmp_path / name)
    command = [sys.executable, "-W", "ignore", "-m", mutating.__name__, str(COUNT), *map(str, sources)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr
    for outcomes in json.loads(done.stdout):
        assert outcomes["refused"] + outcomes["read"] == COUNT
        assert outcomes["refused"] > COUNT / 10
        assert outcomes["read"] > COUNT / 100
