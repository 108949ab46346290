"""Saved checkpoints: what is in the files, without ever executing it, and what it says of the network.

From files:

- `opening`: any format -> `Checkpoint`; files, globs and folders -> paths in order of the step
- `torch_file`, `safetensors_file`, `distributed`: one format each, checked before it is loaded
- `state_dict`, `optimizer`: what the entries of a file mean; a model's weights from them
- `writing`: the same file with other tensors, and all else as it was

From tensors:

- `stack`: which layer feeds which -> c of each neuron, for plain stacks
- `measures`: norms, NaN and infinities, dead rows and columns, how far weights have moved
- `initialization`: the one whose distribution a weight has

Together:

- `inspection`: checkpoints -> a run folder; `record`: its rows, from weights alone or with the model and data
- `overview`: an inspection -> one row per layer, or per parameter
"""

from gatdiag.checkpoint.inspection import Inspection, inspect
from gatdiag.checkpoint.opening import Checkpoint, open_checkpoint, series
from gatdiag.checkpoint.optimizer import OptimizerState
from gatdiag.checkpoint.overview import layer_table, weight_table
from gatdiag.checkpoint.record import ModelCase
from gatdiag.checkpoint.stack import find_stack
from gatdiag.checkpoint.writing import write_checkpoint
from gatdiag.structure.from_names import find_layers

__all__ = [
    "Checkpoint",
    "Inspection",
    "ModelCase",
    "OptimizerState",
    "find_layers",
    "find_stack",
    "inspect",
    "layer_table",
    "open_checkpoint",
    "series",
    "weight_table",
    "write_checkpoint",
]
