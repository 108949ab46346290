"""What is done on purpose and looks like a fault, each beside the fault; and faults that look like a usual training."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv, GINConv

import gatdiag
from gatdiag.diagnosis import diagnose
from tests.diagnosis.watched import train
from tests.page.builder import build


def data(rows=400, noise=0.0):
    torch.manual_seed(0)
    x = torch.randn(rows, 8)
    return x, (x[:, 0] + x[:, 1] + noise * torch.randn(rows) > 0).long()


def mlp(columns=2, width=32):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, columns))


def accuracy(model, x, y):
    return float((model(x).argmax(1) == y).float().mean())


def alarms(diagnosis):
    return [one.code for one in diagnosis if one.severity != "note"]


def maximizing(parameters, lr):
    return torch.optim.Adam(parameters, lr=lr, maximize=True)


# --- losses that rise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_cross_entropy_that_is_maximized_is_named(tmp_path, is_logged):
    (x, y), model = data(), mlp()
    scores_of = (lambda _: {"train_accuracy": accuracy(model, x, y)}) if is_logged else (lambda _: {})
    loss_of = lambda _: F.cross_entropy(model(x), y)  # noqa: E731
    verdict = train(tmp_path / "run", model, loss_of, scores_of=scores_of, optimizer=maximizing).verdict
    assert (verdict.code, verdict.severity) == ("loss-unbounded", "error" if is_logged else "warning")
    assert "maximize=False" in verdict.remedy


def test_a_squared_error_that_was_maximized_until_it_broke_is_no_rate_that_is_too_large(tmp_path):
    (x, _), model = data(), mlp(1)
    ascend = lambda p, lr: torch.optim.SGD(p, lr=lr, maximize=True)  # noqa: E731
    loss_of = lambda _: F.mse_loss(model(x)[:, 0], x[:, 0])  # noqa: E731
    diagnosis = train(tmp_path / "run", model, loss_of, optimizer=ascend, lr=0.1, warn=False)
    assert (diagnosis.state, diagnosis.verdict.code) == ("failing", "loss-unbounded")


def test_steps_that_blow_up_a_deep_network_come_before_its_small_gradients(tmp_path):
    (x, _), hidden = data(), [layer for _ in range(11) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), *hidden, nn.Linear(64, 1))
    loss_of = lambda _: F.mse_loss(model(x), x[:, :1])  # noqa: E731
    given = {"optimizer": torch.optim.SGD, "steps": 60, "warn": False}
    assert train(tmp_path / "run", model, loss_of, lr=1e6, **given).verdict.code == "lr-too-large"


def test_a_trained_network_is_attacked_on_purpose(tmp_path):
    (x, y), model = data(), mlp()
    adam = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        adam.zero_grad()
        F.cross_entropy(model(x), y).backward()
        adam.step()
    scores_of = lambda _: {"train_accuracy": accuracy(model, x, y)}  # noqa: E731
    loss_of = lambda _: F.cross_entropy(model(x), y)  # noqa: E731
    diagnosis = train(tmp_path / "run", model, loss_of, scores_of=scores_of, optimizer=maximizing)
    assert (diagnosis.verdict.code, alarms(diagnosis)) == ("undetermined", [])


def weight_of_a_task_grows(model, x, step):
    z = torch.randn(len(x), 1, generator=torch.Generator().manual_seed(0)) + x[:, 1:2]
    out = model(x)
    return 0.05 * F.mse_loss(out[:, :1], 2 * x[:, :1]) + min(1, step / 100) * F.mse_loss(out[:, 1:], z)


def noise_is_annealed(model, x, step):
    noise, size = torch.randn_like(x), 30 * 0.001 ** (step / 100)
    return F.mse_loss(model(x[:20].repeat(20, 1) + size * noise), noise)


def inputs_grow(model, x, step):
    given = 0.05 * 100 ** (step / 100) * x[torch.randperm(len(x))[:200]]
    return F.mse_loss(model(given)[:, 0], torch.sin(2 * given[:, 0]) + 0.3 * torch.randn(200))


@pytest.mark.parametrize(
    ("loss_of", "columns"), [(weight_of_a_task_grows, 2), (noise_is_annealed, 8), (inputs_grow, 1)]
)
def test_losses_of_a_task_that_changes_do_not_compare(tmp_path, loss_of, columns):
    (x, _), model = data(), mlp(columns)
    diagnosis = train(tmp_path / "run", model, lambda step: loss_of(model, x, step), steps=100, lr=0.003)
    assert (diagnosis.verdict.code, alarms(diagnosis)) == ("undetermined", [])
    assert "do not compare" in diagnosis.reason


@pytest.mark.parametrize("grows", [True, False])
def test_a_contrastive_loss_grows_with_the_number_of_negatives(tmp_path, grows):
    torch.manual_seed(0)
    x, model = torch.randn(300, 8), mlp(8)

    def loss_of(step):
        rows = torch.randperm(300)[: 8 + 2 * step * grows]
        one, other = (F.normalize(model(x[rows] + 0.8 * torch.randn(len(rows), 8)), dim=1) for _ in range(2))
        return F.cross_entropy(one @ other.T / 0.2, torch.arange(len(rows)))

    diagnosis = train(tmp_path / "run", model, loss_of, steps=100, lr=0.003)
    assert not grows or ("number of rows" in diagnosis.reason and alarms(diagnosis) == [])
    assert grows or "number of rows" not in diagnosis.reason


# --- losses that fall and say nothing ---------------------------------------------------------------------------------


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.code, self.back, self.head = nn.Linear(8, 3), nn.Linear(3, 8), nn.Linear(3, 2)

    def forward(self, x):
        code = self.code(x).tanh()
        return self.head(code), self.back(code)


@pytest.mark.parametrize(("weight", "is_outweighed"), [(1000.0, True), (0.5, False)])
def test_a_part_of_the_loss_that_outweighs_the_labels_is_not_healthy(tmp_path, weight, is_outweighed):
    (x, y), model = data(), Coder()

    def loss_of(_):
        out, back = model(x)
        return F.cross_entropy(out, y) + weight * F.mse_loss(back, x)

    given = {"optimizer": torch.optim.SGD, "lr": 1e-4} if is_outweighed else {}
    diagnosis = train(tmp_path / "run", model, loss_of, steps=200, **given)
    assert diagnosis.verdict.code == ("unexplained" if is_outweighed else "healthy")
    assert ("outweigh" in diagnosis.verdict.text) == is_outweighed


def test_a_task_beside_the_labels_may_be_all_that_can_be_learned(tmp_path):
    (x, _), model = data(), Coder()
    torch.manual_seed(0)
    y = torch.randint(2, (len(x),))

    def loss_of(_):
        out, back = model(x)
        return 10 * F.mse_loss(back[:, :2], x[:, :2]) + 0.05 * F.cross_entropy(out, y)

    diagnosis = train(tmp_path / "run", model, loss_of, steps=400, lr=0.03)
    assert diagnosis.verdict.code == "undetermined"
    assert "stays that of a constant prediction" in diagnosis.reason
    assert alarms(diagnosis) == []


@pytest.mark.parametrize("repaired", [False, True])
def test_a_loss_that_jumps_and_comes_back_to_its_start_has_not_fallen(tmp_path, repaired):
    (x, _), model = data(), nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    target = x[:, :1] * x[:, 1:2] + x[:, 2:3]

    def loss_of(_):
        return ((model(x) - target) ** 2 + 1).sqrt().mean() - 1

    diagnosis = train(tmp_path / "run", model, loss_of, steps=200, lr=0.01 if repaired else 1.0)
    assert (diagnosis.state == "trained") == repaired


class Ranking(nn.Module):
    """Bayesian personalized ranking."""

    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(100, 16), nn.Embedding(200, 16)

    def forward(self, users, better, worse):
        users = self.users(users)
        return (users * self.items(better)).sum(1) - (users * self.items(worse)).sum(1)


@pytest.mark.parametrize("is_random", [False, True])
def test_pairs_that_are_told_apart_no_better_than_by_chance_are_not_learned(tmp_path, is_random):
    torch.manual_seed(0)
    taste, model = torch.randn(100, 4) @ torch.randn(4, 200), Ranking()

    def loss_of(_):
        users, one, other = torch.randint(100, (512,)), *torch.randint(200, (2, 512))
        is_worse = (taste[users, one] < taste[users, other]) & (not is_random)
        pair = torch.where(is_worse, other, one), torch.where(is_worse, one, other)
        return -F.logsigmoid(model(users, *pair)).mean()

    diagnosis = train(tmp_path / "run", model, loss_of, steps=200, lr=0.02)
    assert diagnosis.verdict.code == ("unexplained" if is_random else "healthy"), str(diagnosis)


class Sliced(nn.Module):
    """Its head is part of a wider layer."""

    def __init__(self):
        super().__init__()
        self.wide = mlp(10)

    def forward(self, x):
        return self.wide(x)[:, :3]


@pytest.mark.parametrize("classes", [1, 3])
def test_labels_of_one_class_are_seen_behind_a_slice_of_a_wider_layer(tmp_path, classes):
    (x, _), model = data(), Sliced()
    y = x[:, :classes].argmax(1)
    verdict = train(tmp_path / "run", model, lambda _: F.cross_entropy(model(x), y), steps=100).verdict
    assert verdict.code == ("no-training-signal" if classes == 1 else "healthy")


# --- depth ------------------------------------------------------------------------------------------------------------

ROUNDED = [0.0, 0.0, 1e-40, 1e-28, 1e-16, 1e-8, 1.0]
CUT_OFF = [0.0, 0.0, 0.5, 0.6, 0.7, 0.8, 1.0]


@pytest.mark.parametrize(("gradients", "vanish"), [(ROUNDED, True), (CUT_OFF, False)])
def test_gradients_that_depth_rounds_to_zero_have_vanished(tmp_path, gradients, vanish):
    given = {"output_gradient_norm": gradients, "gradient_dead_fraction": [float(size == 0) for size in gradients]}
    given["gradient_dead_fraction"][2] = 0.95  # some of its units are rounded, too
    columns = {name: np.tile(values, (60, 1)) for name, values in given.items()}
    weights = {"norm": np.ones((60, 7)), "gradient_norm": np.tile(gradients, (60, 1))}
    run = build(tmp_path / "run", layers=columns, logged={"loss": np.full(60, 2.0)}, weights=weights)
    assert (diagnose(run).verdict.code == "depth-vanishing-gradient") == vanish


def test_over_hundreds_of_layers_rows_become_multiples_of_one_vector_though_outputs_shrink(tmp_path):
    left = 0.98 ** np.arange(250)
    ranks = np.concatenate([np.linspace(9, 1.02, 200), np.full(50, 1.02)])
    given = {"output_norm": left, "effective_rank": ranks, "relative_mu": np.full(250, 0.5)}
    columns = {name: np.tile(values, (30, 1)) for name, values in given.items()}
    run = build(tmp_path / "run", layers=columns, logged={"loss": np.full(30, 2.0)})
    assert diagnose(run).verdict.code == "depth-oversmoothing"


# --- the loop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "is_faulty"), [(0.9, False), (0.99, False), (0.998, True), (0.9999, True), (1.0, True)]
)
def test_gradients_that_are_scaled_down_are_momentum_by_hand(tmp_path, kept, is_faulty):
    """Which is too close to one where that of an optimizer is."""
    (x, y), model = data(noise=1.0), mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    with gatdiag.watch(model, tmp_path / "run", every=1, warn=False) as recorder:
        for _ in range(100):
            rows = torch.randperm(400)[:64]
            loss = F.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            recorder.log(loss=loss.item())
            for parameter in model.parameters():
                parameter.grad.mul_(kept)
    assert ("gradients-not-cleared" in alarms(diagnose(tmp_path / "run"))) == is_faulty


@pytest.mark.parametrize("is_faulty", [False, True])
def test_the_best_weights_are_restored_on_purpose(tmp_path, is_faulty):
    """Or, by mistake, those of an early step."""
    (x, y), model, kept = data(noise=1.0), mlp(), []
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    with gatdiag.watch(model, tmp_path / "run", every=1) as recorder:
        for step in range(200):
            rows = torch.randperm(400)[:64]
            loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.log(loss=loss.item())
            if step == (0 if is_faulty else 100):
                kept.append(copy.deepcopy(model.state_dict()))
            if kept and step % 25 == 24:
                model.load_state_dict(kept[0])
    assert ("weights-overwritten" in alarms(diagnose(tmp_path / "run"))) == is_faulty


@pytest.mark.parametrize("is_sorted", [True, False])
def test_batches_of_one_class_may_take_turns(tmp_path, is_sorted):
    torch.manual_seed(0)
    y = torch.arange(600) % 3
    x, model = torch.randn(600, 8) + 1.2 * F.one_hot(y, 8), mlp(3)

    def loss_of(step):
        rows = (y == (step // 5 if is_sorted else step) % 3).nonzero()[:, 0]
        rows = rows[torch.randint(len(rows), (32,))]
        return F.cross_entropy(model(x[rows]), y[rows])

    diagnosis = train(tmp_path / "run", model, loss_of, steps=200, lr=0.1, optimizer=torch.optim.SGD)
    assert ("batches-sorted" in alarms(diagnosis)) == is_sorted


# --- inputs and labels ------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Embeds the one type of all nodes, and counts neighbors or leaves edges alone."""

    def __init__(self, counts):
        super().__init__()
        self.types, self.sums, self.head = nn.Embedding(5, 8), GINConv(mlp(32)), nn.Linear(32, 2)
        self.counts = counts

    def forward(self, types, edge_index):
        return self.head(self.sums(self.types(types), edge_index if self.counts else edge_index[:, :1]).relu())


