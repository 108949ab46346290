"""treat(): a training before and after the remedies that its diagnosis proposes."""

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from warnings import warn

from torch import nn

from gatdiag.diagnosis import SEVERITIES, Action, Finding, diagnose
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.fixes import paste
from gatdiag.errors import GatdiagError, InputError
from gatdiag.names import join_names
from gatdiag.recorder import Recorder
from gatdiag.run import Run, load
from gatdiag.run.files import META, free_folder, remove_run
from gatdiag.structure.isolation import random_state
from gatdiag.structure.replica import check_initialized
from gatdiag.treatment.actions import ACTIONS, TreatedModel, apply_actions
from gatdiag.treatment.outcome import Metric, Treatment, Trial, choose_metric, describe_trial
from gatdiag.treatment.page import PAGE, write_page
from gatdiag.watching import watch

MakeModel = Callable[[], nn.Module]
Train = Callable[[nn.Module, Recorder], Any]

_MAX_TRIALS: Final = 4
_MEANT_FOR_OTHER_STEPS: Final = {"adam": {"learning_rate", "setting"}, "learning_rate": {"adam"}}
"""Name of an action -> those that it replaces, as they suit the steps of another optimizer."""
_REMEDY_ERRORS: Final = (GatdiagError, RuntimeError, ValueError, TypeError)  # raised if a remedy does not fit the model


