import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from gatdiag.diagnosis import Action, Diagnosis, Finding
from gatdiag.errors import InputError, ModelError
from gatdiag.treatment import Trial, treat
from gatdiag.treatment.treatment import _add_remedy
from tests.treatment.loops import Silent, X, Y, loop, make


def states():
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002


def bare(seed, train):
    """The losses of the training as a user has it."""
    seen = []
    torch.manual_seed(seed)
    train(seen=seen)(make(), Silent)
    return [loss for _, loss in seen]


def test_a_healthy_training_is_left_as_it_is(tmp_path):
    made = []
    treatment = treat(lambda: made.append(make()) or made[-1], loop(0.3, 60), X, seeds=(0, 1), folder=tmp_path / "t")
    assert len(made) == 2
    assert (treatment.verdict.code, treatment.trials, treatment.after, treatment.helped) == ("healthy", (), None, False)
    assert treatment.remedy == ""
    assert "nothing to treat" in str(treatment)
    assert not list((tmp_path / "t").glob("after*"))


def test_a_learning_rate_is_treated_and_all_is_as_it_was_afterwards(tmp_path):
    before, hooks = states(), (dict(_global_optimizer_pre_hooks), dict(_global_optimizer_post_hooks))
    treatment = treat(make, loop(1e-5, 60), X, seeds=(0, 1), folder=tmp_path / "t")
    assert states() == before
    assert (dict(_global_optimizer_pre_hooks), dict(_global_optimizer_post_hooks)) == hooks
    assert treatment.verdict.code == "lr-too-small"
    assert treatment.helped
    assert treatment.after.mean < 0.5 * treatment.before.mean
    assert all(gain > 0.1 for gain in treatment.after.gains)
    assert "torch.optim.SGD(model.parameters(), lr=" in treatment.remedy
    assert [run.folder.parent.name for run in treatment.after.runs] == ["after-1"] * 2
    measure = "In parentheses: median loss over the last tenth of a training, mean ± standard deviation over seeds."
    assert measure in (tmp_path / "t" / "treatment.html").read_text()


def test_what_was_before_is_bit_for_bit_the_training_without_gatdiag(tmp_path):
    treatment = treat(make, loop(0.3), X, seeds=(5,), folder=tmp_path / "t")
    assert treatment.before.runs[0].steps["loss"].tolist() == bare(5, lambda seen: loop(0.3, seen=seen))


def test_the_treated_training_is_that_of_the_pasted_line(tmp_path):
    treatment = treat(make, loop(1e-5, 60), X, seeds=(3,), folder=tmp_path / "t")
    lr = treatment.after.actions[0].settings["factor"] * 1e-5
    assert f"lr={lr:g})" in treatment.remedy
    expected = bare(3, lambda seen: loop(lr, 60, seen=seen))
    np.testing.assert_allclose(treatment.after.runs[0].steps["loss"], expected, rtol=1e-5)


def test_a_remedy_that_does_not_help_is_said_and_the_next_one_tried(tmp_path):
    actions = [Action("learning_rate", {"factor": 1e-3})]
    treatment = treat(make, loop(1e-4, 60), X, seeds=(0,), remedy=actions, folder=tmp_path / "t")
    assert not treatment.helped
    assert treatment.after is treatment.trials[0]
    assert "did not help" in str(treatment)
    measure = "In parentheses: median loss over the last tenth of a training."
    assert measure in (tmp_path / "t" / "treatment.html").read_text()


def test_a_remedy_that_cannot_be_applied_is_recorded_with_the_reason(tmp_path):
    action = Action("insert_after", {"layers": ("0",), "module": "Skip"})
    treatment = treat(make, loop(1e-5, 60), X, seeds=(0,), remedy=action, folder=tmp_path / "t")
    assert "got (80, 4) and (80, 16)" in treatment.trials[0].failure
    assert (treatment.after, treatment.helped) == (None, False)


def test_a_remedy_that_breaks_the_training_is_recorded_with_the_reason(tmp_path):
    action = Action("insert_after", {"layers": ("1",), "module": "LayerNorm", "width": 5})
    treatment = treat(make, loop(1e-5, 60), X, seeds=(0,), remedy=action, folder=tmp_path / "t")
    assert "training raised RuntimeError" in treatment.trials[0].failure