@pytest.mark.parametrize("counts", [True, False])
def test_nodes_of_one_type_may_be_told_apart_by_their_edges(tmp_path, counts):
    torch.manual_seed(0)
    edges = torch.multinomial(torch.rand(400) ** 2, 3000, replacement=True).view(2, -1)
    degrees = edges[1].bincount(minlength=400)
    y, types, model = (degrees + 2 * torch.randn(400) > 3).long(), torch.zeros(400, dtype=torch.long), Counting(counts)
    diagnosis = train(tmp_path / "run", model, lambda _: F.cross_entropy(model(types, edges), y), steps=80)
    told = [one for one in diagnosis if one.code == "input-constant"]
    assert [one.severity for one in told] == (["note"] if counts else ["error"]), str(diagnosis)


@pytest.mark.parametrize(
    ("rate", "width", "severity"), [(0.9, 512, "warning"), (0.99, 64, "error")], ids=["wide", "narrow"]
)
def test_dropout_that_leaves_enough_units_is_not_sure_to_be_the_cause(tmp_path, rate, width, severity):
    (x, y), model = data(), nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(rate), nn.Linear(width, 2))
    y = y[torch.randperm(len(y))]  # in another order than the rows

    def loss_of(_):
        rows = torch.randint(len(y), (128,))
        return F.cross_entropy(model(x[rows]), y[rows])

    verdict = train(tmp_path / "run", model, loss_of, lr=0.003).verdict
    assert (verdict.code, verdict.severity) == ("dropout-too-large", severity)


