"""Recorder: a training loop -> a run, without changing anything about the training.

One value of mu: torch's hook -> `LayerRecorder` -> `ForwardPass` (until the step) -> `Backlog` (until it is measured
together with those of other steps) -> `Writer` -> the store.

- `recorder`: the recorder itself, which brings the others together; `settings`: the arguments of `watch`
- `layers`: modules that run -> rows of `layers`, with `attention`
- `optimizers`: notices the steps of optimizers; `backward`: backward passes; `schedule`: which steps are recorded
- `backlog`: copies of weights and gradients at a step, which wait to be measured together
- `weights`: these -> rows of `parameters`; `neurons`: these -> rows of `neurons`
- `model`: the plan of the recording, made at the first training forward; `tape`: the same where training calls parts of
  a model and not its forward pass; `criterion`: the loss, from gradients
- `scalars`: logged values; `meta`: the contents of meta.json
- `writer`: rows -> the run folder; `non_finite`: the first NaN
- `signals`: what is seen besides
- `guard`: contains what fails; `alarm`: says what is wrong with the training
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatdiag.quantities import GROUPS, Group
    from gatdiag.recorder.backlog import Observer, Status
    from gatdiag.recorder.guard import RecordingWarning, TrainingWarning
    from gatdiag.recorder.recorder import Recorder
    from gatdiag.recorder.schedule import Every
    from gatdiag.recorder.settings import PRESETS, Metrics, Patterns, Settings, select

__all__ = [
    "GROUPS",
    "PRESETS",
    "Every",
    "Group",
    "Metrics",
    "Observer",
    "Patterns",
    "Recorder",
    "RecordingWarning",
    "Settings",
    "Status",
    "TrainingWarning",
    "select",
]

_HOME = {
    **dict.fromkeys(("GROUPS", "Group"), "gatdiag.quantities"),
    **dict.fromkeys(("Observer", "Status"), "gatdiag.recorder.backlog"),
    **dict.fromkeys(("PRESETS", "Metrics", "Patterns", "Settings", "select"), "gatdiag.recorder.settings"),
    "Every": "gatdiag.recorder.schedule",
    "Recorder": "gatdiag.recorder.recorder",
    **dict.fromkeys(("RecordingWarning", "TrainingWarning"), "gatdiag.recorder.guard"),
}


def __getattr__(name: str) -> Any:  # what measures weights alone pays for nothing else here
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'gatdiag.recorder' has no attribute {name!r}")
