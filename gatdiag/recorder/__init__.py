"""Recorder: a training loop -> a run, without changing anything about the training.

- `recorder`: the recorder itself, which brings the others together
- `steps`: notices the steps of optimizers; `clock`: counts them; `schedule`: which of them are recorded
- `plan`: what is recorded of one model; `subject`: when that is settled, and what becomes of it when parts of the model
  are replaced, which `binding` notices
- `groups`: what is recorded, in presets by cost
- `passes`: events of layers -> rows of `layers`, with `rows` and `attention`
- `weights`: parameters -> rows of `parameters`; `balance`: laws -> rows of `neurons`; `measurement`: one step of all
- `scalars`: what the user logs
- `scaling`: what undoes a gradient scaler
- `outbox`: from the device to the host; `writer`: from there to the run folder; `first_bad`: the first NaN
- `description`: what meta.json says; `status`: what a progress line shows
- `guard`: contains what fails
"""

from gatdiag.quantities import GROUPS, Group
from gatdiag.recorder.groups import PRESETS, Metrics
from gatdiag.recorder.guard import RecordingWarning
from gatdiag.recorder.plan import Patterns
from gatdiag.recorder.recorder import Recorder
from gatdiag.recorder.schedule import Every
from gatdiag.recorder.status import Observer, Status

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
    "Status",
]
