"""Statistics of inputs and outputs, and the identified loss, against known losses."""

import math

import pytest
import torch
from torch.nn import functional as F

from gatdiag.recorder import criterion


def gradient(o, loss):
    o = o.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(o), o)
    return found


LABELS = torch.tensor([0, 2, 1, 2, 2, 0])
MASK = torch.tensor([True, True, False, True, True, True])
TARGET = F.one_hot(LABELS, 3).double()
OUT = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

LOSSES = {
    "cross-entropy": (OUT, lambda o: F.cross_entropy(o[MASK], LABELS[MASK])),
    "summed": (OUT, lambda o: 7 * F.cross_entropy(o, LABELS, reduction="sum")),
    "softmax twice": (OUT.softmax(1), lambda o: F.cross_entropy(o, LABELS)),
    "nll": (OUT.log_softmax(1), lambda o: F.nll_loss(o, LABELS)),
    "nll-of-p": (OUT.softmax(1), lambda o: F.nll_loss(o.log(), LABELS)),
    "bce-logits": (OUT, lambda o: F.binary_cross_entropy_with_logits(o, TARGET)),
    "bce": (OUT.sigmoid(), lambda o: F.binary_cross_entropy(o, TARGET)),
    "mse": (OUT, lambda o: F.mse_loss(o, TARGET)),
    "cross-entropy-of-softmax": (OUT, lambda o: F.cross_entropy(o.softmax(1)[MASK], LABELS[MASK])),
    "bce-logits-of-sigmoid": (OUT, lambda o: F.binary_cross_entropy_with_logits(o.sigmoid(), TARGET)),
}


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 10.0])
def test_a_loss_that_squashes_twice_is_told_from_one_that_squashes_once(scale):
    for dtype in (torch.float64, torch.float32):
        o = (scale * OUT).to(dtype)
        for squash, name in ((lambda o: o, "cross-entropy"), (lambda o: o.softmax(1), "cross-entropy-of-softmax")):
            g = gradient(o, lambda o, squash=squash: F.cross_entropy(squash(o), LABELS))
            assert criterion.identify(o, g)[0] == name


def test_a_rough_gradient_is_not_said_to_be_of_a_loss_that_squashes_twice():
    for scale in (1e-4, 1e-3, 1e-2):
        g = gradient(scale * OUT, lambda o: F.cross_entropy(o, LABELS)).half().double()
        assert criterion.identify(scale * OUT, g)[0] == "cross-entropy"


ONCE = {
    "cross-entropy": lambda o, y: F.cross_entropy(o, y),
    "smoothed": lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1),
    "hinge": lambda o, y: F.multi_margin_loss(o, y),
    "absolute error of softmax": lambda o, y: (1 - o.softmax(1)[torch.arange(len(o)), y]).mean(),
    "squared error of softmax": lambda o, y: F.mse_loss(o.softmax(1), F.one_hot(y, o.shape[1]).to(o.dtype)),
    "squared error of sigmoid": lambda o, y: F.mse_loss(o.sigmoid(), F.one_hot(y, o.shape[1]).to(o.dtype)),
    "absolute error": lambda o, y: F.l1_loss(o, F.one_hot(y, o.shape[1]).to(o.dtype)),
    "binary": lambda o, y: F.binary_cross_entropy_with_logits(o, F.one_hot(y, o.shape[1]).to(o.dtype)),
}


@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (2, 2), (40, 7), (40, 40)])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 5.0])
def test_a_loss_that_squashes_once_is_not_said_to_do_so_twice(name, rows, classes, scale):
    for seed in range(3):
        torch.manual_seed(seed)
        o, y = scale * torch.randn(rows, classes), torch.randint(0, classes, (rows,))
        found = criterion.identify(o, gradient(o, lambda o, y=y: ONCE[name](o, y)))[0]
        assert found not in criterion.TWICE
        if name == "cross-entropy" and rows > 2:
            assert found == "cross-entropy"


