"""Recorder: a training loop -> a run. It only observes: it never calls the user's code, and changes nothing.

Modules, optimizers and what is passed and returned are read from the tables and containers that they are made of (see
`gatdiag.structure.modules`), so that no method, property or comparison of the user's runs. What cannot be had without:
the `__getattribute__` of a module or an optimizer, the `__torch_dispatch__` of a tensor, the attributes of a closure
given to `step`, the methods of a scaler given to `watch`, and `compute` of a metric that is logged.

A value of mu takes this way: torch's hook -> `ModuleHooks` -> `StepRecorder` -> `LayerMeasurer` -> `Sample` (until the
end of the step) -> `SampleBuffer` (until several steps are measured together) -> `Writer` -> the store.

- `session`: start, end, and what a loop calls; `settings`: the arguments of `watch`
- `step`: what happens between two updates; `samples`: what is known of a step; `budget`: which steps are recorded
- `hooks`: torch's hooks -> events
- `ranks`: which process records; `shards`: what other processes hold a part of
- `measure`: tensors -> columns of the tables `layers`, `parameters`, `neurons` (laws) and `steps`
- `plan`: what of a model is recorded, and its laws, decided before the first update
- `buffer`: samples that wait to be measured together
- `inspection`: what a diagnosis needs besides the tables; `criterion`: identifies the loss by its gradient;
  `outputs`: whether their rows differ, and targets that they cannot reach; `batches`: which batches the gradients of
  a step are of, and what was left of the step before; `loss_graph`: what is between output and loss; `messages`:
  weights and kinds of edges, and nodes that no edge reaches; `repeats`: targets of inputs that came again;
  `recurrence`: gradients over many runs of a layer; `axes`: what layers take for the batch; `tokens`: targets that
  are the next input; `loop`: optimizers and their steps, and what else writes weights; `data`: inputs that change,
  batches of graphs, labels; `normalization`: batch norms; `evaluation`: calls without gradients; `precision`: what
  half precision loses
- `scalars`: logged values; `meta`: the contents of meta.json
- `writer`: rows -> the run folder; `non_finite`: the first NaN or infinity
- `tracking`: rows -> scalars for a tracker
- `guard`: turns exceptions into warnings; `alarm`: warns of training errors
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gatdiag.quantities import GROUPS
    from gatdiag.recorder.budget import Every
    from gatdiag.recorder.buffer import Status
    from gatdiag.recorder.guard import RecordingWarning, TrainingWarning
    from gatdiag.recorder.session import Recorder
    from gatdiag.recorder.settings import Metrics, Patterns, Settings, select
    from gatdiag.recorder.tracking import Tracker, Update

__all__ = [
    "GROUPS",
    "Every",
    "Metrics",
    "Patterns",
    "Recorder",
    "RecordingWarning",
    "Settings",
    "Status",
    "Tracker",
    "TrainingWarning",
    "Update",
    "select",
]

_HOME = {
    "GROUPS": "gatdiag.quantities",
    "Status": "gatdiag.recorder.buffer",
    **dict.fromkeys(("Metrics", "Patterns", "Settings", "select"), "gatdiag.recorder.settings"),
    "Every": "gatdiag.recorder.budget",
    "Recorder": "gatdiag.recorder.session",
    **dict.fromkeys(("Tracker", "Update"), "gatdiag.recorder.tracking"),
    **dict.fromkeys(("RecordingWarning", "TrainingWarning"), "gatdiag.recorder.guard"),
}


def __getattr__(name: str) -> Any:  # lazily, so that `weights` can be imported without the rest
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'gatdiag.recorder' has no attribute {name!r}")