@pytest.mark.parametrize(("column", "severity"), [(30.0, "warning"), (3000.0, "error")])
def test_a_column_in_the_tens_is_not_sure_to_be_the_cause(tmp_path, column, severity):
    (x, y), model = data(), mlp()
    x[:, 4] *= column
    y = y[torch.randperm(len(y))]

    def loss_of(_):
        rows = torch.randint(len(y), (128,))
        return F.cross_entropy(model(x[rows]), y[rows])

    told = [one for one in train(tmp_path / "run", model, loss_of, lr=0.001) if one.code == "input-scale"]
    assert [one.severity for one in told] == [severity]


@pytest.mark.parametrize("is_told", [True, False])
def test_rare_clicks_are_learned_as_far_as_an_auc_shows(tmp_path, is_told):
    torch.manual_seed(0)
    x, model = torch.randn(4000, 8), mlp(1)
    chance = torch.sigmoid((x[:, 0] + 0.5 * x[:, 1]) * is_told - 3.5)
    y = torch.bernoulli(chance)

    def scores_of(_):
        out = model(x)[:, 0]
        return {"val_auc": float((out[y == 1][:, None] > out[y == 0][:500]).float().mean())}

    def loss_of(_):
        rows = torch.randint(4000, (512,))
        return F.binary_cross_entropy_with_logits(model(x[rows])[:, 0], y[rows])

    diagnosis = train(tmp_path / "run", model, loss_of, scores_of=scores_of, steps=100, lr=0.003)
    assert ("class-imbalance" in alarms(diagnosis)) == (not is_told), str(diagnosis)


