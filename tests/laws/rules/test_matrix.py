"""Rules of products that sum over an index, against what the operations do."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatdiag.laws.exponents import Exponents
from gatdiag.laws.label import Label
from gatdiag.laws.rules import RULES, Call
from gatdiag.laws.solver import solve
from gatdiag.laws.trace import Trace
from gatdiag.structure.isolation import disable_fast_paths
from tests.laws.rules.homogeneity import Case, case, check, signed

aten = torch.ops.aten
torch.manual_seed(3)
A, B, V = signed(2, 3), signed(3, 2), signed(3)
BATCHED, OTHER = signed(2, 2, 3), signed(2, 3, 2)
CONV = ([1], [0], [1], False, [0], 1)
GROUPED = ([1], [0], [1], False, [0], 2)
TURNED = ([1], [0], [1], True, [0], 1)
FLAT, FILTER, BIAS = signed(1, 2, 3), signed(3, 2, 2), signed(3)
ADJACENCY = torch.tensor([[0.0, 2.0], [1.0, 0.5], [0.0, 3.0]], dtype=torch.float64)


QUERY, KEY, VALUE = signed(1, 1, 2, 2), signed(1, 1, 3, 2), signed(1, 1, 3, 2)


def sparse(layout: torch.layout) -> torch.Tensor:
    return ADJACENCY.to_sparse(layout=layout)


CASES: dict[str, Case] = {
    "mm": case(aten.mm, A, B),
    "bmm": case(aten.bmm, BATCHED, OTHER),
    "matmul": case(aten.matmul, BATCHED, B),
    "_sparse_mm": case(lambda x: aten._sparse_mm(sparse(torch.sparse_coo), x), A),
    "_sparse_mm_reduce_impl": case(lambda x: torch.sparse.mm(sparse(torch.sparse_csr), x, "mean"), A),
    "_sparse_sparse_matmul": case(lambda x: torch.sparse.mm(sparse(torch.sparse_coo), x.to_sparse()), A, missed=2),
    "mv": case(aten.mv, A, V),
    "dot": case(aten.dot, V, signed(3)),
    "vdot": case(aten.vdot, V, signed(3)),
    "addmm": case(aten.addmm, signed(2), A, B),
    "baddbmm": case(aten.baddbmm, signed(2, 2, 2), BATCHED, OTHER),
    "addmv": case(aten.addmv, signed(2), A, V),
    "_sparse_addmm": case(lambda x, y: aten._sparse_addmm(x, sparse(torch.sparse_coo), y), signed(3, 3), A),
    "linear": case(aten.linear, A, signed(2, 3), signed(2)),
    "convolution": case(lambda x, w, b: aten.convolution(x, w, b, *CONV), FLAT, FILTER, BIAS),
    "_convolution": case(
        lambda x, w, b: aten._convolution(x, w, b, *CONV, False, False, False, False), FLAT, FILTER, BIAS
    ),
    "_trilinear": case(
        lambda x, w, y: aten._trilinear(x, w, y, [1, 3], [0], [1, 2], [2, 3]),
        signed(2, 2),
        signed(2, 2, 3),
        signed(2, 3),
    ),
    "addr": case(aten.addr, signed(3, 2), V, signed(2)),
    "addbmm": case(aten.addbmm, signed(2, 2), BATCHED, OTHER),
    "linalg_cross": case(aten.linalg_cross, A, signed(2, 3)),
    "linalg_inv_ex": case(lambda x: aten.linalg_inv_ex(x)[0], signed(3, 3), missed=4),
    "linalg_cholesky_ex": case(lambda x: aten.linalg_cholesky_ex(x @ x.mT)[0], signed(2, 2), missed=1),
    "linalg_qr": case(aten.linalg_qr, signed(3, 2), missed=1),
    "_linalg_eigh": case(lambda x: aten._linalg_eigh(x)[0], signed(2, 2), missed=1),
    "_linalg_svd": case(lambda x: aten._linalg_svd(x)[1], signed(3, 2)),
    "_scaled_dot_product_flash_attention_for_cpu": case(
        lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0], QUERY, KEY, VALUE
    ),
    "ger": case(aten.ger, V, signed(2)),
    "outer": case(aten.outer, V, signed(2)),
}
FURTHER: dict[str, Case] = {
    "a matrix with itself": case(lambda x: x @ x.t(), A),
    "matmul with a constant": case(lambda x: x @ ADJACENCY, A),
    "matmul of vectors": case(aten.matmul, V, signed(3)),
    "matmul of a matrix and a vector": case(aten.matmul, BATCHED, V),
    "matmul broadcast over a batch": case(aten.matmul, signed(2, 1, 2, 2), signed(2, 2, 2)),
    "addmm without its summand": case(lambda s, x, w: aten.addmm(s, x, w, beta=0), signed(2), A, B),
    "two products of one input": case(lambda x, v, w: torch.cat([x @ v, x @ w], 1), A, B, signed(3, 1)),
    "one weight used twice": case(lambda x, w: (x @ w).relu() @ w, A, signed(3, 3)),
    "linear on three axes": case(aten.linear, BATCHED, signed(2, 3)),
    "convolution in groups": case(lambda x, w: aten.convolution(x, w, None, *GROUPED), FLAT, signed(4, 1, 2), missed=2),
    "convolution transposed": case(lambda x, w, b: aten.convolution(x, w, b, *TURNED), FLAT, signed(2, 3, 2), BIAS),
    "convolution transposed in groups": case(
        lambda x, w: aten.convolution(x, w, None, [1], [0], [1], True, [0], 2), FLAT, signed(2, 2, 2), missed=2
    ),
    "convolution over an image": case(
        lambda x, w: aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        signed(1, 1, 2, 3),
        signed(2, 1, 2, 2),
        missed=2,
    ),
    "bilinear": case(
        lambda x, y, w: torch.nn.functional.bilinear(x, y, w), signed(2, 2), signed(2, 3), signed(2, 2, 3)
    ),
    "cross of a constant": case(lambda x: aten.linalg_cross(x, ADJACENCY.t()[:1] + 1), signed(2, 3)),
    "cross along another axis": case(lambda x, y: aten.linalg_cross(x, y, dim=0), signed(3, 2), signed(3, 1)),
    "cross with zeros": case(
        lambda x, y: aten.linalg_cross(aten.constant_pad_nd(x, [1, 0], 0), y), signed(2, 2), signed(2, 3)
    ),
    "inverse of a batch": case(lambda x: aten.linalg_inv_ex(x)[0], signed(2, 2, 2), missed=4),
    "causal attention with a mask": case(
        lambda q, k, v, m: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=m)[0],
        QUERY,
        KEY,
        VALUE,
        signed(2, 3),
    ),
    "einsum": case(lambda x, y: torch.einsum("nhd,mhd->nmh", x, y), BATCHED, signed(3, 2, 3)),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("name", [*CASES, *FURTHER])
def test_the_rule_says_what_the_operation_does(name: str) -> None:
    check((CASES | FURTHER)[name])


RECURRENT: dict[str, Callable[[], nn.RNNBase]] = {
    "relu": lambda: nn.RNN(2, 3, nonlinearity="relu"),
    "relu in both directions": lambda: nn.RNN(2, 3, nonlinearity="relu", bidirectional=True),
    "relu in two layers": lambda: nn.RNN(2, 3, num_layers=2, nonlinearity="relu", bias=False),
    "tanh": lambda: nn.RNN(2, 3),
    "lstm": lambda: nn.LSTM(2, 3),
    "lstm in both directions and two layers": lambda: nn.LSTM(2, 2, num_layers=2, bidirectional=True),
    "projected lstm": lambda: nn.LSTM(2, 4, proj_size=2, num_layers=2),
    "gru": lambda: nn.GRU(2, 3),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_layer_as_one_operation_allows_what_its_steps_do(name: str) -> None:
    layer = RECURRENT[name]()
    state, features = _states(layer), torch.randn(3, 1, 2)
    tensors = [features, *layer.parameters(), *(state if isinstance(state, tuple) else [state])]
    with disable_fast_paths():
        by_steps = _allowed(lambda trace: layer(features, state), tensors)

    assert torch.equal(_allowed(lambda trace: _cudnn(trace, layer, features, state), tensors), by_steps)
    if isinstance(layer, nn.LSTM) and not layer.proj_size:
        assert torch.equal(_allowed(lambda trace: layer(features, state), tensors), by_steps)


def _states(layer: nn.RNNBase) -> Any:
    state = torch.randn(layer.num_layers * (1 + layer.bidirectional), 1, layer.proj_size or layer.hidden_size)
    return (state, torch.randn(len(state), 1, layer.hidden_size)) if isinstance(layer, nn.LSTM) else state


def _cudnn(trace: Trace, layer: nn.RNNBase, features: Tensor, states: Any) -> Tensor:
    """The layer, with the label that the rule of the operation gives its result, which a CPU does not have."""
    with torch.utils._python_dispatch._disable_current_modes():
        out, _ = layer(features, states)
    hx, cx = states if isinstance(states, tuple) else (states, None)
    mode = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}[layer.mode]
    arguments = {
        "input": features, "weight": layer._flat_weights, "weight_stride0": len(layer.all_weights[0]), "hx": hx,
        "cx": cx, "mode": mode, "bidirectional": layer.bidirectional,
    }  # fmt: skip
    call = Call(aten._cudnn_rnn.default, arguments, (out, hx), features.shape, trace._exponents, trace.label_of)
    trace.set_label(out, next(iter(RULES["_cudnn_rnn"](call))))
    return out


def _allowed(run: Callable[[Trace], Any], tensors: list[Tensor]) -> Tensor:
    """A projection onto the exponents of all tensors' entries that leave what is run unchanged."""
    exponents = Exponents()
    trace, labels = Trace(exponents, lambda: "here"), []
    for number, tensor in enumerate(tensors):
        labels.append(Label(((Fraction(1), exponents.new_unknowns(tensor.shape, str(number), is_entry=True)),)))
        trace.set_label(tensor, labels[-1])
    with torch.no_grad(), trace:
        out = run(trace)
    exponents.require_zero(trace.label_of(out[0] if isinstance(out, tuple) else out))
    resolved = [exponents.resolve(label) for label in labels]
    basis = solve(exponents, [ids for label in resolved for _, ids in label.terms])
    columns = []
    for vector in range(len(basis.free)):
        parts = []
        for label, tensor in zip(resolved, tensors, strict=True):
            total = torch.zeros(tensor.shape, dtype=torch.float64)
            for coefficient, ids in label.terms:
                values = [float(basis.values.get(unknown, {}).get(vector, 0)) for unknown in ids.flatten().tolist()]
                total = total + float(coefficient) * torch.tensor(values, dtype=torch.float64).reshape(ids.shape)
            parts.append(total.flatten())
        columns.append(torch.cat(parts))
    if not columns:
        return torch.zeros(1)
    basis_matrix, _ = torch.linalg.qr(torch.stack(columns, 1))
    return (basis_matrix @ basis_matrix.T).round(decimals=9) + 0.0