@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_of_few_rows_with_a_gradient_nothing_is_said_to_squash_twice(name, rows):
    for seed in range(8):
        torch.manual_seed(seed)
        for classes in (2, 3, 7):
            # at 10 most rows are saturated, and hardly any has a gradient
            for scale in (0.3, 1.0, 10.0):
                o, y = scale * torch.randn(rows, classes), torch.randint(0, classes, (rows,))
                g = gradient(o, lambda o, y=y: ONCE[name](o, y))
                assert criterion.identify(o, g)[0] not in criterion.TWICE


@pytest.mark.parametrize("name", criterion.TWICE)
@pytest.mark.parametrize("rows", [3, 4, 40])
def test_three_rows_are_enough_to_tell_a_loss_that_squashes_twice(name, rows):
    for seed in range(8):
        torch.manual_seed(seed)
        o, y = torch.randn(rows, 3), torch.randint(0, 3, (rows,))
        loss = {
            "cross-entropy-of-softmax": lambda o, y=y: F.cross_entropy(o.softmax(1), y),
            "bce-logits-of-sigmoid": lambda o, y=y: F.binary_cross_entropy_with_logits(
                o.sigmoid(), F.one_hot(y, 3).float()
            ),
        }[name]
        assert criterion.identify(o, gradient(o, loss))[0] == name


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 5.0])
def test_one_number_does_not_tell_the_loss_that_squashes_twice(scale):
    for seed in range(8):
        torch.manual_seed(seed)
        o = scale * torch.randn(1, 1)
        for loss in (F.mse_loss, F.l1_loss, F.binary_cross_entropy_with_logits):
            g = gradient(o, lambda o, loss=loss: loss(o, torch.ones_like(o)))
            assert criterion.identify(o, g)[0] not in criterion.TWICE


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_loss_is_told_by_its_gradient(name, dtype):
    o, loss = LOSSES[name]
    o = o.to(dtype)
    found, misfit, labels = criterion.identify(o, gradient(o.double(), loss).to(dtype))
    wanted = {"summed": "cross-entropy", "softmax twice": "cross-entropy", "mse": ""}.get(name, name)
    assert found == wanted
    assert (misfit < 1e-2) == bool(wanted)
    if wanted in ("cross-entropy", "nll", "nll-of-p"):
        rows = MASK if name == "cross-entropy" else torch.ones_like(MASK)
        assert labels.tolist() == torch.bincount(LABELS[rows], minlength=3).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("classes", [2, 4])
def test_weights_of_classes_do_not_hide_the_loss(classes, dtype):
    torch.manual_seed(0)
    o, y, weight = torch.randn(60, classes, dtype=dtype), torch.arange(60) % classes, torch.rand(classes).to(dtype)
    for name, given, loss in (
        ("cross-entropy", o, F.cross_entropy),
        ("cross-entropy", o.softmax(1), F.cross_entropy),
        ("nll", o.log_softmax(1), F.nll_loss),
    ):
        found, _, labels = criterion.identify(given, gradient(given, lambda o, loss=loss: loss(o, y, weight)))
        assert (found, labels) == (name, None)


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("name", ONCE)
def test_a_factor_for_each_label_makes_no_other_loss_a_classification(name, scale, monkeypatch):
    for seed in range(3):
        torch.manual_seed(seed)
        for classes in (2, 3):
            o, y = scale * torch.randn(40, classes), torch.randint(0, classes, (40,))
            g = gradient(o, lambda o, y=y: ONCE[name](o, y))
            found = criterion.identify(o, g)[0]
            with monkeypatch.context() as without:
                without.setattr(criterion, "_identify_weighted", lambda *_: None)
                assert criterion.identify(o, g)[0] == found


def test_labels_are_those_of_all_rows_where_one_class_comes_before_the_other():
    """As in link prediction: positive pairs first, then negative ones."""
    target = torch.arange(20_000) < 10_000
    o = torch.randn(20_000, generator=torch.Generator().manual_seed(3))
    g = gradient(o, lambda o: F.binary_cross_entropy_with_logits(o, target.float()))
    name, _, labels = criterion.identify(o, g)
    assert name == "bce-logits"
    assert labels[0] == labels[1] > 0


