"""Checkpoints as people save them, for the tests."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv

from gatdiag.checkpoint import safetensors_file

FORMATS = ("torch", "torch (legacy)", "safetensors", "safetensors (sharded)")


class GAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GATv2Conv(3, 4), GATv2Conv(4, 2)])
        self.norm = nn.BatchNorm1d(4)


def count_opens(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Paths of the files that torch and safetensors open from now on -> how often."""
    opens: Counter[str] = Counter()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, *args: Any, **options: Any) -> Any:
            opens[str(file if isinstance(file, str | Path) else file.name)] += 1
            return function(file, *args, **options)

        return call

    monkeypatch.setattr(torch, "load", counted(torch.load))
    monkeypatch.setattr(safetensors_file, "safe_open", counted(safetensors_file.safe_open))
    return opens


def trained(steps: int = 2) -> tuple[GAT, torch.optim.Adam]:
    torch.manual_seed(0)
    model = GAT()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        sum(p.square().sum() for p in model.parameters()).backward()
        optimizer.step()
    return model, optimizer


def lightning(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """As Trainer.save_checkpoint writes it for a LightningModule with `self.model`."""
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    return {
        "epoch": 4,
        "global_step": 250,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {f"model.{key}": value for key, value in model.state_dict().items()},
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 5, "completed": 4}}}},
        "callbacks": {
            "ModelCheckpoint{'monitor': 'val_loss'}": {
                "best_model_score": torch.tensor(0.5),
                "best_model_path": "/tmp/epoch=4.ckpt",
                "best_k_models": {"/tmp/epoch=4.ckpt": torch.tensor(0.5)},
            }
        },
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [scheduler.state_dict()],
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.01, "widths": [4, 2]},
    }


def save(kind: str, tensors: dict[str, Tensor], folder: Path) -> Path:
    """The same tensors in one of the formats."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "torch":
        torch.save(tensors, folder / "model.pt")
        return folder / "model.pt"
    if kind == "torch (legacy)":
        torch.save(tensors, folder / "model.pt", _use_new_zipfile_serialization=False)
        return folder / "model.pt"
    if kind == "safetensors":
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt", "who": "me"})
        return folder / "model.safetensors"
    return _sharded(tensors, folder)


def kinds_of_tensors() -> dict[str, Tensor]:
    """Every dtype and layout in memory that people save, quantized and sparse ones too."""
    values = torch.tensor([[1.0, -2.0], [float("nan"), float("inf")]])
    sparse = torch.tensor([[1.0, 0.0], [0.0, -2.0]])
    floats = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"]
    small = values.nan_to_num(0, 1)
    with_attributes = torch.ones(2)
    with_attributes.note = "mine"
    return {
        **{name: values.to(getattr(torch, name)) for name in floats},
        **{name: small.to(getattr(torch, name)) for name in ("int8", "int64", "bool")},
        **{name: small.abs().to(getattr(torch, name)) for name in ("uint8", "uint16")},
        "parameter": nn.Parameter(values),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 4),
        "strided": torch.arange(12.0).reshape(3, 4).t()[1:, ::2],
        "expanded": torch.ones(1).expand(5, 5),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "with attributes": with_attributes,
        "tensor": torch.quantize_per_tensor(sparse, 0.1, 3, torch.qint8),
        "channel": torch.quantize_per_channel(sparse, torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8),
        "coo": sparse.to_sparse(),
        "csr": sparse.to_sparse_csr(),
    }


def _sharded(tensors: dict[str, Tensor], folder: Path) -> Path:
    names = list(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / shard)
    index = {"metadata": {}, "weight_map": {name: shard for shard, members in shards.items() for name in members}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
