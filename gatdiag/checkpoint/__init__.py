"""Read saved checkpoints without executing anything in them, and measure the network they hold.

Files:

- `opening`: open a checkpoint of any format; list checkpoints in order of their steps
- `torch_file`, `safetensors_file`, `distributed`: one format each, checked before it is loaded
- `state_dict`, `optimizer`: find the weights and the optimizer state in a file; load weights into a model
- `writing`: write a checkpoint again with some tensors replaced

Tensors:

- `stack`: the order of layers in a plain stack, and c of each neuron
- `measures`: norms, NaN and infinities, dead rows and columns, weight changes

Both:

- `inspection`: turn checkpoints into a run folder
- `overview`: tables of an inspection, one row per layer or per parameter
"""

from gatdiag.checkpoint.inspection import Inspection, ModelCase, inspect
from gatdiag.checkpoint.opening import Checkpoint, list_checkpoints, open_checkpoint
from gatdiag.checkpoint.optimizer import OptimizerState
from gatdiag.checkpoint.overview import layer_table, weight_table
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
    "list_checkpoints",
    "open_checkpoint",
    "round_to_file",
    "weight_table",
    "write_checkpoint",
]
