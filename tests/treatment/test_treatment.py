import pickle
import random
import shutil

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import gatdiag
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


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Folders of the run of a training with a learning rate that is too small."""
    folder = tmp_path_factory.mktemp("slow") / "run"
    torch.manual_seed(0)
    model = make()
    with gatdiag.watch(model, folder) as recorder:
        loop(1e-5, 60)(model, recorder)
    return [folder]


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


def test_each_training_is_shown_in_one_line_if_asked_for(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("gatdiag.watching.ProgressLine", lambda: shown.append)
    treat(make, loop(0.3, 60), X, seeds=(0, 1), folder=tmp_path / "t", progress=True)
    assert shown.count(None) == 2
    assert {status.step for status in shown if status} >= {59}


def test_what_was_before_is_bit_for_bit_the_training_without_gatdiag(tmp_path):
    treatment = treat(make, loop(0.3), X, seeds=(5,), folder=tmp_path / "t")
    assert treatment.before.runs[0].steps["loss"].tolist() == bare(5, lambda seen: loop(0.3, seen=seen))


def test_the_treated_training_is_that_of_the_pasted_line(tmp_path):
    treatment = treat(make, loop(1e-5, 60), X, seeds=(3,), folder=tmp_path / "t")
    lr = treatment.after.actions[0].settings["factor"] * 1e-5
    assert f"lr={lr:g})" in treatment.remedy
    expected = bare(3, lambda seen: loop(lr, 60, seen=seen))
    np.testing.assert_allclose(treatment.after.runs[0].steps["loss"], expected, rtol=1e-5)


def test_a_remedy_that_does_not_help_is_said(tmp_path, slow):
    actions = [Action("learning_rate", {"factor": 1e-3})]
    treatment = treat(make, loop(1e-5, 60), X, seeds=(0,), remedy=actions, before=slow, folder=tmp_path / "t")
    assert not treatment.helped
    assert treatment.after is treatment.trials[0]
    assert "did not help" in str(treatment)
    measure = "In parentheses: median loss over the last tenth of a training."
    assert measure in (tmp_path / "t" / "treatment.html").read_text()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"layers": ("0",), "module": "Skip"}, "got (80, 4) and (80, 16)"),
        ({"layers": ("1",), "module": "LayerNorm", "width": 5}, "training raised RuntimeError"),
    ],
)
def test_a_remedy_that_cannot_be_applied_is_recorded_with_the_reason(tmp_path, slow, settings, reason):
    remedy = Action("insert_after", settings)
    treatment = treat(make, loop(1e-5, 60), X, seeds=(0,), remedy=remedy, before=slow, folder=tmp_path / "t")
    assert reason in treatment.trials[0].failure
    assert (treatment.after, treatment.helped) == (None, False)


def test_one_cause_behind_another_is_treated_add_remedy(tmp_path):
    treatment = treat(make, loop(1e-5, 60, x=3e4 * X), 3e4 * X, seeds=(0,), folder=tmp_path / "t")
    names = [[action.name for action in trial.actions] for trial in treatment.trials]
    assert names[0] == ["standardize_inputs"]
    assert ["standardize_inputs", "learning_rate"] in names
    assert treatment.helped
    assert [action.name for action in treatment.after.actions] == ["standardize_inputs", "learning_rate"]
    assert treatment.remedy.startswith("x = ")
    assert treatment.remedy.count("optimizer = ") == 1


def test_what_did_not_help_is_not_pasted_where_what_is_behind_it_helps_by_itself(tmp_path, slow, monkeypatch):
    clear, rate = Action("clear_gradients"), Action("learning_rate", {"factor": 1e4})
    seen = {  # what is said of each training
        slow[0].parent.name: Finding("gradients-not-cleared", "error", "", "", remedy="zero_grad()", actions=(clear,)),
        "after-1": Finding("lr-too-small", "error", "", "", remedy="lr=0.1", actions=(rate,)),
    }

    def diagnose(run):
        found = seen.get(run.folder.parent.name)
        return Diagnosis((found,) if found else (), state="failing" if found else "trained")

    monkeypatch.setattr("gatdiag.treatment.treatment.diagnose", diagnose)
    treatment = treat(make, loop(1e-5, 60), X, seeds=(0,), before=slow, folder=tmp_path / "t")
    assert [(trial.actions, trial.helped) for trial in treatment.trials] == [((clear,), False), ((rate,), True)]
    assert treatment.remedy == rate.code


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

    remedy = Action("initialize", {"scheme": "balanced_orthogonal", "inputs": ("x", "edge_index")})
    treatment = treat(make, train, seeds=(0,), remedy=remedy, folder=tmp_path / "t")
    assert treatment.trials[0].failure == ""
    assert treatment.trials[0].changes == ("weights initialized with balanced_orthogonal: 4 parameters",)


def test_a_setting_that_is_set_again_is_not_said_twice():
    decay = (Action("weight_decay", {"value": 0.1}), Action("leaky_relu", {"slope": 0.1}))
    before = Trial("before", actions=decay)
    lower = Action("weight_decay", {"value": 0.01})
    trial = _add_remedy(before, Finding("x", "error", "", "", actions=(lower,)))
    assert trial.actions == (decay[1], lower)
    assert trial.remedy == f"{decay[1].code}\n{lower.code}"
    inserted = _add_remedy(before, Finding("x", "error", "", "", remedy="# by hand", actions=(Action("unfreeze"),)))
    assert inserted.remedy.splitlines()[:2] == [decay[1].code, Action("unfreeze").code]  # before the optimizer is made
    assert "by hand" not in inserted.remedy  # which was not trained


def test_adam_takes_the_place_of_settings_for_the_steps_of_another_optimizer():
    of_sgd = (Action("learning_rate", {"factor": 0.1}), Action("setting", {"name": "momentum", "value": 0.9}))
    found = Finding("x", "error", "", "", actions=(Action("adam", {"lr": 0.01}),))
    assert _add_remedy(Trial("before", actions=of_sgd), found).actions == found.actions


def test_an_unknown_code_names_those_that_there_are(tmp_path, slow):
    with pytest.raises(InputError, match="of this training: lr-too-small"):
        treat(make, loop(), X, seeds=(0,), remedy="init-unbalanced", before=slow, folder=tmp_path / "t")


@pytest.mark.parametrize("seeds", [(), (0, 0), (-1,)])
def test_seeds_are_different_numbers(tmp_path, seeds):
    with pytest.raises(InputError, match="seeds"):
        treat(make, loop(), seeds=seeds, folder=tmp_path / "t")


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_treatment_that_is_replaced_leaves_no_run_of_other_seeds_or_trials_and_nothing_else_is_deleted(tmp_path):
    place, page = tmp_path / "t", tmp_path / "t" / "treatment.html"

    def train(model, recorder):
        assert not page.exists()  # it is gone before its runs are
        loop(0.3)(model, recorder)

    old = treat(make, loop(1e-6), X, seeds=(0, 1), folder=place)
    given = old.before.runs[1].folder
    (place / "after-1" / "seed-1" / "mine").touch()
    shutil.copytree(given, place / "mine" / "seed-1")
    treat(make, loop(1e-6), X, seeds=(1,), before=[given], folder=place, overwrite=True)
    left = {path.parent.relative_to(place).as_posix() for path in place.rglob("meta.json")}
    assert left == {"before/seed-1", "after-1/seed-1", "mine/seed-1"}
    assert (place / "after-1" / "seed-1" / "mine").is_file()
    assert page.is_file()
    treat(make, train, X, seeds=(2,), folder=place, overwrite=True)  # is healthy
    assert page.is_file()
    left = {path.parent.relative_to(place).as_posix() for path in place.rglob("meta.json")}
    assert left == {"before/seed-2", "mine/seed-1"}
    assert (place / "after-1" / "seed-1" / "mine").is_file()


def test_losses_of_nan_from_several_seeds_are_told_and_treated(tmp_path):
    with pytest.warns(UserWarning, match="NaN"):
        treatment = treat(make, loop(1e30, 20), X, seeds=(0, 1), folder=tmp_path / "t")
    assert treatment.verdict.code == "lr-too-large"
    assert "before: The learning rate is too large (loss NaN)" in str(treatment)
    assert (tmp_path / "t" / "treatment.html").is_file()


SAME = make()
WIDTHS = iter((16, 17))


def changing():
    width = next(WIDTHS)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


@pytest.mark.parametrize(
    ("factory", "error", "message"),
    [
        (lambda: 3, InputError, "returned int"),
        (make(), InputError, r"Expected functions make_model\(\)"),
        (lambda: SAME, InputError, "the same model again"),
        (changing, InputError, "another model than before"),
        (lambda: nn.LazyLinear(2), ModelError, "is lazy"),
    ],
)
@pytest.mark.filterwarnings("ignore:gatdiag. the treatment was cut short")
def test_a_factory_that_gives_no_new_model_is_one_line(tmp_path, factory, error, message):
    with pytest.raises(error, match=message):
        treat(factory, loop(1e-5, 20), X, seeds=(0,), folder=tmp_path / "t")


def step_without_loss(model, recorder):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = model(X)
    out.backward(torch.ones_like(out))
    optimizer.step()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (lambda model, recorder: F.cross_entropy(model(X), Y).backward(), "made no step"),
        (lambda model, recorder: loop(0.1, 5)(make(), recorder), "made no step"),
        (step_without_loss, r"recorder\.log"),
    ],
    ids=["never steps", "trains another model", "has no loss"],
)
def test_a_loop_that_records_nothing_is_one_line(tmp_path, train, message):
    with pytest.raises(InputError, match=message), pytest.warns(UserWarning, match="cut short|no step"):
        treat(make, train, X, seeds=(0,), folder=tmp_path / "t")


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
    with pytest.raises(InputError, match=r"got Action\(name='nope'"):
        treat(make, loop(), X, remedy=Action("nope", {}), folder=tmp_path / "t")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine").touch()
    with pytest.raises(InputError, match="holds other files than a treatment"):
        treat(make, loop(), X, folder=tmp_path / "t")
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["mine"]


def test_a_second_treatment_is_written_beside_the_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, second = (treat(make, loop(), X, seeds=[0]) for _ in range(2))
    assert capsys.readouterr().err == "gatdiag: treatment already holds a run: writing to treatment-2\n"
    assert (first.folder, second.folder) == (tmp_path / "treatment", tmp_path / "treatment-2")
    assert [run.folder for run in second.before.runs] == [tmp_path / "treatment-2" / "before" / "seed-0"]
    assert (tmp_path / "treatment-2" / "treatment.html").exists()
