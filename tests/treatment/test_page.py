"""The page of a treatment, as `treat` writes it: at its end, and where something ends it early."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gatdiag
from gatdiag.errors import InputError

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 2
X[:, 0] += 4 * Y


def make():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def loop(model, recorder, lr=1e-6, fails=lambda step, model: None, change=lambda out: out):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(40):
        fails(step, model)
        optimizer.zero_grad()
        loss = F.cross_entropy(change(model(X)), Y)
        loss.backward()
        optimizer.step()
        recorder.log(loss=loss)


class OddError(Exception):
    pass


@pytest.mark.parametrize("error", [OddError("lost <b>"), KeyboardInterrupt()])
@pytest.mark.parametrize("training", [0, 1, 2])
def test_what_ends_a_treatment_comes_through_and_what_was_recorded_is_shown(tmp_path, error, training):
    seen = []

    def fails(step, model):
        if step == 0:
            seen.append(model)
        if step == 10 and len(seen) > training:
            raise error

    with (
        pytest.warns(UserWarning, match="the treatment was cut short; what was recorded is shown in"),
        pytest.raises(type(error)) as raised,
    ):
        gatdiag.treat(make, lambda *given: loop(*given, fails=fails), seeds=[1, 2], folder=tmp_path / "t")
    assert raised.value is error
    page = (tmp_path / "t" / "treatment.html").read_text()
    assert "The treatment was cut short." in page
    assert ("interrupted by hand" if isinstance(error, KeyboardInterrupt) else "OddError: lost &lt;b&gt;") in page
    assert ("Learning rate is too small" in page or "learning rate is too small" in page) == (training == 2)
    assert len(gatdiag.load(sorted((tmp_path / "t").glob("*/seed-*"))[-1]).steps)


def test_nothing_is_written_where_nothing_was_recorded(tmp_path):
    def broken():
        raise OddError

    with pytest.raises(OddError):
        gatdiag.treat(broken, loop, folder=tmp_path / "t")
    assert not (tmp_path / "t").exists()
    (tmp_path / "t" / "before" / "seed-0").mkdir(parents=True)
    (tmp_path / "t" / "before" / "seed-0" / "mine").write_text("")
    with pytest.raises(InputError):
        gatdiag.treat(make, loop, folder=tmp_path / "t")
    assert not (tmp_path / "t" / "treatment.html").exists()


def test_what_only_the_user_can_change_is_said_with_the_place(tmp_path):
    done = gatdiag.treat(
        make, lambda *given: loop(*given, lr=0.5, change=lambda out: 0 * out), seeds=[0], folder=tmp_path / "t"
    )
    assert not done.helped
    page = (tmp_path / "t" / "treatment.html").read_text()
    assert "The cause has to be removed in the code." in page
    assert "it is in the code of the model or of its training" in page


def test_runs_that_are_there_are_not_trained_again(tmp_path):
    made = []

    def train(model, recorder):
        made.append(recorder.folder)
        loop(model, recorder)

    torch.manual_seed(0)
    model = make()
    with gatdiag.watch(model, tmp_path / "mine") as recorder:
        loop(model, recorder)
    done = gatdiag.treat(make, train, seeds=[0], before=[tmp_path / "mine"], folder=tmp_path / "t")
    assert done.before.runs[0].folder == tmp_path / "mine"
    assert done.verdict.code == "lr-too-small"
    assert all("after" in str(folder) for folder in made)
    assert made
    with pytest.raises(InputError, match="before: expected a run for each of 3 seeds, got 1"):
        gatdiag.treat(make, train, before=[tmp_path / "mine"], folder=tmp_path / "u")