def test_one_cause_behind_another_is_treated_add_remedy(tmp_path):
    treatment = treat(make, loop(1e-5, 60, x=3e4 * X), 3e4 * X, seeds=(0,), folder=tmp_path / "t")
    names = [[action.name for action in trial.actions] for trial in treatment.trials]
    assert names[0] == ["standardize_inputs"]
    assert ["standardize_inputs", "learning_rate"] in names
    assert treatment.helped
    assert [action.name for action in treatment.after.actions] == ["standardize_inputs", "learning_rate"]
    assert treatment.remedy.startswith("data.x = ")
    assert treatment.remedy.count("optimizer = ") == 1


def test_what_did_not_help_is_not_pasted_where_what_is_behind_it_helps_by_itself(tmp_path, monkeypatch):
    clear, rate = Action("clear_gradients"), Action("learning_rate", {"factor": 1e4})
    seen = {  # what is said of each training
        "before": Finding("gradients-not-cleared", "error", "", "", remedy="zero_grad()", actions=(clear,)),
        "after-1": Finding("lr-too-small", "error", "", "", remedy="lr=0.1", actions=(rate,)),
    }

    def diagnose(run):
        found = seen.get(run.folder.parent.name)
        return Diagnosis((found,) if found else (), state="failing" if found else "trained")

    monkeypatch.setattr("gatdiag.treatment.treatment.diagnose", diagnose)
    treatment = treat(make, loop(1e-5, 60), X, seeds=(0,), folder=tmp_path / "t")
    assert [(trial.actions, trial.helped) for trial in treatment.trials] == [((clear,), False), ((rate,), True)]
    assert treatment.remedy == "lr=0.1"


def test_what_has_to_be_changed_by_hand_is_said_and_nothing_else_tried(tmp_path):
    treatment = treat(make, loop(0.1, 60, scale=0), X, seeds=(0,), folder=tmp_path / "t")
    assert (treatment.verdict.code, treatment.trials, treatment.helped) == ("no-training-signal", (), False)
    assert "change this in your code: print(mask.sum()" in treatment.notes[0]
    assert treatment.notes[0] in str(treatment)
    page = (tmp_path / "t" / "treatment.html").read_text()
    assert "The cause has to be fixed in your code." in page
    assert "it is in your model or training code" in page


def test_inputs_that_were_not_given_are_those_of_the_first_forward_pass(tmp_path):
    def train(model, recorder):
        loop(1e-5, 60)(model, recorder)
        pickle.dumps(model)  # nothing is left on it that cannot be

    remedy = Action("initialize", {"scheme": "balanced_orthogonal", "with_inputs": True})
    treatment = treat(make, train, seeds=(0,), remedy=remedy, folder=tmp_path / "t")
    assert treatment.trials[0].failure == ""
    assert treatment.trials[0].changes == ("weights initialized with balanced_orthogonal: 4 parameters",)


def test_a_setting_that_is_set_again_is_not_said_twice():
    decay = (Action("weight_decay", {"value": 0.1}), Action("leaky_relu", {"slope": 0.1}))
    before = Trial("before", actions=decay, remedy="optimizer = A\nleaky")
    trial = _add_remedy(before, Finding("x", "error", "", "", remedy="optimizer = B", actions=decay[:1]))
    assert [action.name for action in trial.actions] == ["leaky_relu", "weight_decay"]
    assert trial.remedy == "leaky\noptimizer = B"
    inserted = _add_remedy(before, Finding("x", "error", "", "", remedy="insert\n    it"))
    assert inserted.remedy == "leaky\ninsert\n    it\noptimizer = A"  # which then holds what was inserted


def test_an_unknown_code_names_those_that_there_are(tmp_path):
    with (
        pytest.raises(InputError, match="of this training: lr-too-small"),
        pytest.warns(UserWarning, match="cut short"),
    ):
        treat(make, loop(1e-5, 60), X, seeds=(0,), remedy="init-unbalanced", folder=tmp_path / "t")


@pytest.mark.parametrize("seeds", [(), (0, 0), (-1,), ("0",), (True,), 3])
def test_seeds_are_different_numbers(tmp_path, seeds):
    with pytest.raises(InputError, match="seeds"):
        treat(make, loop(), seeds=seeds, folder=tmp_path / "t")


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"remedy": 3}, {"remedy": {}}, {"make_model": make()}])
def test_what_is_no_remedy_and_no_factory_is_one_line(tmp_path, given):
    with pytest.raises(InputError, match=r"expected|Expected"):
        treat(**{"make_model": make, "train": loop(), "seeds": (0,), "folder": tmp_path / "t", **given})


def test_a_lazy_model_is_one_line(tmp_path):
    with pytest.raises(ModelError, match="is lazy"):
        treat(lambda: nn.LazyLinear(2), loop(), seeds=(0,), folder=tmp_path / "t")


