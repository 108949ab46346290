"""Recorder: a training loop -> a run, without changing the training.

A value of mu takes this way: torch's hook -> `LayerRecorder` -> `ForwardPass` (until the step) -> `Backlog` (until
several steps are measured together) -> `Writer` -> the store.

- `recorder`: brings all parts together; `settings`: the arguments of `watch`
- `layers`: modules -> rows of `layers`, with `attention`; `channels`: which axis of an output has the channels;
  `edges`: which has the nodes, and the edges between them; `deferred`: on an accelerator, outputs that wait
- `hooks`: how they are noticed, unseen by the user's modes, by the compiler and in other threads
- `ranks`: which process records; `shards`: what other processes hold a part of
- `optimizers`: notices optimizer steps; `backward`: backward passes; `schedule`: which steps are recorded
- `backlog`: copies of the weights and gradients of steps, which wait to be measured together
- `weights`: these -> rows of `parameters`; `neurons`: these -> rows of `neurons`
- `model`: the recording plan, made at the first training forward pass; `tape`: traces training that calls parts of a
  model instead of the model
- `signals`: what a diagnosis needs besides the tables; `criterion`: identifies the loss by its gradient
- `batches`: which batches the gradients of a step are of, and what was left of the step before
- `scalars`: logged values; `meta`: the contents of meta.json
- `writer`: rows -> the run folder; `non_finite`: the first NaN or infinity
- `guard`: turns exceptions into warnings; `alarm`: warns of training errors
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatdiag.quantities import GROUPS
    from gatdiag.recorder.backlog import Status
    from gatdiag.recorder.guard import RecordingWarning, TrainingWarning
    from gatdiag.recorder.recorder import Recorder
    from gatdiag.recorder.schedule import Every
    from gatdiag.recorder.settings import Metrics, Patterns, Settings, select

__all__ = [
    "GROUPS",
    "Every",
    "Metrics",
    "Patterns",
    "Recorder",
    "RecordingWarning",
    "Settings",
    "Status",
    "TrainingWarning",
    "select",
]

_HOME = {
    "GROUPS": "gatdiag.quantities",
    "Status": "gatdiag.recorder.backlog",
    **dict.fromkeys(("Metrics", "Patterns", "Settings", "select"), "gatdiag.recorder.settings"),
    "Every": "gatdiag.recorder.schedule",
    "Recorder": "gatdiag.recorder.recorder",
    **dict.fromkeys(("RecordingWarning", "TrainingWarning"), "gatdiag.recorder.guard"),
}


def __getattr__(name: str) -> Any:  # lazily, so that `weights` can be imported without the rest
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'gatdiag.recorder' has no attribute {name!r}")
