"""Finds what a script trains, by the optimizers that it makes, and records each model in a folder of its own.

A model is found when an optimizer is made that holds its parameters, so that its first forward pass is seen: of all
live modules that are part of no other one, the smallest that holds all these parameters. If none does, the training is
that of several models together. No code of the script is called for that.

A training ends with the script, or when the next one begins: an optimizer is made for a new model of the same kind, or
for the same one after it was initialized again, as for folds and trials. Of trials that differ in size, a few stay
open, because a model whose optimizer is gone may get another one.
"""

import gc
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gatdiag.names import join_names
from gatdiag.recorder import Every, Metrics, Recorder, Settings, select
from gatdiag.recorder.hooks.outside import Outside, run_as_is
from gatdiag.recorder.hooks.registry import listen_to_optimizers, stop_listening
from gatdiag.recorder.loop import is_undone
from gatdiag.recorder.ranks import is_first_process
from gatdiag.recorder.samples import is_readable
from gatdiag.run.files import META, from_here, snapshot_path
from gatdiag.script.process import say
from gatdiag.structure.identity import IdentityTable
from gatdiag.structure.modules import (
    attributes_of,
    children_of,
    is_training,
    modules_of,
    named_parameters,
    own_parameters,
)
from gatdiag.structure.optimizers import parameters_of
from gatdiag.structure.replica import unwrap

_ROWS: Final = 64  # of the largest parameter, by which weights are compared
_ENTRIES: Final = 512  # of these rows
_MOST_OPEN: Final = 8  # trainings
_MAX_NAME: Final = 60  # characters


class Together(nn.ModuleDict):
    """Several models that one optimizer trains; in training as long as one of them is.

    Example:
        >>> list(dict(Together([nn.Linear(2, 1), nn.Linear(2, 1)]).named_children()))
        ['Linear', 'Linear_2']
    """

    def __init__(self, models: Collection[nn.Module]) -> None:
        super().__init__()
        for model in models:
            self.add_module(self._free_name(type(model).__name__), model)

    def _free_name(self, name: str) -> str:
        number, free = 1, name
        while free in self._modules or hasattr(self, free):
            number, free = number + 1, f"{name}_{number + 1}"
        return free

    @property
    def training(self) -> bool:
        """Whether any of the models is in training mode."""
        return any(map(is_training, children_of(self).values()))

    @training.setter
    def training(self, _: bool) -> None:
        """Each model has a mode of its own."""


class Training:
    """The recorded training of a model.

    Args:
        model: The model.
        recorder: Records it already.
    """

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        self.model, self.recorder = model, recorder
        self.parameters = {id(one): one for _, one in named_parameters(model)}
        self._largest: nn.Parameter | None = None
        self._start = self._last = self._entries()
        self.steps = 0
        self.is_recorded = False
        self.optimizers = IdentityTable[bool]()

    def on_step(self) -> None:
        """A step was made."""
        self.steps += 1
        self._last = self._entries()

    @property
    def kind(self) -> tuple[Any, ...]:
        """The same for models that differ in their weights only."""
        shapes = tuple(tuple(each.shape) for each in self._plain())
        return type(self.model), tuple(map(type, modules_of(self.model))), shapes

    def is_initialized_again(self) -> bool:
        """Whether the weights are other ones than those that the last step left."""
        now = self._entries()
        if not self.steps or self._start is None or self._last is None or now is None:
            return False
        return is_undone(*(each.cpu().double() for each in (self._start, self._last, now)))

    def _plain(self) -> list[nn.Parameter]:
        """The parameters without those that are lazy, or of which other processes hold parts."""
        return [each for each in self.parameters.values() if type(each) is nn.Parameter and is_readable(each)]

    def _entries(self) -> Tensor | None:
        """A copy of some entries of the largest parameter, which is not waited for on an accelerator."""
        if self._largest is None:
            self._largest = max(self._plain(), key=Tensor.numel, default=None)
        if self._largest is None:
            return None
        # few rows, because `reshape` copies them in channels_last
        rows: Tensor = torch.atleast_1d(self._largest.detach())[:_ROWS]
        return rows.reshape(-1)[:_ENTRIES].clone()


