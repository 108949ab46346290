"""What the contexts change, and that they restore it, also after an error."""

import random

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from gatdiag.structure.isolation import (
    disable_fast_paths,
    preserve_random_state,
    random_state,
    working_precision,
)


def numbers():
    return torch.rand(2).tolist(), random.random(), np.random.rand()  # noqa: NPY002


@pytest.mark.parametrize("fails", [False, True])
def test_random_state_is_given_back(fails):
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = numbers()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    try:
        with preserve_random_state([torch.device("cpu")]):
            assert numbers() == expected
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert numbers() == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_random_state_of_a_cuda_device_is_given_back():
    before = torch.cuda.get_rng_state()
    with preserve_random_state([torch.device("cuda")]):
        torch.rand(3, device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), before)


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_autocast_is_off_inside_and_on_again_afterwards():
    weight, x = torch.ones(2, 2), torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with disable_fast_paths():
            assert (x @ weight).dtype is torch.float32
        assert (x @ weight).dtype is torch.bfloat16


def test_attention_is_decomposed():
    x = torch.ones(1, 2, 3, 4)
    with Names() as names, disable_fast_paths():
        scaled_dot_product_attention(x, x, x)
    assert "bmm" in names.seen
    assert not [name for name in names.seen if "attention" in name]
    with Names() as names:
        scaled_dot_product_attention(x, x, x)
    assert [name for name in names.seen if "attention" in name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers_are_decomposed_in_every_precision(kind, dtype):
    before = torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
    layer, x = kind(2, 3).to(dtype), torch.ones(4, 1, 2, dtype=dtype)
    with torch.no_grad(), Names() as names, disable_fast_paths():
        layer(x)
    assert "addmm" in names.seen
    assert not [name for name in names.seen if "rnn" in name or name in ("lstm", "gru")]
    assert (torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled) == before


@pytest.mark.parametrize("enabled", [True, False])
def test_fast_path_is_off_inside_and_as_before_outside(enabled):
    previous = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        with disable_fast_paths():
            assert not torch.backends.mha.get_fastpath_enabled()
        assert torch.backends.mha.get_fastpath_enabled() is enabled
        with pytest.raises(KeyError), disable_fast_paths():
            raise KeyError
        assert torch.backends.mha.get_fastpath_enabled() is enabled
    finally:
        torch.backends.mha.set_fastpath_enabled(previous)


def test_compiled_functions_run_eagerly():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    function = torch.compile(lambda x: x + 1, backend=backend)
    with disable_fast_paths():
        function(torch.ones(1))
    assert not compiled
    function(torch.ones(1))
    assert len(compiled) == 1


def test_working_precision():
    x = torch.ones(2)
    with working_precision(torch.float64):
        asked = [
            x.float(),
            x.half(),
            x.to(torch.float32),
            x.to(dtype=torch.float16),
            x.type(torch.float32),
            torch.zeros(1),
            torch.zeros(1, dtype=torch.float32),
            torch.softmax(x, 0, dtype=torch.float32),
        ]
        assert {tensor.dtype for tensor in asked} == {torch.float64}
        assert torch.zeros(1, dtype=torch.int32).dtype == torch.int32
        assert x.long().dtype == torch.int64
    assert torch.zeros(1).dtype == x.double().float().dtype == torch.float32


MADE_ELSEWHERE = np.ones((2, 2), dtype=np.float32)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x @ torch.from_numpy(MADE_ELSEWHERE),
        lambda x: x @ torch.tensor(MADE_ELSEWHERE),
        lambda x: torch.cat([x, torch.from_numpy(MADE_ELSEWHERE)]),
        lambda x: torch.nn.functional.linear(x, weight=torch.from_numpy(MADE_ELSEWHERE)),
        lambda x: x.type_as(torch.from_numpy(MADE_ELSEWHERE)),
    ],
)
def test_constants_made_elsewhere_follow_the_working_precision(use):
    with working_precision(torch.float64):
        assert use(torch.ones(2, 2)).dtype == torch.float64


def test_what_is_written_into_is_not_copied_for_the_working_precision():
    kept = torch.from_numpy(MADE_ELSEWHERE.copy())
    with working_precision(torch.float64):
        kept.add_(1)
        kept[0] = torch.zeros(2)
    assert kept.tolist() == [[0, 0], [2, 2]]
    assert kept.dtype == torch.float32


def test_random_state_starts_from_a_seed_and_is_given_back():
    before = torch.get_rng_state()
    draws = []
    for seed in (1, 1, 2):
        with random_state(seed, [torch.device("cpu")]):
            draws.append(numbers())
    assert draws[0] == draws[1] != draws[2]
    assert torch.equal(torch.get_rng_state(), before)
