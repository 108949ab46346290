"""The callback with a real trainer of Hugging Face."""

import warnings

import pytest
import torch
from torch import nn

import gatdiag
from tests.integrations.untouched import assert_same, remains, seed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from packages that it imports
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    from gatdiag.integrations.huggingface import GatdiagCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # its advice

GENERATOR = torch.Generator().manual_seed(0)
ROWS = [{"x": torch.randn(5, generator=GENERATOR), "labels": torch.tensor(row % 3)} for row in range(48)]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.1), nn.Linear(6, 3))
        self.losses = []

    def forward(self, x, labels):
        logits = self.layers(x)
        loss = nn.functional.cross_entropy(logits, labels)
        if self.training:
            self.losses.append(loss.item())
        return {"loss": loss, "logits": logits}


def fit(folder, *callbacks, **options):
    seed()
    model = Classifier()
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        num_train_epochs=2,
        logging_steps=3,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    Trainer(model, arguments, train_dataset=ROWS, eval_dataset=ROWS[:16], callbacks=[*callbacks]).train()
    return remains(model, model.losses)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_training_is_unchanged_and_recorded(tmp_path, capsys, accumulated):
    options = {"gradient_accumulation_steps": accumulated}
    left = fit(tmp_path, GatdiagCallback(), **options)
    said = capsys.readouterr().err
    assert_same(left, fit(tmp_path, **options))
    run, (losses,) = gatdiag.load(tmp_path / "gatdiag-run"), left[-1]
    of_steps = [sum(losses[at : at + accumulated]) / accumulated for at in range(0, len(losses), accumulated)]
    assert run.status == "finished"
    assert run.steps.loss.tolist() == pytest.approx(of_steps, rel=1e-6)
    per_epoch = 6 // accumulated
    assert run.steps.step[run.steps.eval_loss.notna()].tolist() == [per_epoch - 1, 2 * per_epoch - 1]
    assert set(run.logged_names) == {"loss", "eval_loss"}
    assert "gatdiag: cannot tell: Too little was recorded to say whether it trains; see gatdiag diagnose " in said


def test_a_second_training_is_written_beside_the_first(tmp_path):
    callback = GatdiagCallback(name="mine")
    for _ in range(2):
        fit(tmp_path, callback)
    assert callback.recorder.folder == tmp_path / "gatdiag-run-2"
    assert gatdiag.load(callback.recorder.folder).name == "mine"
