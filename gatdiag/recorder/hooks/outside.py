"""Operations of ours that no mode of the user's sees."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def outside_of_modes() -> Iterator[None]:
    """Leave all dispatch modes, such as a tracer's, a counter's or our own."""
    if torch._C._len_torch_dispatch_stack() == 0:
        yield
        return
    with _disable_current_modes():
        yield