class Trainings:
    """The trainings of this process, from now on.

    Args:
        out: Folder of the runs.
        every: As of `gatdiag.watch`.
        metrics: As of `gatdiag.watch`.
    """

    def __init__(self, out: Path, *, every: Every = "auto", metrics: Metrics = "standard") -> None:
        self._out, self._every, self._metrics = out, every, metrics
        self._running: list[Training] = []
        self._of_optimizer = IdentityTable[Training]()
        self._names = Counter[str]()
        self._unwritten: dict[Path, str] = {}  # folder of a training that has ended -> why it could not be written to
        self._unknown: str | None = None  # an optimizer that has made steps for no model
        listen_to_optimizers(self)

    @property
    def missing(self) -> str:
        """Why nothing was recorded."""
        if recorded := [training for training in self._running if training.is_recorded]:
            return f"{from_here(recorded[0].recorder.folder)} was deleted or moved while the script ran"
        if unwritten := self.unwritten:
            return unwritten
        if any(training.steps for training in self._running):
            return "the script records its training itself, or recording is switched off"
        if self._unknown is not None:
            return f"{self._unknown} holds parameters of no torch.nn.Module"
        return "no optimizer of a model has made a step in this process"

    @property
    def unwritten(self) -> str:
        """Which folders could not be written to, why, and what to do; "" if all could."""
        self._note_unwritten(self._running)
        if not self._unwritten:
            return ""
        names = join_names((str(from_here(folder)) for folder in self._unwritten), 3)
        why = next(iter(self._unwritten.values()))
        return f"{names} could not be written to ({why}); free space there, or choose another folder with --out"

    def _note_unwritten(self, trainings: Collection[Training]) -> None:
        self._unwritten |= {each.recorder.folder: why for each in trainings if (why := each.recorder.unwritten)}

    @run_as_is
    def on_optimizer(self, optimizer: Optimizer) -> None:
        """Called when an optimizer was made."""
        if is_first_process():  # as far as it is known; the recorder asks once more at the first step
            with Outside():
                self._find_training(optimizer)

    def _find_training(self, optimizer: Optimizer) -> None:
        held = parameters_of(optimizer)
        training = next((each for each in reversed(self._running) if held.keys() <= each.parameters.keys()), None)
        if training is None:
            model = find_model(held)
            training = None if model is None else self._begin(model)
        elif training.is_initialized_again():
            before, training = training, self._begin(training.model)
            snapshot_path(before.recorder.folder, "final").unlink(missing_ok=True)  # holds the new weights
        if training is not None:
            training.optimizers[optimizer] = True
            self._of_optimizer[optimizer] = training

    def _begin(self, model: nn.Module) -> Training:
        kind = _name(model)
        number = self._names[kind] + 1
        name = kind if number == 1 else f"{kind}-{number}"
        settings = Settings(
            select(self._metrics),
            every=self._every,
            name=f"{self._out.name}: {name}",
            numbered=True,
            warn=True,
            needs_step=True,
        )
        recorder = Recorder(model, self._out / name, settings)
        training = Training(model, recorder)
        for other in [each for each in self._running if self._is_over(each, training)]:
            self._running.remove(other)
            other.recorder.finish()
            self._note_unwritten([other])
        recorder.start()
        self._names[kind] = number
        self._running.append(training)
        return training

    def _is_over(self, training: Training, following: Training) -> bool:
        is_left = not training.optimizers and len(self._running) >= _MOST_OPEN
        return training.steps > 0 and (is_left or training.kind == following.kind)

    def end(self, error: BaseException | None = None) -> None:
        """End all trainings."""
        stop_listening(self)
        while self._running:
            training = self._running.pop()
            training.recorder.__exit__(None if error is None else type(error), error, None)
            self._note_unwritten([training])

    # --- steps --------------------------------------------------------------------------------------------------------

    def before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Called before each step of an optimizer."""
        if optimizer not in self._of_optimizer:
            self._unknown = type(optimizer).__name__

    def after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Called after each step of an optimizer."""
        training = self._of_optimizer.get(optimizer)
        if training is None:
            return
        try:
            with Outside():
                training.on_step()
        except Exception as error:
            self._of_optimizer.pop(optimizer)
            say(f"the end of this training will not be noticed ({type(error).__name__}: {error})")
        else:
            if training.steps == 1 and is_first_process() and (training.recorder.folder / META).exists():
                training.is_recorded = True
                say(f"recording {_name(training.model)} in {from_here(training.recorder.folder)}")


