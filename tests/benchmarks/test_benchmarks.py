import torch

from tests.benchmarks.costs import measure_laws, measure_tool


def test_the_benchmarks_run():
    cost = measure_tool("gcn-2-small", "fast", auto=False, seconds=0)
    assert cost["steps"] == 4
    assert cost["ratio"] == cost["watched_ms"] / cost["bare_ms"]
    assert cost["bytes_per_step"] > 0
    assert measure_laws("gcn-2-small")["laws"] == 16  # one for each hidden channel
    assert not torch.nn.modules.module._global_forward_hooks
