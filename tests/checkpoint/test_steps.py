from pathlib import Path

import pytest
import torch

from gatdiag.checkpoint.steps import parse_epoch, parse_step, read_epoch, read_step


@pytest.mark.parametrize(
    ("name", "step", "epoch"),
    [
        ("epoch=12-step=3400.ckpt", 3400, 12),
        ("gat-epoch=12-val_loss=0.31.ckpt", None, 12),
        ("model_00500.pt", 500, None),
        ("ckpt-1000.safetensors", 1000, None),
        ("model.step_20.pth", 20, None),
        ("iter_7.pt", 7, None),
        ("gat_v2_step100.pt", 100, None),
        ("epoch3.pt", None, 3),
        ("best.pt", None, None),
        ("gat_v2.pt", None, None),
        ("gat_v2_30.pt", 30, None),
        ("run-2/final.pt", None, None),
        ("checkpoint-500/model.safetensors", 500, None),
        ("global_step40/model.pt", 40, None),
        ("99999999999999999999999.pt", None, None),
        ("loss-0.25.pt", None, None),
        ("model.fp16.safetensors", None, None),
        ("gat_bfloat16.pt", None, None),
        ("gat_int8_70.pt", 70, None),
    ],
)
def test_names(name, step, epoch):
    assert (parse_step(Path(name)), parse_epoch(Path(name))) == (step, epoch)


@pytest.mark.parametrize(
    ("data", "step", "epoch"),
    [
        ({"global_step": 7, "epoch": 2}, 7, 2),
        ({"step": torch.tensor(7), "epoch": torch.tensor([2.0])}, 7, 2),
        ({"iteration": 7.0}, 7, 99),
        ({"meta": {"iter": 7, "epoch": 2}}, 7, 2),
        ({"step": True, "epoch": -1}, 3, 99),
        ({"step": float("nan"), "epoch": 0.5}, 3, 99),
        ({"step": 10**400, "epoch": "two"}, 3, 99),
        ({"step": torch.ones(3), "epoch": torch.ones(1, dtype=torch.complex64)}, 3, 99),
        ([], 3, 99),
    ],
)
def test_what_the_file_says_comes_first(data, step, epoch):
    path = Path("epoch=99-step=3.pt")
    assert (read_step(data, None, path), read_epoch(data, path)) == (step, epoch)
