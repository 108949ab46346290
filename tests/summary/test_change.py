import numpy as np
import pytest

from gatdiag.roles import ATTENTION, FEATURE
from gatdiag.run import Store, load
from gatdiag.summary import LEVELS, weight_change
from tests.figures.odd_runs import bare_run, recorded_run
from tests.run.synthetic import synthetic_meta


def snapshots(tmp_path, *, best=True, seed=1):
    random = np.random.default_rng(seed)
    meta = synthetic_meta(2, 5)
    shapes = {p["name"]: p["shape"] for layer in meta["structure"]["layers"] for p in layer["parameters"]}
    initial = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    trained = {name: w + random.normal(0, 0.3, size=w.shape).astype(np.float32) for name, w in initial.items()}
    for name in trained:
        trained[name].ravel()[:2] = initial[name].ravel()[:2]
        trained[name].ravel()[-1] = 1e-6
    store = Store.create(tmp_path / "run", meta)
    store.append("steps", {"step": 0})
    store.save_snapshot("initial", initial)
    store.save_snapshot("final", {name: w * 2 for name, w in trained.items()})
    if best:
        store.save_snapshot("best", trained)
    store.seal("finished")
    return load(tmp_path / "run"), initial, trained


def test_change_by_the_papers_definitions(tmp_path):
    run, initial, trained = snapshots(tmp_path)
    table = weight_change(run)
    assert table["role"].tolist() == [FEATURE] * 2 + [ATTENTION] * 2
    assert set(table["source"]) == {"best model"}
    for row in table.to_dict("records"):
        name = f"{row['layer']}.{'lin_l.weight' if row['role'] == FEATURE else 'att'}"
        moved, counted = [], []
        for before, after in zip(initial[name].ravel().tolist(), trained[name].ravel().tolist(), strict=True):
            moved.append(abs(after - before))
            if row["role"] == ATTENTION:
                counted.append(abs(after - before))
            elif abs(after) >= 1e-4:
                counted.append(abs((after - before) / after))
        assert row["unchanged_fraction"] == pytest.approx(sum(m == 0 for m in moved) / len(moved))
        assert row["changed_fraction_005"] == pytest.approx(sum(c > 0.05 for c in counted) / len(counted))
        assert row["changed_fraction_050"] == pytest.approx(sum(c > 0.5 for c in counted) / len(counted))
        assert [row[f"q{q}"] for q in LEVELS] == pytest.approx([np.percentile(counted, q) for q in LEVELS])


def test_without_a_best_snapshot_the_final_one_counts(tmp_path):
    run, initial, trained = snapshots(tmp_path, best=False)
    table = weight_change(run)
    assert set(table["source"]) == {"final model"}
    expected = np.abs(2 * trained["convs.0.att"] - initial["convs.0.att"]).max()
    assert table[table["role"] == ATTENTION]["q100"].iloc[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("best", "last", "source"),
    [
        (0, 100, "final model"),
        (4, 100, "final model"),
        (5, 100, "best model, after step 5"),
        (100, 100, "best model, after step 100"),
        (0, 0, "final model"),
        (1, 2, "best model, after step 1"),
    ],
)
def test_a_best_model_from_the_start_says_nothing_of_training(tmp_path, best, last, source):
    store = Store.create(tmp_path / "run", synthetic_meta(2, 3))
    for step in range(last + 1):
        store.append("steps", {"step": step})
    for name, factor in (("initial", 1.0), ("best", 2.0), ("final", 4.0)):
        store.save_snapshot(name, {"convs.0.att": np.full((1, 1, 3), factor, np.float32)})
    store.update_meta(best={"name": "val_accuracy", "mode": "max", "value": 0.5, "step": best})
    store.seal("finished")
    table = weight_change(load(tmp_path / "run"))
    assert table["source"].tolist() == [source]
    assert table["q50"].tolist() == [1.0 if source.startswith("best") else 3.0]


def test_broken_weights_are_undefined(broken):
    table = weight_change(broken)
    assert len(table) == 12
    assert table.drop(columns=["layer", "role", "source"]).isna().all(axis=None)


def test_without_snapshots_the_last_recorded_rows_count(tmp_path):
    def rows(step):
        columns = {"parameter": np.arange(6), "unchanged_fraction": np.full(6, 0.1 * step)}
        if step % 2 == 0:
            columns["relative_change_q50"] = np.arange(6) + step
            columns["absolute_change_q50"] = 10.0 * np.arange(6) + step
        return {"parameters": columns}

    table = weight_change(recorded_run(tmp_path / "run", synthetic_meta(2, 3), rows, 4))
    assert table["unchanged_fraction"].tolist() == pytest.approx([0.3] * 4)
    assert table["q50"].tolist() == [2, 5, 12, 42]  # step 2: lin_l of both layers, then att
    assert table["q95"].isna().all()


def test_weights_that_broke_last_are_undefined_and_not_as_they_were_before(tmp_path):
    def rows(step):
        return {"parameters": {"parameter": np.arange(6), "unchanged_fraction": np.full(6, [0.5, np.nan][step])}}

    table = weight_change(recorded_run(tmp_path / "run", synthetic_meta(2, 3), rows, 2))
    assert set(table["source"]) == {"step 1"}
    assert table["unchanged_fraction"].isna().all()


def test_nothing_recorded_is_an_empty_table(tmp_path):
    table = weight_change(bare_run(tmp_path / "bare"))
    assert len(table) == 0
    assert "q50" in table.columns
