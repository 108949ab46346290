"""LightningModules with a real Trainer: training is unchanged, the loss is recorded; laws, if the module is called."""

import logging
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gatdiag

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from packages that Lightning imports
    lightning = pytest.importorskip("lightning")

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice

GENERATOR = torch.Generator().manual_seed(0)
ROWS = TensorDataset(torch.randn(48, 5, generator=GENERATOR), torch.randint(0, 3, (48,), generator=GENERATOR))


class Children(lightning.LightningModule):
    """`training_step` calls the layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 3)
        self.losses = []

    def compute(self, x):
        return self.second(F.dropout(F.relu(self.first(x)), 0.1, self.training))

    def loss_of(self, batch):
        x, y = batch
        loss = F.cross_entropy(self.compute(x), y)
        self.losses.append(loss.item())
        return loss

    def training_step(self, batch, number):
        assert self.trainer.training
        loss = self.loss_of(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, number):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.compute(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Forward(Children):
    """`training_step` calls `self(...)`."""

    def forward(self, x):
        return Children.compute(self, x)

    def compute(self, x):
        return self(x)


class Quiet(Children):
    """`training_step` returns a dict, and only the epoch mean of the loss is logged."""

    def training_step(self, batch, number):
        loss = self.loss_of(batch)
        self.log("train/ce", loss, on_step=False, on_epoch=True)
        return {"loss": loss}


class Manual(Children):
    """Manual optimization: the loss is logged after the step."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, number):
        optimizer = self.optimizers()
        loss = self.loss_of(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        optimizer.step()
        self.log("train_loss", loss)


CASES = {
    "children": (Children, {}),
    "forward": (Forward, {}),
    "mean over an epoch": (Quiet, {}),
    "manual": (Manual, {}),
    "accumulated and clipped": (Children, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.1}),
}


def fitted(make, folder=None, fits=1, **options):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    module = make()
    with nullcontext() if folder is None else gatdiag.watch(module, folder):
        for _ in range(fits):
            trainer = lightning.Trainer(
                max_epochs=2,
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                **options,
            )
            trainer.fit(module, DataLoader(ROWS, batch_size=8, shuffle=True), DataLoader(ROWS, batch_size=16))
    return module


def same(left, right):
    weights = zip(left.parameters(), right.parameters(), strict=True)
    return left.losses == right.losses and all(torch.equal(*pair) for pair in weights)


@pytest.mark.parametrize("name", CASES)
def test_a_fit(tmp_path, name):
    make, options = CASES[name]
    module = fitted(make, tmp_path / "run", **options)
    assert same(module, fitted(make, **options))
    run = gatdiag.load(tmp_path / "run")
    each = options.get("accumulate_grad_batches", 1)
    of_steps = [sum(module.losses[at : at + each]) / each for at in range(0, len(module.losses), each)]
    assert run.steps.loss.tolist() == pytest.approx(of_steps, rel=1e-6)
    if make is Forward:
        assert len(run.laws) == 6
        assert len(run.neurons) == 6 * len(run.steps)
        assert run.neurons.delta.abs().max() < 1e-6
    else:  # what is computed between the calls of layers is not followed
        assert "no conservation law" in run.meta["laws"]["error"]
    last_of_each_epoch = [len(run.steps) // 2 - 1, len(run.steps) - 1]
    assert run.steps.step[run.steps.val_loss.notna()].tolist() == last_of_each_epoch
    logged = "train/ce" if make is Quiet else "train_loss"
    assert run.steps[logged].notna().tolist() == [
        make is not Quiet or step in last_of_each_epoch for step in run.steps.step
    ]
    assert (
        make is Quiet or each > 1 or run.steps.train_loss.tolist() == pytest.approx(run.steps.loss.tolist(), rel=1e-6)
    )


def test_a_second_fit_goes_on(tmp_path):
    module = fitted(Children, tmp_path / "run", fits=2)
    assert same(module, fitted(Children, fits=2))
    run = gatdiag.load(tmp_path / "run")
    assert run.steps.loss.tolist() == pytest.approx(module.losses, rel=1e-6)
    assert run.steps.step[run.steps.val_loss.notna()].tolist() == [5, 11, 17, 23]