@pytest.mark.parametrize("scale", [1e-3, 1.0, 65536.0])
def test_the_cross_entropy_is_told_by_its_gradient_whatever_its_scale(scale):
    def measured(o, loss):
        return criterion.cross_entropy(o, gradient(o, lambda o: scale * loss(o)))

    for name in ("cross-entropy", "nll"):
        o, loss = LOSSES[name]
        assert measured(o, loss) == pytest.approx(float(loss(o)))
    o, y = OUT[:, :1], (LABELS[:, None] > 0).double()
    wanted = float(F.binary_cross_entropy_with_logits(o, y))
    assert measured(o, lambda o: F.binary_cross_entropy_with_logits(o, y)) == pytest.approx(wanted)


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss])
@pytest.mark.parametrize("target", [0.25, 1.0, -200.0])
@pytest.mark.parametrize(("center", "spread"), [(0.0, 0.0), (0.0, 1e-2), (0.5, 0.02), (0.5, 0.1), (-30.0, 0.1)])
def test_an_error_of_a_regression_shows_no_labels_of_one_class(loss, target, center, spread):
    generator = torch.Generator().manual_seed(0)
    for columns in (1, 2):
        o = center + spread * torch.randn(60, columns, generator=generator)
        y = target * (1 + 1e-3 * torch.randn(60, columns, generator=generator)) * torch.tensor([1.0, 0.0])[:columns]
        labels = criterion.identify(o, gradient(o, lambda o, y=y: loss(o, y)))[2]
        assert labels is None or labels.max() < labels.sum()


@pytest.mark.parametrize("spread", [1e-4, 0.1, 1.0])
def test_labels_of_one_class_are_seen(spread):
    o = spread * torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    one = torch.ones(60, 1)
    losses = {
        "bce-logits": (o[:, :1], lambda o: F.binary_cross_entropy_with_logits(o, one)),
        "bce": (o[:, :1].sigmoid(), lambda o: F.binary_cross_entropy(o, one)),
        "cross-entropy": (o, lambda o: F.cross_entropy(o, one[:, 0].long())),
        "nll": (o.log_softmax(1), lambda o: F.nll_loss(o, one[:, 0].long())),
    }
    for name, (given, loss) in losses.items():
        found, _, labels = criterion.identify(given, gradient(given, loss))
        assert (found, labels.tolist()) == (name, [0, 60])


def test_targets_of_a_mean_squared_error_are_found_again():
    y = torch.randn(6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = criterion.implied_target_statistics(OUT, gradient(OUT, lambda o: F.mse_loss(o[MASK], y[MASK])))
    kept = y[MASK]
    variance = sum(float((kept[:, k] - kept[:, k].mean()).square().sum()) for k in range(3)) / kept.numel()
    assert found["implied_variance"] == pytest.approx(variance)
    assert found["implied_mse"] == pytest.approx(float(F.mse_loss(OUT[MASK], kept)))


def test_of_a_gradient_of_zero_or_nan_nothing_is_said():
    for g in (torch.zeros(4, 3), torch.full((4, 3), math.nan)):
        name, misfit, labels = criterion.identify(torch.randn(4, 3), g)
        assert (name, labels) == ("", None)
        assert math.isnan(misfit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [1, 9, 2**18])
def test_statistics_of_inputs_are_those_of_loops(dtype, chunk, monkeypatch):
    monkeypatch.setattr(criterion, "_CHUNK", chunk)
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, 100.0, 0.0, 0.01])
    x = x.to(dtype)
    before = x.clone()
    found = criterion.input_statistics("x", x)
    assert x.equal(before)
    columns = [math.sqrt(sum(float(v) ** 2 for v in x[:, k]) / 7) for k in range(4)]
    mean = [sum(float(v) for v in x[:, k]) / 7 for k in range(4)]
    mu = math.sqrt(sum((float(x[i, k]) - mean[k]) ** 2 for i in range(7) for k in range(4)))
    norm = math.sqrt(sum(float(v) ** 2 for v in x.flatten()))
    assert found["largest_column"] == pytest.approx(max(columns))
    assert found["smallest_column"] == pytest.approx(min(c for c in columns if c))
    assert found["row_norm"] == pytest.approx(norm / math.sqrt(7))
    assert found["relative_mu"] == pytest.approx(mu / norm)
    x[3, 1] = math.inf
    assert criterion.input_statistics("x", x) | {"non_finite": 1, "first": [3, 1]} == criterion.input_statistics("x", x)


