"""Parameters that are distributed over processes: this one holds a part of each, and to read more, all would have to.

FSDP and tensor parallelism do that. Nothing here communicates, because only one process records.
"""

import sys
from typing import Any

from torch import nn

from gatdiag.structure.modules import named_modules, named_parameters, own_parameters


def distributed_parameters(model: nn.Module) -> frozenset[str]:
    """Names of the parameters that are distributed; FSDP puts them together while a module runs."""
    gathered = [f"{name}." if name else "" for name, module in named_modules(model) if _is_gathered(module)]
    names = (name for name, parameter in named_parameters(model) if is_distributed(parameter))
    return frozenset(names) | {name for name, _ in named_parameters(model) if any(map(name.startswith, gathered))}


def layers_with_partial_outputs(model: nn.Module) -> frozenset[str]:
    """Names of the modules of which this process computes a part, as in tensor parallelism."""
    gathered = [f"{name}." if name else "" for name, module in named_modules(model) if _is_gathered(module)]
    return frozenset(
        name
        for name, module in named_modules(model)
        if not any(map(f"{name}.".startswith, gathered)) and any(map(is_distributed, own_parameters(module).values()))
    )


# Both are slow to import, and whoever has such a module or tensor has imported them.


def _is_gathered(module: nn.Module) -> bool:
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def is_distributed(tensor: Any) -> bool:
    """True if other processes hold a part of a tensor: to read its numbers would wait for them."""
    tensors: Any = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)
