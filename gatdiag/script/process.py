"""The process of a script: records from the first optimizer on, and concludes when the script has ended.

Nothing happens before the script imports torch: it may set variables that torch reads then. Processes that
multiprocessing starts are recorded in the same way, as one of them may be the first of a distributed training; those
that make no optimizer, as workers of data loaders, notice nothing. All others, such as those of `os.fork`, are left
alone.
"""

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from multiprocessing.process import BaseProcess, current_process
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from gatdiag.errors import GatdiagError
from gatdiag.names import printable
from gatdiag.recorder.ranks import is_first_process
from gatdiag.script.launch import RUNS, Launch, outer_environment
from gatdiag.script.watcher import conclude_if_killed

if TYPE_CHECKING:
    from gatdiag.script.trainings import Trainings

_OPTIMIZERS: Final = "torch.optim.optimizer"
_NO_OPTIMIZER: Final = (
    "no torch.optim.Optimizer was made in this process; weights that a script updates itself are recorded by "
    "gatdiag.watch, with recorder.step() before each update"
)
_ERROR_OUTPUT: Final = 2  # file descriptor
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)  # which end a script unless it handles them


def begin() -> None:
    """Prepare this process, of which the script has not begun yet."""
    launch = Launch.of_environment()
    is_script = launch.process == os.getpid()
    if not is_script and not _is_of_multiprocessing():
        outer = outer_environment()
        os.environ.clear()
        os.environ.update(outer)
        return
    process = Process(launch)
    sys.meta_path.insert(0, AfterImport(_OPTIMIZERS, process.on_import))
    if is_script:
        process.conclude_at_end()
        if is_first_process():
            process.note_end = conclude_if_killed(launch.out, [*launch.conclude, launch.out, "killed"])


def _is_of_multiprocessing() -> bool:
    return any("multiprocessing" in argument for argument in sys.orig_argv[1:])


class AfterImport:
    """A finder of modules that calls a function after a module was imported.

    Args:
        name: Of the module.
        function: Called once, with the module.
    """

    def __init__(self, name: str, function: Callable[[ModuleType], None]) -> None:
        self._name, self._function = name, function

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Called for each module that is imported; the next finder finds it."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self._function(module)

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


class Process:
    """The process of a script, or one of its children that may train.

    Args:
        launch: What it was told.

    Attributes:
        trainings: None until there is an optimizer.
        note_end: Called when the script has ended.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch, self._folder = launch, Path.cwd()  # a script may go elsewhere
        self.trainings: Trainings | None = None
        self.note_end: Callable[[], None] = lambda: None
        self._forked_in: BaseProcess | None = None
        self._is_told = False  # why something is not recorded
        os.register_at_fork(after_in_child=self._after_fork)

    def on_import(self, module: ModuleType) -> None:
        """Notice each optimizer that is made from now on: torch has hooks for steps only. Errors are a printed line."""
        make = module.Optimizer.__init__

        @wraps(make)
        def make_and_notice(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            if self._is_plain_fork:
                return
            try:
                self._notice(optimizer)
            except Exception as error:
                self._is_told = True
                kind = "" if isinstance(error, GatdiagError) else f"{type(error).__name__}: "
                say(f"not recorded: the model of {type(optimizer).__name__} ({kind}{error})")

        module.Optimizer.__init__ = make_and_notice

    def _notice(self, optimizer: Any) -> None:
        from gatdiag.script.trainings import Trainings  # loads the recorder

        if self.trainings is None:
            self.trainings = Trainings(Path(self._launch.out), every=self._launch.every, metrics=self._launch.metrics)
        self.trainings.on_optimizer(optimizer)

    def conclude_at_end(self) -> None:
        """Report when the script has ended, also after an exception or a signal."""
        atexit.register(self._conclude)
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._on_signal)

    def _after_fork(self) -> None:
        """In a process that was forked from this one: by `os.fork`, unless multiprocessing makes it its own."""
        self._forked_in = current_process()
        for number in _SIGNALS:
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL)

    @property
    def _is_plain_fork(self) -> bool:
        return self._forked_in is not None and current_process() is self._forked_in

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """End as a script does that has no handler, with what was recorded."""
        signal.signal(number, signal.SIG_DFL)
        if self.trainings is not None:
            self.trainings.end(KeyboardInterrupt())
        self._conclude()
        os.kill(os.getpid(), number)

    def _conclude(self) -> None:
        """Print the verdict and write the page, in another process: this one cannot start threads any more."""
        if os.getpid() != self._launch.process or not is_first_process():
            return
        self.note_end()
        out = self._launch.out
        if not any(Path(out).glob(RUNS)):
            if not self._is_told:
                say(f"nothing was recorded: {_NO_OPTIMIZER if self.trainings is None else self.trainings.missing}")
            return
        if self.trainings is not None and (unwritten := self.trainings.unwritten):
            say(f"not all was recorded: {unwritten}")
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError, OSError):  # a script may have closed or replaced them
                stream.flush()
        try:
            subprocess.run(
                [*self._launch.conclude, out],
                env=outer_environment(),
                stdin=subprocess.DEVNULL,
                cwd=self._folder if self._folder.is_dir() else None,  # where the paths that are printed are valid
                stdout=_ERROR_OUTPUT,
                check=False,
            )
        except OSError as error:
            say(f"no verdict ({error}): read it with gatdiag report {out}/*")
        except KeyboardInterrupt:
            return  # the other process has said so


def say(text: str) -> None:
    """Print a line on standard error."""
    print(f"gatdiag: {printable(text)}", file=sys.stderr)  # noqa: T201