def test_zero_columns_are_counted_in_what_is_not_negative_alone():
    x = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]])
    assert criterion.zero_column_fraction(x).item() == 0.5
    assert criterion.zero_column_fraction(-x) is None


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda o: o.softmax(1), "SoftmaxBackward0"),
        (lambda o: o.sigmoid().squeeze(0)[2:], "SigmoidBackward0"),
        (lambda o: o.detach(), ""),
    ],
)
def test_the_last_operation_is_named_through_views(function, name):
    assert criterion.last_operation(function(torch.randn(4, 3, requires_grad=True))) == name


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda o: o.log_softmax(0), True),
        (lambda o: o.softmax(-2), True),
        (lambda o: o.log_softmax(1), False),
        (lambda o: o.log_softmax(-1), False),
        (lambda o: o[None].log_softmax(0), False),
        (lambda o: o.relu(), False),
        (lambda o: o.detach(), False),
    ],
)
def test_a_softmax_over_rows_is_recognized(function, expected):
    assert criterion.is_softmax_over_rows(function(torch.randn(4, 3, requires_grad=True))) is expected


def test_the_range_of_probabilities():
    found = criterion.output_statistics(OUT.softmax(1))
    assert found["row_sum_error"] < 1e-12
    assert 0 < found["min"] < found["max"] < 1
    assert criterion.output_statistics(torch.tensor([[math.nan]])) == {}


