"""What holds after every test."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _no_mode_is_left_entered() -> Iterator[None]:
    """A mode of ours that stays on torch's stacks would see whatever this process computes afterwards."""
    yield
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0
