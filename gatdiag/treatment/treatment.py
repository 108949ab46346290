"""treat(): a training before and after the remedy that its diagnosis names."""

import math
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from warnings import warn

import torch
from torch import nn

from gatdiag.diagnosis import SEVERITIES, Action, Finding, diagnose
from gatdiag.diagnosis.facts import Facts
from gatdiag.errors import GatdiagError, InputError
from gatdiag.names import join_names
from gatdiag.recorder import Recorder
from gatdiag.run import Run, load
from gatdiag.structure.isolation import random_state
from gatdiag.structure.replica import check_initialized
from gatdiag.treatment.actions import ACTIONS, Dose, apply
from gatdiag.treatment.outcome import Treatment, Trial, Yardstick, result, yardstick
from gatdiag.treatment.page import PAGE, write_page
from gatdiag.watching import watch

MakeModel = Callable[[], nn.Module]
Train = Callable[[nn.Module, Recorder], Any]

_OPTIMIZER: Final = "optimizer = "  # how the line begins that makes it
_MOST: Final = 4  # remedies that are tried
_OF_REMEDIES: Final = (GatdiagError, RuntimeError, ValueError, TypeError)  # raised where a remedy does not fit a model


def treat(
    make_model: MakeModel,
    train: Train,
    *inputs: Any,
    seeds: Sequence[int] = (0, 1, 2),
    remedy: str | Action | Sequence[Action] | None = None,
    before: Sequence[str | os.PathLike[str]] = (),
    folder: str | os.PathLike[str] = "treatment",
    overwrite: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> Treatment:
    """Train, diagnose, apply the remedy that the diagnosis names, train again from the same seeds, and compare.

    Args:
        make_model: Gives a fresh model each time, the same but for its random numbers.
        train: The training loop, called with the model and a recorder; it makes the optimizer, and logs with
            ``recorder.log(loss=loss, val_accuracy=...)``.
        inputs: Of a forward pass, for remedies that need one; those of the first one in training if left out.
        seeds: Of torch, numpy and `random`, set before each call of `make_model`.
        remedy: What to apply in place of what the diagnosis names: actions, or the code of a finding.
        before: Folders of runs of this very training, one for each seed, that are taken as they are in place of
            training again.
        folder: Where runs and page are written.
        overwrite: Replace the treatment that is in the folder.
        on_progress: Called with a line about each training when it begins, and about what came of it.

    Returns:
        What was before, what was tried, and whether it helped. A healthy training is left as it is.

    Raises:
        InputError: An argument is wrong, the folder holds a treatment, the model changes between calls, the training
            makes no step or logs nothing. What the factory or the loop raises before a remedy is applied comes through
            as it is; what was recorded until then is kept.

    Example:
        >>> import tempfile
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
    known, given, place = _seeds(seeds), _given(remedy), Path(folder).absolute()  # the loop may change directories
    if not callable(make_model) or isinstance(make_model, nn.Module) or not callable(train):
        raise InputError(
            f"Expected functions make_model() and train(model, recorder), got {make_model!r:.60} and {train!r:.60}"
        )
    if len(before) not in (0, len(known)):
        raise InputError(f"before: expected a run for each of {len(known)} seeds, got {len(before)}")
    if not (before or overwrite) and place.is_dir() and any(place.iterdir()):
        raise InputError(f"{place} is not empty: give another folder, or say overwrite=True to replace the treatment")
    if overwrite:
        (place / PAGE).unlink(missing_ok=True)  # which would tell of other runs than are there, should this be killed
    session = _Session(make_model, train, inputs, known, place, overwrite, on_progress or (lambda _: None))
    try:
        done = session.run(given, [load(place) for place in before])
    except BaseException as error:  # whatever ends it, what was recorded is shown, and the error goes on
        session.show(error)
        raise
    write_page(done)
    return done


def _seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    known = tuple(seeds) if isinstance(seeds, Iterable) else ()
    fits = all(type(seed) is int and 0 <= seed < 2**32 for seed in known)
    if not known or not fits or len({*known}) < len(known):
        raise InputError(f"seeds: expected different whole numbers from 0 to 2**32 - 1, got {seeds!r}")
    return known


def _given(remedy: str | Action | Sequence[Action] | None) -> str | tuple[Action, ...] | None:
    if remedy is None or isinstance(remedy, str):
        return remedy
    given = (remedy,) if isinstance(remedy, Action) else remedy
    actions = tuple(given) if isinstance(given, Iterable) else ()
    if not actions or not all(isinstance(action, Action) for action in actions):
        raise InputError(f"remedy: expected the code of a finding or gatdiag.treatment.Action, got {remedy!r}")
    if unknown := [action.name for action in actions if action.name not in ACTIONS]:
        raise InputError(f"remedy: expected actions of {join_names(ACTIONS)}, got {unknown[0]!r}")
    return actions


class _RefusedError(Exception):
    """A remedy that cannot be applied, or that the training does not bear."""


@dataclass
class _Session:
    """The trainings of one treatment."""

    make_model: MakeModel
    train: Train
    inputs: tuple[Any, ...]
    seeds: tuple[int, ...]
    folder: Path
    overwrite: bool
    tell: Callable[[str], None]
    signature: dict[str, Any] | None = None
    last_model: weakref.ref[nn.Module] | None = None
    yardstick: Yardstick | None = None
    done: Treatment | None = None
    current: Trial | None = None
    recording: Path | None = None

    def run(self, given: str | tuple[Action, ...] | None, recorded: Sequence[Run] = ()) -> Treatment:
        before = Trial("before")
        for run in recorded:
            before = self.with_run(before, run)
        before = before if recorded else self.trained(before)
        self.done = done = Treatment(self.folder, self.seeds, self.yardstick, before)
        options = _options(before, given)
        basis, tried = before, set[frozenset[str]]()
        while options and len(done.trials) < _MOST:
            option = options.pop(0)
            if (actions := frozenset(map(str, option.actions))) in tried:
                continue
            tried.add(actions)
            trial = self.judged(self.trained(replace(option, name=f"after-{len(done.trials) + 1}")), basis)
            self.done = done = replace(done, trials=(*done.trials, trial))
            self.tell(result(trial))
            if trial.helped:
                basis = trial
                options = _options(trial, None) if given is None else []
            elif given is None and (behind := _behind(trial)) is not None:
                # by itself first: what did not help is left out unless it takes both
                options = [_on_top(basis, behind), _on_top(trial, behind), *options]
        return done

    # --- trainings ----------------------------------------------------------------------------------------------------

    def trained(self, trial: Trial) -> Trial:
        """With the remedy of the trial, from each seed."""
        for seed in self.seeds:
            self.current = trial
            self.tell(f"{trial.name}, seed {seed}")
            try:
                run, changes = self.one(trial, seed)
            except _RefusedError as refused:
                return replace(trial, refused=str(refused))
            trial = replace(self.with_run(trial, run), changes=tuple(changes))
        return trial

    def with_run(self, trial: Trial, run: Run) -> Trial:
        diagnoses, values = (*trial.diagnoses, diagnose(run)), (*trial.values, self.value(run))
        return replace(trial, runs=(*trial.runs, run), diagnoses=diagnoses, values=values)

    def one(self, trial: Trial, seed: int) -> tuple[Run, list[str]]:
        """One training; all random states are given back."""
        folder = self.folder / trial.name / f"seed-{seed}"
        devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
        with random_state(seed, devices):
            model = self.make_model()
            self.check(model)
            dose = Dose(model, self.inputs)
            try:
                with dose.during:
                    apply(dose, trial.actions)
                    self.watch_inputs(dose)
                    with watch(model, folder, overwrite=self.overwrite, name=f"{trial.name}, seed {seed}") as recorder:
                        self.recording = folder
                        self.train(model, recorder)
            except _OF_REMEDIES as error:
                if trial.name == "before":
                    raise
                raised = "" if isinstance(error, GatdiagError) else f"training raised {type(error).__name__}: "
                raise _RefusedError(f"{raised}{error}") from error
        run = load(folder)
        if not len(run.parameters):
            raise InputError(
                "train(model, recorder) made no step of an optimizer that holds parameters of its model: train the "
                "model that it is given, or call recorder.step() before each update"
            )
        return run, dose.changes

    def watch_inputs(self, dose: Dose) -> None:
        """Keep the inputs of the first forward pass, if none were given."""

        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.inputs = () if kwargs else args
            handle.remove()  # so that the model can be pickled

        if not self.inputs:
            handle = dose.model.register_forward_pre_hook(keep, with_kwargs=True)
            dose.during.callback(handle.remove)

    def show(self, error: BaseException) -> None:
        """The page of what was recorded until an error; nothing where that is nothing."""
        if self.recording is None or self.current is None:
            return
        cut = self.current
        try:
            known = {run.folder for run in cut.runs}
            late = () if self.recording in known else (load(self.recording),)
            trial = replace(cut, runs=(*cut.runs, *late))
            if self.done is None:
                done = Treatment(self.folder, self.seeds, self.yardstick, trial)
            else:
                done = replace(self.done, trials=(*self.done.trials, trial))
            warn(f"the treatment was cut short; what was recorded is shown in {write_page(done, error)}", stacklevel=4)
        except Exception as problem:  # the user's own exception matters more
            warn(f"the treatment was cut short, and its page could not be written: {problem}", stacklevel=4)

    def check(self, model: Any) -> None:
        """The factory gives the same model each time."""
        if not isinstance(model, nn.Module):
            raise InputError(f"make_model() returned {type(model).__name__}, expected a torch.nn.Module")
        check_initialized(model)
        if self.last_model is not None and self.last_model() is model:
            raise InputError(
                "make_model() returned the same model again, which is trained already: build a new one at each call"
            )
        self.last_model = weakref.ref(model)
        signature = {name: (tuple(parameter.shape), parameter.dtype) for name, parameter in model.named_parameters()}
        if self.signature is None:
            self.signature = signature
        elif signature != self.signature:
            other = next(
                name for name in {**signature, **self.signature} if signature.get(name) != self.signature.get(name)
            )
            raise InputError(
                f"make_model() returned another model than before: {other} differs. Expected the same parameters in "
                "the same shapes at each call, so that trainings can be compared"
            )

    # --- what came of it ----------------------------------------------------------------------------------------------

    def value(self, run: Run) -> float:
        self.yardstick = self.yardstick or yardstick(run)
        if self.yardstick is None:
            raise InputError(
                "train(model, recorder) logged no loss and no score, so that trainings cannot be compared: call "
                "recorder.log(loss=loss, val_accuracy=...) in it"
            )
        return self.yardstick.value(run)

    def judged(self, trial: Trial, basis: Trial) -> Trial:
        if trial.refused or self.yardstick is None:
            return trial
        gains = tuple(map(self.yardstick.gain, _counted(basis), _counted(trial)))
        return replace(trial, gains=gains, helped=self.yardstick.helped(gains))


def _counted(trial: Trial) -> list[float]:
    """The values; NaN where the loss ended as NaN: a score is that of one class then."""
    return [
        math.nan if Facts(run).is_non_finite else value for run, value in zip(trial.runs, trial.values, strict=True)
    ]


# --- what to try ------------------------------------------------------------------------------------------------------


def _options(trial: Trial, given: str | tuple[Action, ...] | None) -> list[Trial]:
    """Remedies on top of those of a trial, the verdict's first."""
    if isinstance(given, tuple):
        return [Trial("", None, given, "\n".join(f"# {action}" for action in given))]
    verdict, findings = trial.verdict, [finding for finding in _in_turn(trial) if finding.actions]
    if given is None:
        # if nothing is wrong, or what is wrong has to be changed by hand before anything else, there are none
        treatable = verdict is not None and verdict.is_problem and verdict.severity != "note" and verdict.actions
        return [_on_top(trial, finding) for finding in findings] if treatable else []
    if given not in (codes := [finding.code for finding in findings]):
        raise InputError(
            f"remedy: expected the code of a finding that can be treated, got {given!r}; of this training: "
            f"{join_names(codes) or 'none'}"
        )
    return [_on_top(trial, finding) for finding in findings if finding.code == given]


def _in_turn(trial: Trial) -> list[Finding]:
    """The verdict, the other findings as often as they stand, then what the verdict explains."""
    verdict = trial.verdict
    every = [finding for diagnosis in trial.diagnoses for finding in diagnosis]
    often = Counter(finding.code for finding in every)
    others = sorted(every, key=lambda one: (SEVERITIES.index(one.severity), -often[one.code]))
    ranked = [*([verdict] if verdict else []), *others, *(verdict.symptoms if verdict else ())]
    return list({finding.code: finding for finding in reversed(ranked)}.values())[::-1]


def _on_top(trial: Trial, finding: Finding) -> Trial:
    """The finding's remedy after those of a trial, the optimizer last; what is set again is not said twice."""
    again = {action.name for action in finding.actions if "value" in action.settings}
    kept = [action for action in trial.actions if action.name not in again]
    is_new = any(line.startswith(_OPTIMIZER) for line in finding.remedy.splitlines())
    lines = [line for line in trial.remedy.splitlines() if not (is_new and line.startswith(_OPTIMIZER))]
    lines = sorted([*lines, *finding.remedy.splitlines()], key=lambda line: line.startswith(_OPTIMIZER))
    return Trial("", finding, (*kept, *finding.actions), "\n".join(lines))


def _behind(trial: Trial) -> Finding | None:
    """The cause that is seen now that the one that was treated is gone; None if that is still there."""
    codes = {diagnosis.verdict.code for diagnosis in trial.diagnoses}
    is_gone = not trial.refused and trial.finding is not None and trial.finding.code not in codes
    return next((option.finding for option in _options(trial, None)), None) if is_gone else None