def test_a_treatment_that_is_replaced_leaves_no_run_of_other_seeds_or_trials_and_nothing_else_is_deleted(tmp_path):
    place, page = tmp_path / "t", tmp_path / "t" / "treatment.html"

    def train(model, recorder):
        assert not page.exists()  # it is gone before its runs are
        loop(0.3)(model, recorder)

    old = treat(make, loop(1e-6), X, seeds=(0, 1), folder=place)
    given = old.before.runs[1].folder
    (place / "after-1" / "seed-1" / "mine").touch()
    treat(make, loop(1e-6), X, seeds=(1,), before=[given], folder=place, overwrite=True)
    left = {path.parent.relative_to(place).as_posix() for path in place.rglob("meta.json")}
    assert left == {"before/seed-1", "after-1/seed-1"}
    assert (place / "after-1" / "seed-1" / "mine").is_file()
    assert page.is_file()
    treat(make, train, X, seeds=(2,), folder=place, overwrite=True)  # is healthy
    assert page.is_file()
    left = {path.relative_to(place).as_posix() for path in place.rglob("*") if not path.is_dir()}
    assert {"after-1/seed-1/mine", "before/seed-2/meta.json"} <= left
    assert not any(path.startswith(("before/seed-1", "after-1/seed-1/meta")) for path in left)


def test_losses_of_nan_from_several_seeds_are_told_and_treated(tmp_path):
    with pytest.warns(UserWarning, match="NaN"):
        treatment = treat(make, loop(1e30, 60), X, seeds=(0, 1), folder=tmp_path / "t")
    assert treatment.verdict.code == "lr-too-large"
    assert "before: The learning rate is too large (loss nan)" in str(treatment)
    assert (tmp_path / "t" / "treatment.html").is_file()


def test_a_model_that_changes_between_calls_is_one_line(tmp_path):
    widths = iter((16, 17))

    def changing():
        width = next(widths)
        return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    line = r"another model than before: 0\.weight"
    with pytest.raises(InputError, match=line), pytest.warns(UserWarning, match="cut short"):
        treat(changing, loop(1e-5, 60), X, seeds=(0,), folder=tmp_path / "t")


def test_a_training_that_never_steps_is_one_line(tmp_path):
    def train(model, recorder):
        F.cross_entropy(model(X), Y).backward()

    with pytest.raises(InputError, match="made no step"), pytest.warns(UserWarning, match="cut short|no step"):
        treat(make, train, X, seeds=(0,), folder=tmp_path / "t")


def test_a_training_that_logs_nothing_is_one_line(tmp_path):
    def train(model, recorder):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()

    with pytest.raises(InputError, match=r"recorder\.log"), pytest.warns(UserWarning, match="cut short"):
        treat(make, train, X, seeds=(0,), folder=tmp_path / "t")


def test_a_factory_that_gives_no_model_is_one_line(tmp_path):
    with pytest.raises(InputError, match="returned int"):
        treat(lambda: 3, loop(), folder=tmp_path / "t")


def test_a_factory_that_gives_the_trained_model_again_is_one_line(tmp_path):
    model = make()
    with pytest.raises(InputError, match="the same model again"), pytest.warns(UserWarning, match="cut short"):
        treat(lambda: model, loop(1e-5, 60), X, seeds=(0,), folder=tmp_path / "t")


def test_a_loop_that_trains_another_model_is_one_line(tmp_path):
    with pytest.raises(InputError, match="made no step"), pytest.warns(UserWarning, match="cut short|no step"):
        treat(make, lambda model, recorder: loop(0.1, 5)(make(), recorder), X, seeds=(0,), folder=tmp_path / "t")


def test_a_loop_may_change_directories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def train(model, recorder):
        monkeypatch.chdir("/")
        loop(0.3, 60)(model, recorder)

    assert treat(make, train, X, seeds=(0,), folder="t").folder == tmp_path / "t"
    assert (tmp_path / "t" / "treatment.html").exists()


def test_arguments_are_looked_at_before_anything_is_trained(tmp_path):
    with pytest.raises(InputError, match=r"train\(model, recorder\)"):
        treat(make, 3, X, folder=tmp_path / "t")
    with pytest.raises(InputError, match="got 'nope'"):
        treat(make, loop(), X, remedy=Action("nope", {}), folder=tmp_path / "t")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine").touch()
    with pytest.raises(InputError, match="overwrite=True"):
        treat(make, loop(), X, folder=tmp_path / "t")
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["mine"]
