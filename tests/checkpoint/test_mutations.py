"""Hundreds of damaged copies of a checkpoint of each format: read or refused, never anything else, and soon."""

import pytest
import torch

from tests.checkpoint.mutating import started
from tests.checkpoint.saved import FORMATS, kinds_of_tensors, lightning, save, trained

COUNT = 200


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_damaged_files(tmp_path):
    model, optimizer = trained()
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()} | {"large": torch.ones(3000)}
    sources = [save(kind, tensors, tmp_path / kind) for kind in FORMATS]
    for name, data in (("lightning", lightning(model, optimizer)), ("kinds", kinds_of_tensors())):
        torch.save(data, tmp_path / name)
        sources.append(tmp_path / name)
    for outcomes in started(COUNT, *sources, OMP_NUM_THREADS="1", MALLOC_ARENA_MAX="2"):
        assert outcomes["refused"] + outcomes["read"] == COUNT
        assert outcomes["refused"] > COUNT / 10
        assert outcomes["read"] > COUNT / 100
