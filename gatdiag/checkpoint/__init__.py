"""Read saved checkpoints without executing anything in them, and measure the network they hold.

Files:

- `opening`: open a checkpoint of any format
- `series`: open several, in order of their steps
- `torch_file`, `safetensors_file`: one format each
- `steps`: the step and the epoch, from a file's contents or its name
- `state_dict`, `optimizer`: find the weights and the optimizer state in a file; load weights into a model
- `writing`: write a checkpoint again with some tensors replaced

Tensors:

- `stack`: the order of layers in a plain stack, and c of each neuron
- `measures`: norms, NaN and infinities, dead rows and columns, weight changes

Both:

- `inspection`: turn checkpoints into a run folder
- `passes`: the same with a forward and a backward pass of each
- `overview`: the table of an inspection, one row per layer
"""

from gatdiag.checkpoint.inspection import Inspection, inspect
from gatdiag.checkpoint.opening import Checkpoint, open_checkpoint
from gatdiag.checkpoint.optimizer import OptimizerState
from gatdiag.checkpoint.overview import layer_table
from gatdiag.checkpoint.passes import ModelCase
from gatdiag.checkpoint.series import open_all
from gatdiag.checkpoint.stack import find_stack
from gatdiag.checkpoint.writing import round_to_file, write_checkpoint
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
    "open_all",
    "open_checkpoint",
    "round_to_file",
    "write_checkpoint",
]
