import numpy as np
import pytest
import torch

from gatdiag.errors import InputError
from gatdiag.recorder.scalars import best_of, scalar
from tests.recorder.loops import train


class Metric:
    def compute(self):
        return torch.tensor(0.75)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (True, 1.0),
        (0.5, 0.5),
        (np.float32(0.5), 0.5),
        (np.array([2]), 2.0),
        (torch.tensor(3), 3.0),
        (torch.tensor([[4.0]], requires_grad=True), 4.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (Metric(), 0.75),
    ],
)
def test_what_has_one_number(value, expected):
    found = scalar("x", value)
    assert found == expected
    assert type(found) is float


@pytest.mark.parametrize("value", ["1", None, [1.0], torch.ones(2), np.ones(2), 1j, torch.tensor(1j), np.array(["a"])])
def test_anything_else_is_refused(value):
    with pytest.raises(InputError, match=r"log\(accuracy=...\) expects a number"):
        scalar("accuracy", value)


def test_which_way_is_better():
    assert best_of("test_f1") == ("test_f1", True)
    assert best_of("Val_Loss") == ("Val_Loss", False)
    assert best_of("min:regret") == ("regret", False)
    for wrong in ("", "max:", 3):
        with pytest.raises(InputError, match="best= expects"):
            best_of(wrong)


def test_the_best_parameters_are_kept(tmp_path):
    weights = []
    run = train(
        tmp_path / "run",
        steps=6,
        best="loss",
        before_step=lambda _, model: weights.append(model.convs[0].bias.tolist()),
    ).run
    best = int(run.steps.loss.argmin())
    assert run.meta["best"] == {"name": "loss", "mode": "min", "value": run.steps.loss.min(), "step": best}
    kept = run.snapshot("best")["convs.0.bias"].tolist()
    assert kept == (weights[best + 1] if best < 5 else run.snapshot("final")["convs.0.bias"].tolist())
