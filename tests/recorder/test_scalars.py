import enum
import warnings

import numpy as np
import pytest
import torch

import gatdiag
from gatdiag import quantities
from gatdiag.errors import InputError
from gatdiag.recorder import RecordingWarning
from gatdiag.recorder.scalars import to_scalar
from gatdiag.recorder.settings import parse_best
from tests.recorder.loops import Gat, graph, sgd, train, train_step


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
    found = to_scalar("x", value)
    assert found == expected
    assert type(found) is float


@pytest.mark.parametrize(
    "value", ["1", None, [1.0], torch.ones(2), np.ones(2), 1j, torch.tensor(1j), np.array(["a"]), {}]
)
def test_anything_else_is_refused(value):
    with pytest.raises(InputError, match=r"log\(accuracy=...\) expects a number"):
        to_scalar("accuracy", value)


def test_which_way_is_better():
    assert parse_best("test_f1") == ("test_f1", True)
    assert parse_best("Val_Loss") == ("Val_Loss", False)
    assert parse_best("min:regret") == ("regret", False)
    for wrong in ("", "max:", 3):
        with pytest.raises(InputError, match="best= expects"):
            parse_best(wrong)


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


def test_the_best_parameters_of_steps_that_are_superseded_are_not_the_best(tmp_path):
    train(tmp_path / "run", steps=12, best="loss")
    run = train(tmp_path / "run", steps=2, best="loss", resume=1).run
    assert run.meta["best"]["step"] <= 2
    assert run.meta["best"]["value"] == run.steps.loss[run.meta["best"]["step"]]


class Split(enum.StrEnum):
    TRAIN = "train"


def logged(folder, *calls):
    """The columns and warnings of these calls of `log`, each a tuple of positional and a dict of keyword arguments."""
    model, data = Gat(), graph()
    optimizer = sgd(model)
    with warnings.catch_warnings(record=True) as caught, gatdiag.watch(model, folder, metrics="fast") as recorder:
        warnings.simplefilter("always")
        for _ in range(2):
            train_step(model, data, optimizer)
            for args, kwargs in calls:
                recorder.log(*args, **kwargs)
    own = {"step", *(column.name for column in quantities.columns("steps"))}
    steps = gatdiag.load(folder).steps
    columns = {name: steps[name].tolist() for name in steps.columns if name not in own}
    return columns, [str(item.message) for item in caught if issubclass(item.category, RecordingWarning)]


def test_a_mapping_is_logged_as_keywords_are(tmp_path):
    nested = {Split.TRAIN: {"loss": torch.tensor(0.5), "top": {5: 0.75}}, "lr": 0.1, ("a", 1): 2, "none yet": {}}
    columns, messages = logged(tmp_path / "run", (({"loss": 1.0}, nested), {"lr": 0.2, "val": {"loss": 3}}))
    expected = {"loss": 1.0, "train/loss": 0.5, "train/top/5": 0.75, "lr": 0.2, "('a', 1)": 2, "val/loss": 3}
    assert columns == {name: [value] * 2 for name, value in expected.items()}
    assert not messages


def test_names_of_columns_and_values_without_a_name_are_refused_with_a_warning(tmp_path):
    calls = [(("loss", 0.5), {}), (({"a": 1.0}, 5), {"step": 3}), ((), {"learning_rate_1": 0.1, "b": 1.0})]
    columns, messages = logged(tmp_path / "run", *calls)
    assert columns.keys() == {"a", "b", "loss"}  # the loss is what backward() was called on
    assert len(messages) == 5
    for said in ("step cannot be logged", "learning_rate_1 cannot", "of type str", "of type int"):
        assert len([message for message in messages if said in message]) == 1, said


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("low", "str"),
        (torch.ones(3), "shape"),
        (10**400, "too large"),
    ],
)
def test_a_value_that_is_no_number_is_named_once_and_costs_nothing_else(tmp_path, value, why):
    columns, messages = logged(tmp_path / "run", (({"loss": 1.0, "odd": value, "nan": float("nan"), "ok": 2.0},), {}))
    assert len(messages) == 1
    assert "'odd'" in messages[0]
    assert why in messages[0]
    assert columns.keys() == {"loss", "nan", "ok"}
    assert columns["loss"] == [1.0] * 2
    assert columns["ok"] == [2.0] * 2
