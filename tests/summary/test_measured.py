import numpy as np

from gatdiag.summary import logged, measured, recorded


def test_null_is_told_from_nan(shared, broken):
    expected = shared.arrow("layers").column("mu").is_valid().to_pylist()
    assert measured(shared, "layers", "mu").tolist() == expected
    assert sum(expected) == 9
    assert measured(broken, "layers", "mu").all()
    assert np.isnan(broken.layers["mu"]).any()


def test_columns_that_are_not_there(shared):
    assert not measured(shared, "steps", "no such").any()
    assert not recorded(shared, "neurons", "predicted_c")
    assert recorded(shared, "neurons", "c")


def test_logged_scalars_keep_nan_and_drop_what_was_not_logged(shared, broken):
    assert logged(shared, "val_accuracy").to_dict() == {1: 0.1, 3: 0.1 * 3}
    loss = logged(broken, "loss")
    assert len(loss) == 40
    assert loss.isna().sum() == 25
