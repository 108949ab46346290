import pytest
import torch

from gatdiag.errors import InputError
from gatdiag.quantities import GROUPS
from gatdiag.recorder.settings import PRESETS, select
from tests.recorder.loops import train


def test_presets_name_groups_and_grow():
    assert all(group in GROUPS for preset in PRESETS.values() for group in preset)
    assert set(PRESETS["fast"]) < set(PRESETS["standard"]) < set(PRESETS["full"])
    assert all(group.cost > 0 for group in GROUPS.values())


def test_more_expensive_groups_are_not_measured_more_often():
    by_cost = sorted(PRESETS["standard"].items(), key=lambda item: GROUPS[item[0]].cost)
    assert all(GROUPS[name].cost / every <= 4 for name, every in by_cost), "percent of a training step, on average"
    assert by_cost[0][1] == 1


def test_names_select_groups_and_columns():
    chosen = select(["c", "spectral_norms"])
    assert chosen.every == {"balance": 1, "spectral_norms": 1}
    assert chosen.columns == {"c", *GROUPS["spectral_norms"].columns}
    assert select("relative_mu").columns == {"relative_mu"}
    assert select("changed_fraction_050").columns == {"changed_fraction_050", "significant_fraction"}


def test_due():
    chosen = select("standard")
    assert [record for record in range(220) if "ranks" in chosen.groups_due(record)] == [0, 100, 200]
    assert "cosine_distances" not in chosen.groups_due(0)


@pytest.mark.parametrize("name", ["rellative_mu", "", 3, "stanard"])
def test_unknown_names_are_refused_with_what_is_known(name):
    with pytest.raises(InputError, match="metrics= expects a preset"):
        select([name])


@pytest.mark.parametrize("scaler", [2.0**16, True, torch.optim.SGD([torch.zeros(1)], lr=1.0)])
def test_what_scales_no_loss_is_refused(tmp_path, scaler):
    with pytest.raises(InputError, match="scaler= expects"):
        train(tmp_path / "run", scaler=scaler)


def test_only_what_was_selected_is_recorded(tmp_path):
    run = train(tmp_path / "run", metrics=["c", "relative_mu", "norm"]).run
    for table, columns in ((run.neurons, {"c"}), (run.layers, {"relative_mu"}), (run.parameters, {"norm"})):
        measured = {column for column in table.columns[1:] if table[column].notna().any()}
        assert measured - {"layer", "law", "neuron", "parameter", "role"} == columns
    assert {entry["name"] for entry in run.meta["quantities"]} == {"c", "relative_mu", "norm"}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_record_what_they_say(tmp_path, preset):
    run = train(tmp_path / "run", metrics=preset, steps=2).run
    assert (len(run.neurons) > 0) == (preset != "fast")
    assert run.layers.mad.notna().any() == (preset == "full")
    assert run.parameters.gradient_norm.notna().all()
    assert run.meta["cadence"]["metrics"] == preset
