"""Rules of operations that combine entries along axes, against what the operations do."""

import pytest
import torch

from tests.laws.rules.homogeneity import Case, Function, case, check, positive, signed

aten = torch.ops.aten
torch.manual_seed(2)
X, SQUARE, LINE = signed(2, 3), signed(3, 3), signed(1, 2, 6)
IMAGE, VOLUME = signed(1, 2, 4, 4), signed(1, 1, 2, 2, 2)
SPARSE = torch.tensor([[0, 1, 1], [2, 0, 1]])

HALF_TURN = torch.tensor(1 + 0.5j, dtype=torch.complex128)
PIECES = {"points": 16}  # of a maximum or median


def along(operation: Function) -> Function:
    return lambda x: operation(x, 1)


CASES: dict[str, Case] = {
    "sum": case(lambda x: aten.sum(x, [1]), X),
    "mean": case(lambda x: aten.mean(x, [0], True), X),
    "nansum": case(lambda x: aten.nansum(x, [1]), X),
    "nanmean": case(lambda x: aten.nanmean(x, [1]), X),
    "amax": case(lambda x: aten.amax(x, [1]), X, **PIECES),
    "amin": case(lambda x: aten.amin(x, [0], True), X, **PIECES),
    "max.default": case(lambda x: aten.max(x), signed(3), **PIECES),
    "min.default": case(lambda x: aten.min(x), signed(3), **PIECES),
    "median.default": case(lambda x: aten.median(x), signed(3), **PIECES),
    "linalg_vector_norm": case(lambda x: aten.linalg_vector_norm(x, 2, [1]), X),
    "norm": case(lambda x: aten.norm(x, 2), X),
    "_sparse_sum": case(
        lambda x: aten._sparse_sum(torch.sparse_coo_tensor(SPARSE, x, (2, 3), check_invariants=True), [1]),
        signed(3),
        missed=1,
    ),
    **{name: case(along(getattr(aten, name)), X, **PIECES) for name in ("max", "min", "median", "nanmedian")},
    "mode": case(lambda x: aten.mode(x, 1), X, counted=False),
    "kthvalue": case(lambda x: aten.kthvalue(x, 2, 1), X, **PIECES),
    "aminmax": case(lambda x: aten.aminmax(x, dim=1), X, counted=False),
    "var": case(lambda x: aten.var(x, [1]), X),
    "std": case(lambda x: aten.std(x, [1]), X),
    "var_mean": case(lambda x: aten.var_mean(x, [1]), X),
    "std_mean": case(lambda x: aten.std_mean(x, [1]), X),
    "cumsum": case(lambda x: aten.cumsum(x, 1), X),
    "_fft_r2c": case(lambda x: aten._fft_r2c(x, [1], 0, True), X),
    "_fft_c2c": case(lambda x: aten._fft_c2c(aten._fft_c2c(x * HALF_TURN, [0], 0, True), [1], 0, False), X),
    "_fft_c2r": case(lambda x: aten._fft_c2r(x * HALF_TURN, [1], 0, 4), X),
    "sort": case(lambda x: aten.sort(x, 1), X, **PIECES),
    "topk": case(lambda x: aten.topk(x, 2, 1), X, **PIECES),
    "cummax": case(lambda x: aten.cummax(x, 1), X, **PIECES),
    "cummin": case(lambda x: aten.cummin(x, 1), X, **PIECES),
    **{name: case(along(getattr(aten, name)), X, counted=False) for name in ("argmax", "argmin", "argsort")},
    "prod": case(lambda x: aten.prod(x, 1), X),
    "coalesce": case(
        lambda x: aten.coalesce(torch.sparse_coo_tensor(SPARSE, x, (2, 3), check_invariants=True)), signed(3), missed=2
    ),
    "to_dense": case(
        lambda x: torch.sparse_coo_tensor(SPARSE, x, (2, 3), check_invariants=True).to_dense(), signed(3), missed=2
    ),
    "to_sparse": case(lambda x: x.to_sparse(), X, missed=5),
    "values": case(
        lambda x: torch.sparse_coo_tensor(SPARSE, x, (2, 3), check_invariants=True).coalesce().values(),
        signed(3),
        missed=2,
    ),
    **{
        f"_to_sparse_{layout}": case(
            lambda x, op=f"_to_sparse_{layout}", size=size: getattr(aten, op)(x, *size), X, missed=5
        )
        for layout, size in {"csr": (), "csc": (), "bsr": ([1, 1],), "bsc": ([1, 1],)}.items()
    },
    "sparse_mask": case(lambda x: aten.sparse_mask(x, torch.ones(2, 3).double().to_sparse()), X, missed=5),
    "trace": case(aten.trace, SQUARE, missed=6),
    "adaptive_avg_pool3d": case(lambda x: aten.adaptive_avg_pool3d(x, [1, 1, 1]), VOLUME),
    "fractional_max_pool2d": case(
        lambda x: aten.fractional_max_pool2d(x, [2, 2], [1, 1], torch.zeros(1, 1, 2).double())[0],
        signed(1, 1, 2, 2),
        **PIECES,
    ),
    "fractional_max_pool3d": case(
        lambda x: aten.fractional_max_pool3d(x, [2, 1, 1], [1, 1, 1], torch.zeros(1, 1, 3).double())[0],
        signed(1, 1, 3, 2, 2),
        missed=10,
        points=60,
    ),
    "max_unpool2d": case(
        lambda x: aten.max_unpool2d(x, torch.tensor([[[[0, 3]]]]), [2, 2]), signed(1, 1, 1, 2), missed=1
    ),
    "max_unpool3d": case(
        lambda x: aten.max_unpool3d(x, torch.tensor([[[[[0, 3]]]]]), [1, 2, 2], [1, 2, 1], [0, 0, 0]),
        signed(1, 1, 1, 1, 2),
        missed=1,
    ),
    **{
        name: case(lambda x, op=name, size=size: getattr(aten, op)(x, size, False), signed(1, 2, *(2 for _ in size)))
        for name, size in {
            "upsample_bilinear2d": [3, 3],
            "_upsample_bilinear2d_aa": [3, 3],
            "upsample_bicubic2d": [3, 3],
            "_upsample_bicubic2d_aa": [3, 3],
            "upsample_trilinear3d": [3, 3, 3],
        }.items()
    },
    "grid_sampler_2d": case(
        lambda x, g: aten.grid_sampler_2d(x, g.tanh(), 0, 0, False), signed(1, 1, 2, 2), signed(1, 2, 2, 2)
    ),
    "grid_sampler_3d": case(lambda x, g: aten.grid_sampler_3d(x, g.tanh(), 0, 1, False), VOLUME, signed(1, 1, 1, 2, 3)),
    "col2im": case(lambda x: aten.col2im(x, [2, 3], [2, 2], [1, 1], [0, 0], [1, 1]), signed(1, 8, 2), missed=10),
    "avg_pool1d": case(lambda x: aten.avg_pool1d(x, [2], [1]), LINE),
    "avg_pool2d": case(lambda x: aten.avg_pool2d(x, [2, 2], [1, 1]), signed(1, 2, 3, 3)),
    "avg_pool3d": case(lambda x: aten.avg_pool3d(x, [2, 2, 2]), VOLUME),
    "adaptive_avg_pool1d": case(lambda x: aten.adaptive_avg_pool1d(x, [1]), LINE),
    "adaptive_avg_pool2d": case(lambda x: aten.adaptive_avg_pool2d(x, [1, 1]), IMAGE),
    "_adaptive_avg_pool2d": case(lambda x: aten._adaptive_avg_pool2d(x, [1, 1]), IMAGE),
    "_adaptive_avg_pool3d": case(lambda x: aten._adaptive_avg_pool3d(x, [1, 1, 1]), VOLUME),
    "upsample_linear1d": case(lambda x: aten.upsample_linear1d(x, [12], False), LINE),
    "max_pool2d_with_indices": case(
        lambda x: aten.max_pool2d_with_indices(x, [2, 2], [1, 1]), signed(1, 2, 2, 3), points=40
    ),
    "max_pool3d_with_indices": case(lambda x: aten.max_pool3d_with_indices(x, [2, 2, 2]), VOLUME, points=60),
    "adaptive_max_pool2d": case(lambda x: aten.adaptive_max_pool2d(x, [1, 1]), signed(1, 2, 2, 2), points=30),
    "adaptive_max_pool3d": case(lambda x: aten.adaptive_max_pool3d(x, [1, 1, 1]), VOLUME, points=60),
    "_cdist_forward": case(lambda x, y: aten._cdist_forward(x, y, 2.0, None), X, SQUARE),
    "cdist": case(lambda x, y: aten.cdist(x, y), X, SQUARE),
    "_euclidean_dist": case(aten._euclidean_dist, X, SQUARE),
    "_pdist_forward": case(lambda x: aten._pdist_forward(x, 2.0), SQUARE),
    "mse_loss": case(aten.mse_loss, X, X.flip(1)),
    "searchsorted": case(lambda x, y: aten.searchsorted(x.sort(1).values, y), X, X.flip(1), counted=False),
    "bucketize": case(lambda x, y: aten.bucketize(x, y.sort().values), X, signed(4), counted=False),
    "isin": case(lambda x, y: aten.isin(x, y), X, X.flip(1), counted=False),
}
FURTHER: dict[str, Case] = {
    "squared errors one by one": case(lambda x, y: aten.mse_loss(x, y, 0), X, X.flip(1)),
    "bins of a constant": case(lambda x: aten.bucketize(x, torch.tensor([0.5]).double()), X, counted=False),
    "bin of a number": case(lambda x: aten.searchsorted(x, 0.5), positive(3).sort().values, counted=False),
    "how many entries differ": case(lambda x, y: aten._cdist_forward(x, y, 0.0, None), X, SQUARE, counted=False),
    "interpolation of a constant image": case(
        lambda x: aten.upsample_bilinear2d(x.expand(1, 2, 2, 2), [3, 3], False), signed(1, 2, 1, 1)
    ),
    "number of non-zeros": case(lambda x: aten.linalg_vector_norm(x, 0, [1]), X),
    "norm of order zero": case(lambda x: aten.norm(x, 0, [1]), X),
    "sum of all": case(lambda x: aten.sum(x), X),
    "sum over all axes but kept": case(lambda x: aten.sum(x, [0, 1], True), X),
    "sum of a number": case(lambda x: aten.sum(x), signed()),
    "sum then product": case(lambda x, y: x.sum(0) * y, X, signed(3)),
    "norm of rows divides them": case(lambda x: x / x.norm(dim=1, keepdim=True), X),
    "mean of a square under a root": case(lambda x: x.square().mean(1, keepdim=True).sqrt(), X),
    "std of all": case(lambda x: aten.std(x, None), X),
    "product of all": case(lambda x: aten.prod(x), signed(3)),
    "product of one scale": case(lambda x: aten.prod(x.expand(2, 3), 0, True), X[:1]),
    "maximum of a relu": case(lambda x: x.relu().amax(1), X, **PIECES),
    "sort descending": case(lambda x: torch.sort(x, dim=0, descending=True).values, X, **PIECES),
    "logsumexp is no scale": case(lambda x: torch.logsumexp(x, 1), positive(2, 3)),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("name", [*CASES, *FURTHER])
def test_the_rule_says_what_the_operation_does(name: str) -> None:
    check((CASES | FURTHER)[name])
