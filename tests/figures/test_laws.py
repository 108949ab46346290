import numpy as np
import pytest

from gatdiag.figures import table
from gatdiag.figures.laws import BALANCE, CONSERVATION
from tests.figures.canvas import drawn, lines, words


def test_c_of_chosen_neurons(runs, shown):
    run, values = runs["stuck"], shown(BALANCE, "stuck", "single")[0]
    assert list(dict.fromkeys(values["layer"])) == ["convs.0", "convs.4", "convs.8"]
    for law, part in values.groupby("law"):
        rows = run.neurons[run.neurons["law"] == law].set_index("step")
        assert part["c"].tolist() == rows.loc[part["step"], "c"].tolist()
        assert part["layer"].nunique() == 1
        known = part.dropna(subset=["predicted_c"])
        assert known["predicted_c"].tolist() == rows.loc[known["step"], "predicted_c"].tolist()
        assert 3 <= len(known) <= 12


def test_a_long_run_is_thinned_to_medians_of_c_and_of_its_prediction_over_the_same_steps(runs, shown):
    values = shown(BALANCE)[0]
    frame = runs["ordinary"].neurons
    for law, part in values.groupby("law"):
        rows = frame[frame["law"] == law]
        assert len(part) == 80
        assert (part["low"].min(), part["high"].max()) == (rows["c"].min(), rows["c"].max())
        known = part.dropna(subset=["predicted_c"])
        assert (known["predicted_c"] - known["c"]).abs().max() < 2e-4
        assert 3 <= len(known) <= 12


def test_neurons_are_chosen_by_the_rank_of_their_last_c(runs):
    run = runs["ordinary"]
    values = table(BALANCE, run, layers=["convs.1"], neurons=3)
    last = run.neurons[(run.neurons["step"] == run.neurons["step"].max()) & (run.neurons["layer"] == "convs.1")]
    assert set(values["law"]) == set(last.sort_values("c")["law"].iloc[[0, 2, 3]])


def test_a_neuron_that_drifts_away_is_shown(runs, monkeypatch):
    run = runs["ordinary"]
    frame = run.neurons.copy()
    of = frame[(frame["step"] == 0) & (frame["layer"] == "convs.1")].sort_values("c")
    drifting = of["law"].iloc[1]  # neither the largest nor the smallest at first
    frame.loc[(frame["law"] == drifting) & (frame["step"] > 50), "c"] = 1e3
    monkeypatch.setattr(type(run), "neurons", frame)
    assert drifting in set(table(BALANCE, run, layers=["convs.1"], neurons=2)["law"])


def test_lines_and_circles(shown):
    values, canvas = shown(BALANCE)
    panels = [axes for axes in canvas.axes if axes.get_title("left")]
    assert [len(lines(axes)) for axes in panels] == [4, 4, 4]
    (circles,) = [line for line in panels[0].get_lines() if line.get_label() == "_predicted"]
    assert len(circles.get_xdata()) == values[values["layer"] == "convs.0"]["predicted_c"].notna().sum()
    assert "predicted from the previous step" in words(canvas)


def test_noise_around_zero_is_not_blown_up(shown):
    values = shown(BALANCE)[0]
    low, high = (
        drawn(BALANCE, values.assign(**{name: values[name] * 1e-9 for name in ("c", "low", "high")})).axes[0].get_ylim()
    )
    assert low < -0.09
    assert high > 0.09


@pytest.mark.parametrize(("name", "width"), [("ordinary", "double"), ("stuck", "single")])
def test_delta_is_the_largest_of_each_layer(runs, shown, name, width):
    run, (values, canvas) = runs[name], shown(CONSERVATION, name, width)
    rows = run.neurons.assign(size=run.neurons["delta"].abs())
    for layer, part in values.groupby("layer", observed=True):
        largest = rows[rows["layer"] == layer].groupby("step")["size"].max()
        assert part["high"].max() == largest.max()
        if len(largest) <= 80:
            assert part["value"].tolist() == largest.tolist()
    assert len(lines(canvas.axes[0])) == len(run.layer_names) - 1
    assert canvas.axes[0].get_yscale() == "log"


def test_delta_that_is_exactly_zero_is_marked(shown):
    canvas = shown(CONSERVATION, "broken")[1]
    assert "exactly 0" in words(canvas)
    zeros = [line for line in canvas.axes[0].get_lines() if line.get_label() == "_zero"]
    assert np.concatenate([line.get_xdata() for line in zeros]).max() == 14