def treat(
    make_model: MakeModel,
    train: Train,
    *inputs: Any,
    seeds: Sequence[int] = (0, 1, 2),
    remedy: str | Action | Sequence[Action] | None = None,
    before: Sequence[str | os.PathLike[str]] = (),
    folder: str | os.PathLike[str] = "treatment",
    overwrite: bool = False,
    progress: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> Treatment:
    """Train, diagnose, apply the proposed remedy, train again from the same seeds, and compare.

    If the remedy does not help, that of the next finding is tried.

    Args:
        make_model: Returns a new model at each call, the same except for its random numbers.
        train: The training loop, called with the model and a recorder. It creates the optimizer, and logs with
            ``recorder.log(loss=loss, val_accuracy=...)``.
        inputs: Positional inputs of a forward pass, for remedies that need them; by default those of the first forward
            pass in training.
        seeds: Seeds of torch, numpy and `random`, set before each call of `make_model`.
        remedy: What to apply instead of the proposed remedy: actions, or the code of a finding.
        before: Folders of recorded runs of the unchanged training, one for each seed, which are then not trained again.
        folder: The folder for the runs and the page.
        overwrite: Replace a treatment that is in the folder. By default, if there is one, a numbered sibling is
            written (treatment-2), and one line on standard error names it, as `Treatment.folder` does.
        progress: Show each training in one line in the terminal, as `gatdiag.watch` does.
        on_progress: Called with a line of text before each training and after each trial.

    Returns:
        The trainings before and with each remedy, and whether it helped. A healthy training is not changed.

    Raises:
        InputError: An argument is wrong, the folder holds other files, the model changes between calls, or the training
            takes no optimizer step or logs nothing. Exceptions of `make_model` and `train` are passed on unless a
            remedy was applied; what was recorded until then is kept.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from torch.nn import functional as F
        >>> x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
        >>> x[:, 0] += 4 * y
        >>> def loop(model, recorder):
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        ...     for _ in range(60):
        ...         loss = F.cross_entropy(model(x), y)
        ...         loss.backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        ...         recorder.log(loss=loss)
        >>> make = lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> treatment = treat(make, loop, x, seeds=[0], folder=tempfile.mkdtemp() + "/treated")
        >>> treatment.verdict.code, treatment.helped
        ('lr-too-small', True)
    """
    known, given = tuple(seeds), _check_remedy(remedy)
    if not known or len({*known}) < len(known) or not all(0 <= seed < 2**32 for seed in known):
        raise InputError(f"seeds: expected distinct integers from 0 to 2**32 - 1, got {seeds!r}")
    if not callable(make_model) or isinstance(make_model, nn.Module) or not callable(train):
        raise InputError(
            f"Expected functions make_model() and train(model, recorder), got {make_model!r:.60} and {train!r:.60}"
        )
    if len(before) not in (0, len(known)):
        raise InputError(f"before: expected a run for each of {len(known)} seeds, got {len(before)}")
    place = Path(folder).absolute()  # train() may change directories
    if not (before or overwrite):
        place = _free_folder(place)
    if overwrite:
        (place / PAGE).unlink(missing_ok=True)  # it would not match the new runs if this is killed
    session = _Session(
        make_model, train, inputs, {}, known, place, overwrite, progress, on_progress or (lambda _: None)
    )
    try:
        done = session.run(given, [load(place) for place in before])
    except BaseException as error:  # show what was recorded, whatever the error
        session.write_partial_page(error)
        raise
    if overwrite:
        _remove_other_runs(place, {folder.resolve() for folder in (*map(Path, before), *session.recorded)})
    write_page(done)
    return done


def _free_folder(place: Path) -> Path:
    """The folder, or a numbered sibling if it holds a treatment."""
    place = free_folder(place, f"before/*/{META}")
    if place.is_dir() and any(place.iterdir()):
        raise InputError(f"{place} holds other files than a treatment: give another folder, or overwrite it")
    return place


def _remove_other_runs(place: Path, kept: set[Path]) -> None:
    """Delete the runs of seeds and trials that only an earlier treatment had."""
    for trial in (place / "before", *place.glob("after-*")):
        for file in trial.glob(f"seed-*/{META}"):
            if file.parent.resolve() not in kept:
                with suppress(InputError):  # no run, or being recorded
                    remove_run(file.parent)


def _check_remedy(remedy: str | Action | Sequence[Action] | None) -> str | tuple[Action, ...] | None:
    if remedy is None or isinstance(remedy, str):
        return remedy
    actions = (remedy,) if isinstance(remedy, Action) else tuple(remedy)
    if unknown := [action for action in actions if not isinstance(action, Action) or action.name not in ACTIONS]:
        raise InputError(
            f"remedy: expected the code of a finding, or gatdiag.treatment.Action of {join_names(ACTIONS)}, got "
            f"{unknown[0]!r}"
        )
    return actions


class _RemedyError(Exception):
    """A remedy cannot be applied, or training raises an error with it."""


@dataclass
class _Session:
    """The trainings of one treatment."""

    make_model: MakeModel
    train: Train
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    seeds: tuple[int, ...]
    folder: Path
    overwrite: bool
    progress: bool
    report: Callable[[str], None]
    last_model: nn.Module | None = None
    shapes: dict[str, Any] | None = None
    metric: Metric | None = None
    done: Treatment | None = None
    current: Trial | None = None
    recorded: list[Path] = field(default_factory=list)

    def run(self, given: str | tuple[Action, ...] | None, recorded: Sequence[Run] = ()) -> Treatment:
        before = Trial("before")
        for run in recorded:
            before = self.add_run(before, run)
        before = before if recorded else self.train_trial(before)
        self.done = done = Treatment(self.folder, self.seeds, self.metric, before)
        options = _remedy_options(before, given)
        basis, tried = before, set[frozenset[str]]()
        while options and len(done.trials) < _MAX_TRIALS:
            option = options.pop(0)
            if (actions := frozenset(map(str, option.actions))) in tried:
                continue
            tried.add(actions)
            trial = self.compare(self.train_trial(replace(option, name=f"after-{len(done.trials) + 1}")), basis)
            self.done = done = replace(done, trials=(*done.trials, trial))
            self.report(describe_trial(trial))
            if trial.helped:
                basis = trial
                options = _remedy_options(trial, None) if given is None else []
            elif given is None and (behind := _next_cause(trial)) is not None:
                # first without the remedy that did not help, then with both
                options = [_add_remedy(basis, behind), _add_remedy(trial, behind), *options]
        return done

    # --- trainings ----------------------------------------------------------------------------------------------------

    def train_trial(self, trial: Trial) -> Trial:
        """Train with the remedy of the trial, from each seed."""
        for seed in self.seeds:
            self.current = trial
            self.report(f"{trial.name}, seed {seed}")
            try:
                run, changes = self.train_once(trial, seed)
            except _RemedyError as error:
                return replace(trial, failure=str(error))
            trial = replace(self.add_run(trial, run), changes=tuple(changes))
        return trial

    def add_run(self, trial: Trial, run: Run) -> Trial:
        diagnoses, values = (*trial.diagnoses, diagnose(run)), (*trial.values, self.value_of(run))
        return replace(trial, runs=(*trial.runs, run), diagnoses=diagnoses, values=values)

    def train_once(self, trial: Trial, seed: int) -> tuple[Run, list[str]]:
        """Train once; all random states are restored."""
        folder = self.folder / trial.name / f"seed-{seed}"
        with random_state(seed):
            model = self.make_model()
            self.check_model(model)
            treated = TreatedModel(model, self.inputs, self.keywords)
            try:
                with treated.contexts:
                    apply_actions(treated, trial.actions)
                    self.capture_inputs(treated)
                    name = f"{trial.name}, seed {seed}"
                    with watch(model, folder, name=name, overwrite=self.overwrite, progress=self.progress) as recorder:
                        folder = recorder.folder
                        self.recorded.append(folder)
                        self.train(model, recorder)
            except _REMEDY_ERRORS as error:
                if trial.name == "before":
                    raise
                raised = "" if isinstance(error, GatdiagError) else f"training raised {type(error).__name__}: "
                raise _RemedyError(f"{raised}{error}") from error
        run = load(folder)
        if not len(run.parameters):
            raise InputError(
                "train(model, recorder) made no step of an optimizer with parameters of its model: train the model "
                "that is passed, or call recorder.step() before each update"
            )
        return run, treated.changes

    def capture_inputs(self, treated: TreatedModel) -> None:
        """Keep the inputs of the first forward pass, unless inputs were given."""

        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.inputs, self.keywords = args, kwargs
            handle.remove()  # so that the model can be pickled

        if not (self.inputs or self.keywords):
            handle = treated.model.register_forward_pre_hook(keep, with_kwargs=True)
            treated.contexts.callback(handle.remove)

    def write_partial_page(self, error: BaseException) -> None:
        """Write the page of what was recorded until an error, if anything was."""
        if not self.recorded or self.current is None:
            return
        cut = self.current
        try:
            known = {run.folder for run in cut.runs}
            late = () if self.recorded[-1] in known else (load(self.recorded[-1]),)
            trial = replace(cut, runs=(*cut.runs, *late))
            if self.done is None:
                done = Treatment(self.folder, self.seeds, self.metric, trial)
            else:
                done = replace(self.done, trials=(*self.done.trials, trial))
            warn(
                f"gatdiag: the treatment was cut short; what was recorded is shown in {write_page(done, error)}",
                stacklevel=4,
            )
        except Exception as problem:  # do not hide the original exception
            warn(f"gatdiag: the treatment was cut short, and its page could not be written: {problem}", stacklevel=4)

    def check_model(self, model: Any) -> None:
        """Raise InputError unless make_model() returned a new model with the same parameters as before."""
        if not isinstance(model, nn.Module):
            raise InputError(f"make_model() returned {type(model).__name__}, expected a torch.nn.Module")
        check_initialized(model)
        if model is self.last_model:
            raise InputError(
                "make_model() returned the same model again, which is already trained: create a new one at each call"
            )
        shapes = {name: (parameter.shape, parameter.dtype) for name, parameter in model.named_parameters()}
        if shapes != (self.shapes or shapes):
            raise InputError(
                "make_model() returned another model than before: expected parameters with the same names, shapes and "
                "dtypes at each call"
            )
        self.last_model, self.shapes = model, shapes

    # --- comparison ---------------------------------------------------------------------------------------------------

    def value_of(self, run: Run) -> float:
        self.metric = self.metric or choose_metric(run)
        if self.metric is None:
            raise InputError(
                "train(model, recorder) logged no loss and no score by which trainings could be compared: call "
                "recorder.log(loss=loss, val_accuracy=...) in it"
            )
        return self.metric.value(run)

    def compare(self, trial: Trial, basis: Trial) -> Trial:
        if trial.failure or self.metric is None:
            return trial
        gains = tuple(map(self.metric.gain, _values(basis), _values(trial)))
        return replace(trial, gains=gains, helped=self.metric.helped(gains))


def _values(trial: Trial) -> list[float]:
    """The values; NaN if the loss ended as NaN, where scores mean nothing."""
    return [
        math.nan if Facts(run).is_non_finite else value for run, value in zip(trial.runs, trial.values, strict=True)
    ]


# --- what to try ------------------------------------------------------------------------------------------------------


def _remedy_options(trial: Trial, given: str | tuple[Action, ...] | None) -> list[Trial]:
    """Trials with one more remedy than this one, that of the verdict first."""
    if isinstance(given, tuple):
        return [Trial("", None, given, paste(given))]
    verdict, findings = trial.verdict, [finding for finding in _by_priority(trial) if finding.actions]
    if given is None:
        # none if nothing is wrong, or if the verdict can only be fixed in the user's code
        treatable = verdict is not None and verdict.is_cause and verdict.severity != "note" and verdict.actions
        return [_add_remedy(trial, finding) for finding in findings] if treatable else []
    if given not in (codes := [finding.code for finding in findings]):
        raise InputError(
            f"remedy: expected the code of a finding that can be treated, got {given!r}; of this training: "
            f"{join_names(codes) or 'none'}"
        )
    return [_add_remedy(trial, finding) for finding in findings if finding.code == given]


def _by_priority(trial: Trial) -> list[Finding]:
    """The verdict, the other findings by severity and frequency, then the symptoms of the verdict."""
    verdict = trial.verdict
    every = [finding for diagnosis in trial.diagnoses for finding in diagnosis]
    often = Counter(finding.code for finding in every)
    others = sorted(every, key=lambda one: (SEVERITIES.index(one.severity), -often[one.code]))
    ranked = [*([verdict] if verdict else []), *others, *(verdict.symptoms if verdict else ())]
    return list({finding.code: finding for finding in reversed(ranked)}.values())[::-1]


def _add_remedy(trial: Trial, finding: Finding) -> Trial:
    """Add the finding's remedy to those of a trial, the optimizer last; later settings replace earlier ones."""
    again = {_what(action) for action in finding.actions if "value" in action.settings}
    for one, others in _MEANT_FOR_OTHER_STEPS.items():
        again |= others if any(action.name == one for action in finding.actions) else set()
    kept = (action for action in trial.actions if not {_what(action), action.name} & again)
    actions = (*kept, *finding.actions)
    return Trial("", finding, actions, paste(actions))


def _what(action: Action) -> str:
    """What an action changes; of two that give it a value, only the later one counts."""
    return str(action.settings["name"]) if action.name == "setting" else action.name


def _next_cause(trial: Trial) -> Finding | None:
    """The first cause found after a remedy removed its own; None if that is still there."""
    codes = {diagnosis.verdict.code for diagnosis in trial.diagnoses}
    is_gone = not trial.failure and trial.finding is not None and trial.finding.code not in codes
    return next((option.finding for option in _remedy_options(trial, None)), None) if is_gone else None