def find_model(held: Collection[int]) -> nn.Module | None:
    """The model that holds parameters; several together if none holds all, and None if no live module holds any.

    Args:
        held: ids of the parameters, in order.

    Example:
        >>> inner = nn.Linear(2, 1)
        >>> outer = nn.Sequential(inner)
        >>> find_model([id(inner.weight), id(inner.bias)]) is outer
        True
    """
    order = {key: position for position, key in enumerate(held)}
    roots = [(root, {id(one): name.count(".") for name, one in named_parameters(root)}) for root in _roots(order)]
    # the fewest dots: of wrappers of the same, the one that adds least
    roots.sort(key=lambda item: (-len(item[1].keys() & order.keys()), len(item[1]), sum(item[1].values())))
    chosen, left = list[tuple[int, nn.Module]](), set(order)
    for root, parameters in roots:
        if own := parameters.keys() & left:
            chosen.append((min(order[key] for key in own), root))
            left -= own
    models = [model for _, model in sorted(chosen, key=lambda item: item[0])]
    return Together(models) if len(models) > 1 else next(iter(models), None)


def _roots(held: Collection[int]) -> list[nn.Module]:
    """The live modules that are part of no other one and hold some of the parameters; one of those of each other."""
    # the oldest last, because a collection in between makes objects older: then they are there twice
    ages = [[one for one in gc.get_objects(generation=age) if _is_of_script(one)] for age in (0, 1, 2)]
    modules = [*{id(one): one for age in reversed(ages) for one in age}.values()]  # the oldest first
    parents = defaultdict[int, list[nn.Module]](list)
    for module in modules:
        for child in children_of(module).values():
            parents[id(child)].append(module)
    roots, seen = list[nn.Module](), set[int]()
    for module in reversed(modules):  # the latest first, as a scripted module before the one that it was made of
        if id(module) not in seen and any(id(one) in held for one in own_parameters(module).values()):
            whole = _climb(module, parents)
            for top in _tops(whole, parents):
                if not top & seen:
                    roots.append(_outermost([one for one in modules if id(one) in top], held, parents))
            seen |= whole.keys()
    return roots


def _tops(whole: Mapping[int, nn.Module], parents: Mapping[int, Sequence[nn.Module]]) -> Iterator[Set[int]]:
    """Ids of each module that is part of no other one, or of those that are parts of each other alone."""
    left = dict(whole)
    while left:
        _, module = left.popitem()  # the last, because it was climbed to
        above, below = _climb(module, parents).keys(), {id(one) for one in modules_of(module)}
        if above <= below:
            yield above
            left = {key: one for key, one in left.items() if key not in below}


def _outermost(
    circle: Sequence[nn.Module], held: Collection[int], parents: Mapping[int, Sequence[nn.Module]]
) -> nn.Module:
    """Of modules that are parts of each other, the whole, as far as that can be told; they come oldest first.

    An optimizer is mostly made with the parameters of the whole, in their order, and several parts hold it. Of those
    that are left, the oldest: a part that is given its whole is made later, and so is a trainer of a model.
    """

    def unlikely(module: nn.Module) -> tuple[bool, int]:
        order = [id(one) for _, one in named_parameters(module) if id(one) in held]
        return order != list(held), -len(parents[id(module)])

    return min(circle, key=unlikely) if len(circle) > 1 else circle[0]


def _climb(module: nn.Module, parents: Mapping[int, Sequence[nn.Module]]) -> dict[int, nn.Module]:
    """Id -> module, of the module and all that it is a part of."""
    found, rising = dict[int, nn.Module](), [module]
    while rising:
        module = rising.pop()
        if id(module) not in found:
            found[id(module)] = module
            rising += parents[id(module)]
    return found


def _is_of_script(thing: Any) -> bool:
    kind = type(thing)  # asked for, because `isinstance` calls what pretends to be of another class
    return issubclass(kind, nn.Module) and kind is not Together and "_modules" in attributes_of(thing)


def _name(model: nn.Module) -> str:
    """What the model's run is called."""
    parts = model.children() if isinstance(model, Together) else [unwrap(model)]
    return re.sub(r"\W+", "-", "-".join(dict.fromkeys(type(part).__name__ for part in parts)))[:_MAX_NAME]