class Convolutions(nn.Module):
    """Two convolutions that use what neighbors send alone, and perhaps a linear layer beside them."""

    def __init__(self, has_skip):
        super().__init__()
        self.first, self.last = (GCNConv(*sizes, add_self_loops=False) for sizes in ((8, 16), (16, 2)))
        self.own = nn.Linear(8, 2) if has_skip else None

    def forward(self, x, edges):
        o = self.last(self.first(x, edges).relu(), edges)
        return o if self.own is None else o + self.own(x)


@pytest.mark.parametrize(
    ("has_skip", "are_alike", "is_found"),
    [(True, False, False), (False, True, False), (False, False, True)],
    ids=["skip", "equal features", "faulty"],
)
def test_nodes_without_neighbors_may_have_one_output(tmp_path, has_skip, are_alike, is_found):
    torch.manual_seed(0)
    x, nodes, model = torch.randn(120, 8), torch.arange(40), Convolutions(has_skip)
    edges = torch.stack([nodes, nodes.roll(1)])
    x[40:] = x[40] if are_alike else x[40:]
    y = (x[:, 0] > 0).long()
    diagnosis = train(tmp_path / "run", model, lambda _: F.cross_entropy(model(x, edges), y))
    assert ("input-without-messages" in [one.code for one in diagnosis]) is is_found, str(diagnosis)
