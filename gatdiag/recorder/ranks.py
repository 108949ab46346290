"""Which of the processes of a distributed training this is."""

import os
from typing import Final

from torch import distributed

# Set before the process group exists: by torchrun and most launchers; by Lightning, which starts the other processes of
# a node itself; by Slurm.
_RANKS: Final = (("RANK",), ("NODE_RANK", "LOCAL_RANK"), ("SLURM_PROCID",))


def is_first_process() -> bool:
    """True in the process of rank 0, and if the training is not distributed, as far as it is known now.

    Ask as late as possible: a process knows its rank for sure once it has joined the process group, which every
    distributed training has done before its first step.
    """
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    for names in _RANKS:
        ranks = [os.environ[name] for name in names if os.environ.get(name, "").isdigit()]
        if ranks:
            return not any(map(int, ranks))
    return True
