"""GraphGym's `train` with its own model, on a graph that needs no download."""

import logging
import warnings

import pytest
import torch

import gatdiag
from tests.integrations.untouched import assert_same, remains, seed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from packages that it imports
    pytest.importorskip("lightning")
    pytest.importorskip("yacs")
    from torch_geometric import graphgym
    from torch_geometric.data import Data, InMemoryDataset
    from torch_geometric.graphgym.train import GraphGymDataModule

    from gatdiag.integrations.graphgym import train

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice

NODES = 40


class Ring(InMemoryDataset):
    def __init__(self):
        super().__init__()
        made = torch.Generator().manual_seed(0)
        at = torch.arange(NODES)
        masks = {f"{name}_mask": at % 3 == rest for rest, name in enumerate(("train", "val", "test"))}
        edges = torch.stack([torch.cat([at, (at + 1) % NODES]), torch.cat([(at + 1) % NODES, at])])
        x, y = torch.randn(NODES, 5, generator=made), torch.randint(0, 3, (NODES,), generator=made)
        self.data, self.slices = self.collate([Data(x, edges, y=y, **masks)])


@pytest.fixture
def settings(tmp_path):
    """GraphGym's global settings, for a small training."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    cfg = graphgym.cfg
    graphgym.set_cfg(cfg)
    cfg.out_dir, cfg.run_dir, cfg.accelerator, cfg.share.num_splits = str(tmp_path), str(tmp_path), "cpu", 3
    cfg.dataset.format, cfg.dataset.name, cfg.dataset.task = "ring", "ring", "node"
    cfg.gnn.head, cfg.share.dim_in, cfg.share.dim_out = "node", 5, 3
    cfg.train.enable_ckpt, cfg.optim.max_epoch = False, 8
    graphgym.register.loader_dict["ring"] = lambda format, name, folder: Ring() if name == "ring" else None
    yield cfg
    del graphgym.register.loader_dict["ring"]
    graphgym.set_cfg(cfg)


def test_training_is_unchanged_and_recorded(settings, tmp_path, capsys):
    left = []
    for trained_by in (train, graphgym.train):
        seed()
        module = graphgym.create_model()
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trained_by(module, GraphGymDataModule(), False, quiet)
        assert "configure_callbacks" not in vars(module)
        left.append(remains(module))
    assert_same(*left)
    run = gatdiag.load(tmp_path / "gatdiag-run")
    assert (run.status, len(run.steps)) == ("finished", 8)
    assert run.steps.loss.notna().all()
    assert len(run.layer_names) > 2
    assert "gatdiag: " in capsys.readouterr().err
