import io
import math

import torch
from rich.console import Console

import gatdiag
from gatdiag.recorder import Recorder, Status
from gatdiag.recorder.non_finite import FirstNonFinite
from gatdiag.watching import ProgressLine, format_status
from tests.recorder.loops import train


def status(norms, bad=None, **scalars):
    return Status(12, scalars, tuple(map(str, range(len(norms)))), tuple(norms), bad)


BROKEN = FirstNonFinite(7, "convs.3", "output gradient", None, "NaN")


def test_a_bar_for_each_layer():
    shown = format_status(
        status((7.0, 1.0, 1e-3, 1e-9, 0.0, math.nan, math.inf), loss=0.25, time=3.0, learning_rate=0.1)
    )
    assert shown == "step 12  loss 0.25  gradient/weight by layer ██▅▁·-█"


def test_what_is_not_finite_is_marked_once_a_training_broke():
    assert " ▅!!  NaN since" in format_status(status((1e-3, math.nan, math.inf), BROKEN))


def test_layers_without_a_gradient_hide_none_of_their_neighbors():
    shown = format_status(status([math.nan, 1e-3] * 60 + [math.nan] * 6))
    assert shown.endswith(f"layer {'▅' * 30}--"), shown


def test_the_loss_comes_first_and_there_are_not_too_many_numbers():
    shown = format_status(status((), a=1, b=2, c=3, d=4, loss=5))
    assert shown == "step 12  loss 5  a 1  b 2  c 3"


def test_many_layers_fit_and_stuck_ones_show():
    norms = [1e-2] * 512
    norms[300] = 0.0
    shown = format_status(status(norms))
    assert len(shown) < 100
    assert shown.count("·") == 1


def test_the_first_nan_is_named():
    assert format_status(status((), BROKEN)).endswith("NaN since step 7 in the output gradient of convs.3")


def test_it_shows_on_a_terminal_and_ends_with_the_recording():
    out = io.StringIO()
    shown = ProgressLine(Console(file=out, force_terminal=True, width=100))
    shown(status((1.0,), loss=0.5))
    shown(None)
    shown(None)
    assert "step 12  loss 0.5" in out.getvalue()
    quiet = io.StringIO()
    silent = ProgressLine(Console(file=quiet))
    silent(status((1.0,)))
    silent(None)
    assert quiet.getvalue() == ""


def test_names_that_look_like_markup_are_shown_as_they_are():
    out = io.StringIO()
    shown = ProgressLine(Console(file=out, force_terminal=True, width=100))
    shown(status((), **{"[red]x": 1.0}))
    shown(None)
    assert "[red]x 1" in out.getvalue()


def test_progress_of_a_real_run(tmp_path, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=out, force_terminal=True, width=120))
    bare = train(steps=4)
    assert train(tmp_path / "run", steps=4, progress=True).losses == bare.losses
    assert "gradient/weight by layer" in out.getvalue()


def test_the_first_steps_show_the_weights_and_not_the_biases_of_zero(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3), torch.nn.PReLU(), torch.nn.Linear(3, 2))
    for layer in (model[0], model[1], model[3]):
        torch.nn.init.zeros_(layer.bias)
    model[1].requires_grad_(False)
    seen = []
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with Recorder(model, tmp_path / "run", observer=seen.append):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(5, 4)).square().mean().backward()
            optimizer.step()
    run = gatdiag.load(tmp_path / "run")
    values = run.parameters.query("parameter == '0.weight'").relative_gradient_norm.tolist()
    assert [status.relative_gradient_norms[0] for status in seen[:-1]] == [values[status.step] for status in seen[:-1]]
    assert all(math.isfinite(status.relative_gradient_norms[0]) for status in seen[:-1])
    assert seen[0].relative_gradient_norms[1] == 0
    assert format_status(seen[0]).split()[-1][1] == "·"
    assert "!" not in format_status(seen[0])
