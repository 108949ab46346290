"""Saved checkpoints: what is in the files, without ever executing it, and what it says of the network.

From files:

- `open_checkpoint`: any format -> `Checkpoint`; `series`: files, globs and folders -> paths in order of the step
- `write_checkpoint`: the same file with other tensors, and all else as it was
- `formats`: one file a format; told apart by content, checked before they are loaded
- `state_dict`, `naming`, `optimizer`, `progress`: what the entries of a checkpoint mean

From tensors:

- `stack`: which layer feeds which -> c of each neuron, for plain stacks
- `measures`, with `blocks`: norms, dead and broken weights; `change`: how far two state dicts are apart
- `initialization`: the one whose distribution a weight has

Together:

- `inspect`: checkpoints -> a run folder; `weight_record` from weights alone, `pass_record` with the model and data
- `fitting`: the tensors of a checkpoint -> the weights of a model
- `overview`: one row a layer; `weight_table`: one row a parameter; `notes`: what a reader should know besides
"""

from gatdiag.checkpoint.checkpoint import Checkpoint, OptimizerState
from gatdiag.checkpoint.inspection import Inspection, inspect
from gatdiag.checkpoint.opening import open_checkpoint
from gatdiag.checkpoint.overview import LayerRow, layer_rows
from gatdiag.checkpoint.pass_record import Subject
from gatdiag.checkpoint.series import series
from gatdiag.checkpoint.stack import find_stack
from gatdiag.checkpoint.weight_table import weight_table
from gatdiag.checkpoint.writing import write_checkpoint
from gatdiag.structure.from_names import find_layers

__all__ = [
    "Checkpoint",
    "Inspection",
    "LayerRow",
    "OptimizerState",
    "Subject",
    "find_layers",
    "find_stack",
    "inspect",
    "layer_rows",
    "open_checkpoint",
    "series",
    "weight_table",
    "write_checkpoint",
]
