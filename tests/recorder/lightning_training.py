"""A training by Lightning on two processes: python lightning_training.py FOLDER, which starts the second by itself."""

import json
import logging
import os
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
import lightning  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import gatdiag  # noqa: E402

GENERATOR = torch.Generator().manual_seed(0)
ROWS = TensorDataset(torch.randn(32, 5, generator=GENERATOR), torch.randint(0, 3, (32,), generator=GENERATOR))


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers, self.losses = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)), []

    def training_step(self, batch, number):
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.losses.append(loss.item())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder, *, watched):
    torch.manual_seed(0)
    module = Module()
    with gatdiag.watch(module, folder, every=1, enabled=watched):
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(ROWS, batch_size=4))
    return [module.losses, *(parameter.tolist() for parameter in module.parameters())]


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    folder = Path(sys.argv[1])
    found = [fit(folder / "run", watched=True), fit(folder / "run", watched=False)]
    (folder / f"{os.environ['LOCAL_RANK']}.json").write_text(json.dumps(found))
