"""The callback with real trainers of Lightning."""

import logging
import warnings

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gatdiag
from gatdiag.recorder.tracking import update_of_run
from tests.integrations.untouched import assert_same, remains, seed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from packages that Lightning imports
    lightning = pytest.importorskip("lightning")
    import pytorch_lightning
    from lightning.pytorch.callbacks import LearningRateFinder
    from lightning.pytorch.tuner import Tuner

    from gatdiag.integrations.lightning import GatdiagCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice

GENERATOR = torch.Generator().manual_seed(0)
ROWS = TensorDataset(torch.randn(48, 5, generator=GENERATOR), torch.randint(0, 3, (48,), generator=GENERATOR))


class Steps:
    """What makes a LightningModule of a module, of either package."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.1), nn.Linear(6, 3))
        self.lr, self.losses, self.fails_at = 0.1, [], fails_at

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, number):
        if len(self.losses) == self.fails_at:
            raise RuntimeError("the disk is on fire")
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, number):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Module(Steps, lightning.LightningModule):
    pass


class OlderModule(Steps, pytorch_lightning.LightningModule):
    pass


def trainer(folder, *callbacks, package=lightning, **options):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    settings = {"max_epochs": 2, "accelerator": "cpu", "logger": False, **quiet, **options}
    return package.Trainer(default_root_dir=folder, callbacks=[*callbacks], **settings)


def loaders():
    return DataLoader(ROWS, batch_size=8, shuffle=True), DataLoader(ROWS, batch_size=16)


@pytest.mark.parametrize(("make", "package"), [(Module, lightning), (OlderModule, pytorch_lightning)])
def test_training_is_unchanged_and_recorded(tmp_path, capsys, make, package):
    left = []
    for callbacks in ([GatdiagCallback()], []):
        seed()
        module = make()
        trainer(tmp_path, *callbacks, package=package).fit(module, *loaders())
        left.append(remains(module, module.losses))
    assert_same(*left)
    run = gatdiag.load(tmp_path / "gatdiag-run")
    assert run.status == "finished"
    assert run.steps.loss.tolist() == pytest.approx(module.losses, rel=1e-6)
    assert run.steps.step[run.steps.val_loss.notna()].tolist() == [5, 11]  # the sanity check's is not among them
    assert len(run.laws) == 6
    assert capsys.readouterr().err.startswith(
        "gatdiag: cannot tell: Too little was recorded to say whether it trains; see gatdiag"
    )


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_run_is_written_beside_the_logs_which_get_its_scalars(tmp_path, is_sent):
    logger = lightning.pytorch.loggers.CSVLogger(tmp_path, version=7)
    callback = GatdiagCallback(every=1, **({} if is_sent else {"tracker": None}))
    trainer(tmp_path, callback, logger=logger).fit(Module(), *loaders())
    folder = tmp_path / "lightning_logs" / "version_7"
    assert callback.recorder.folder == folder / "gatdiag-run"
    run, logs = gatdiag.load(callback.recorder.folder), pd.read_csv(folder / "metrics.csv").set_index("step")
    assert run.meta["cadence"]["every"] == "1"
    logged = {
        step: row.dropna().to_dict() for step, row in logs.filter(like="gatdiag/").groupby("step").first().iterrows()
    }
    assert {step: row for step, row in logged.items() if row} == (update_of_run(run).scalars if is_sent else {})


def test_a_second_fit_is_written_beside_the_first(tmp_path):
    callback, module = GatdiagCallback(tmp_path / "run"), Module()
    for _ in range(2):
        trainer(tmp_path, callback, max_epochs=1).fit(module, *loaders())
    assert [len(gatdiag.load(tmp_path / name).steps) for name in ("run", "run-2")] == [6, 6]


@pytest.mark.parametrize("is_callback", [True, False])
def test_batches_on_which_a_learning_rate_is_tried_are_no_steps(tmp_path, is_callback):
    left = []
    for recorded in (True, False):
        seed()
        module = Module()
        finder = [LearningRateFinder(num_training_steps=16)] if is_callback else []
        fits = trainer(tmp_path, *[GatdiagCallback()] * recorded, *finder, max_epochs=4)
        if not is_callback:
            Tuner(fits).lr_find(module, *loaders(), num_training=16)
        fits.fit(module, *loaders())
        assert module.lr != 0.1
        left.append(remains(module, module.losses))
    assert_same(*left)
    assert len(module.losses) == 16 + 24
    run = gatdiag.load(tmp_path / "gatdiag-run")
    assert not (tmp_path / "gatdiag-run-2").exists()
    assert run.steps.loss.tolist() == pytest.approx(module.losses[16:], rel=1e-6)


def test_an_exception_ends_the_run_as_failed(tmp_path, capsys):
    with pytest.raises(RuntimeError, match="the disk is on fire"):
        trainer(tmp_path, GatdiagCallback()).fit(Module(fails_at=3), *loaders())
    run = gatdiag.load(tmp_path / "gatdiag-run")
    assert (run.status, len(run.steps)) == ("failed", 3)
    assert "the disk is on fire" in run.meta["error"]