VALUES = 3 * torch.randn(30, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
COLUMN = torch.randn(30, 1, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
SQUARES = {
    "mean": lambda o, y: (o - y).square().mean(),
    "half": lambda o, y: (o - y).square().mean() / 2,
    "sum": lambda o, y: (o - y).square().sum(),
    "masked": lambda o, y: (o[:20] - y[:20]).square().mean(),
}


@pytest.mark.parametrize("name", SQUARES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("has_column", [True, False])
def test_a_broadcast_squared_error_has_one_target_their_mean(name, dtype, has_column):
    """Whether the outputs have a column more than the targets or the other way round."""
    o, y = (COLUMN, VALUES) if has_column else (COLUMN[:, 0], VALUES[:, None])
    o, y = o.to(dtype), y.to(dtype)
    loss = SQUARES[name]
    found = criterion.common_target(o, gradient(o, lambda o: loss(o, y)))
    seen = slice(20 if name == "masked" else None)
    variance = float(loss(o, y)) - found["loss"]
    assert found["target"] == pytest.approx(float(VALUES[seen].mean()), rel=1e-4)
    assert found["spread"] < 1e-5
    least = loss(o * 0 + VALUES[seen].mean(), y)  # all outputs at the mean
    assert variance == pytest.approx(float(least), rel=1e-4)


OTHERS = {
    "squared error": lambda o: F.mse_loss(o, VALUES[:, None]),
    "absolute error": lambda o: F.l1_loss(o, VALUES[:, None]),
    "sum of absolute errors": lambda o: F.l1_loss(o, VALUES[:, None], reduction="sum"),
    "insensitive": lambda o: (o - 1e-2).abs().sub(0.5).clamp(min=0).sum(),
    "hinge": lambda o: (1 + o * VALUES[:, None].sign()).clamp(min=0).sum(),
    "Huber": lambda o: F.huber_loss(o, VALUES[:, None]),
    "a line": lambda o: F.mse_loss(o, -2 * o.detach() + 1),
    "binary": lambda o: F.binary_cross_entropy_with_logits(o, (VALUES[:, None] > 0).double()),
    "one class": lambda o: F.binary_cross_entropy_with_logits(1e-2 * o, torch.ones_like(o)),
    "pairs": lambda o: ((o - o.T) - (VALUES[:, None] - VALUES)).square().mean(),
    "ranking": lambda o: (1 - (o - o.T) * (VALUES[:, None] - VALUES).sign()).clamp(min=0).mean(),
    "thresholds": lambda o: F.softplus(o - torch.linspace(-2, 2, 5)).mean(),
    "outer product": lambda o: F.mse_loss(o @ o.T, VALUES[:, None] * VALUES),
    "energy distance": lambda o: (o - VALUES).abs().mean() - (o - o.T).abs().mean() / 2,
    "mean": lambda o: -o.mean(),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_other_losses_have_a_target_for_each_row_or_none(name, scale):
    o = scale * COLUMN
    g = gradient(o, OTHERS[name])
    assert not math.isfinite(criterion.common_target(o, g).get("spread", math.inf))
    assert criterion.counted_targets(o, g) <= 2


@pytest.mark.parametrize("reduction", [torch.mean, torch.sum])
@pytest.mark.parametrize(("rows", "unseen"), [(30, 0), (29, 0), (29, 7)])
def test_a_broadcast_absolute_error_counts_targets(reduction, rows, unseen):
    o, y = COLUMN.float()[:rows], VALUES.float()[:rows]
    counts = {2 * int(below) - rows for below in (y < o).sum(1)}
    o = torch.cat([o, torch.zeros(unseen, 1)])
    assert criterion.counted_targets(o, gradient(o, lambda o: reduction((o[:rows] - y).abs()))) == len(counts)


def test_edges_of_a_node_to_itself_connect_nothing():
    edges = torch.tensor([[0, 1, 2, 2], [1, 1, 2, 0]])
    assert criterion.edge_statistics(edges, 5) == {"edges": 4, "loops": 2, "connected": 0.6}
    assert criterion.edge_statistics(edges[:, :0], 5) == {"edges": 0, "loops": 0, "connected": 0.0}


def test_as_many_targets_above_as_below_may_leave_a_rounding_error():
    g = gradient(COLUMN, lambda o: (o - VALUES).abs().mean())
    is_balanced = g.abs() < 1e-9
    assert is_balanced.any()
    for balance in (0.0, 1e-11):
        assert criterion.counted_targets(COLUMN, torch.where(is_balanced, balance, g)) > 2


@pytest.mark.parametrize("rows", [1, 2])
def test_one_number_shows_a_loss_on_logits_by_the_length_of_its_gradient_alone(rows):
    """Any loss that falls towards the label has a gradient of the same sign."""
    for seed in range(8):
        torch.manual_seed(seed)
        o, y = torch.rand(rows, 1), torch.randint(0, 2, (rows, 1)).float()
        assert criterion.identify(o, gradient(o, lambda o, y=y: F.mse_loss(o, y)))[0] == ""
        found = criterion.identify(o, gradient(o, lambda o, y=y: F.binary_cross_entropy_with_logits(o, y)))
        assert found[0] == "bce-logits"


def test_the_side_of_the_targets_is_told_if_it_is_the_same_for_all():
    o, y = torch.randn(20, 1), torch.randn(20, 1)
    for shift, side in ((30, "above"), (-30, "below"), (0, "")):
        assert criterion.side_of_targets(gradient(o, lambda o, shift=shift: F.l1_loss(o, y + shift))) == side


def test_weights_of_classes_are_joined_over_batches():
    """The rows of a batch differ; so does what its weights are divided by."""
    torch.manual_seed(0)
    weight, joined = torch.tensor([5.0, 2.0, 0.5]), {}
    for _ in range(20):
        o, y = torch.randn(24, 3), torch.multinomial(weight, 24, replacement=True)
        g = gradient(o, lambda o, y=y: F.cross_entropy(o, y, weight=weight))
        joined = criterion.join_weights(joined, criterion.class_weights(o, g))
    assert torch.allclose(torch.tensor(joined["weights"]) / joined["weights"][0], weight / 5, rtol=1e-3)
    assert sum(joined["rows"]) > 240


@pytest.mark.parametrize("size", [0.0, 0.01, 0.1, 0.5, 2.0])
def test_a_cross_entropy_of_two_of_three_outputs_is_no_binary_one(size):
    o = size * torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    o, labels = o.requires_grad_(), torch.arange(300) % 2
    loss = F.cross_entropy(o[:, :2], labels)
    (gradient,) = torch.autograd.grad(loss, o)
    assert criterion.binary_targets(o.detach(), gradient, loss.item()) == {}
