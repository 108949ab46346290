"""The table of rules as a whole."""

import pytest
import torch

from gatdiag.laws.rules import RULES
from tests.laws.rules import (
    test_arrangement,
    test_elementwise,
    test_matrix,
    test_normalization,
    test_reduction,
    test_scatter,
)

ROOMS = (test_arrangement, test_elementwise, test_matrix, test_normalization, test_reduction, test_scatter)
TESTED = {name for room in ROOMS for name in room.CASES} | set(test_elementwise.STOPPED)
TESTED |= {"mkldnn_rnn_layer", "_cudnn_rnn"}  # against the steps that they consist of
# Of other devices, of packages torch may come without, or called by nothing but torch itself on such devices.
ELSEWHERE = """
cudnn_batch_norm miopen_batch_norm _thnn_fused_gru_cell _thnn_fused_lstm_cell
_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
_scaled_dot_product_fused_attention_overrideable
sparse_compressed_tensor _fused_rms_norm _coalesce _coalesced is_coalesced
_to_dense _to_sparse _values _nested_tensor_size
"""


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_compared_with_its_operation(name: str) -> None:
    known = name in TESTED or name in ELSEWHERE.split()
    assert known, f"add a case named {name!r} to CASES in the file of its family in tests/laws/rules"


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_of_an_operation_that_exists(name: str) -> None:
    assert hasattr(torch.ops.aten, name)
