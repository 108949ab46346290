"""Faults of data, loss and loop in small trainings, each beside the same training without it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GCNConv, SAGEConv

import gatdiag
from tests.diagnosis.watched import check, train

NAN = float("nan")


def mlp(out=2):
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, out))


def data(rows=120):
    x = torch.randn(rows, 8)
    return x, (x[:, 0] + x[:, 1] > 0).long()


class Graph(nn.Module):
    """Two convolutions."""

    def __init__(self, conv):
        super().__init__()
        self.first, self.last = conv(8, 16), conv(16, 2)

    def forward(self, x, *edges):
        return self.last(self.first(x, *edges).relu(), *edges)


class Pooled(Graph):
    """One output for all nodes."""

    def forward(self, x, *edges):
        return super().forward(x, *edges).mean(0, keepdim=True)


def missing_target(is_faulty):
    x, _ = data()
    y = x[:, :2].clone()
    y[3, 1] = NAN if is_faulty else 0.0
    model = mlp()
    return model, lambda step: F.mse_loss(model(x), y)


def empty_selection(is_faulty):
    x, y = data()
    model = mlp()

    def loss_of(step):
        known = torch.full((len(y),), not (is_faulty and step % 7 == 5))
        return F.cross_entropy(model(x)[known], y[known])

    return model, loss_of


def every_label_ignored(is_faulty):
    x, y = data()
    model, ignored = mlp(), torch.full_like(y, -100)
    return model, lambda step: F.cross_entropy(model(x), ignored if is_faulty and step > 50 else y)


def softmax_of_one_column(is_faulty):
    x, y = data()
    model = nn.Sequential(*mlp(1), *[nn.LogSoftmax(1)][: int(is_faulty)])
    return model, lambda step: F.binary_cross_entropy_with_logits(model(x).view(-1), y.float())


def rounded(is_faulty):
    x, _ = data()
    y = x[:, :1]
    model = mlp(1)
    return model, lambda step: F.mse_loss(model(x).round() if is_faulty else model(x), y)


def scores_as_targets(is_faulty):
    x, y = data()
    model = mlp(1)

    def loss_of(step):
        out = model(x).view(-1)
        positive, negative = out[y == 1][:40], out[y == 0][:40]
        if is_faulty:
            return F.binary_cross_entropy_with_logits(positive, negative)
        return F.binary_cross_entropy_with_logits(out, y.float())

    return model, loss_of


def likelihood_of_logits(is_faulty):
    x, y = data()
    model = mlp()
    return model, lambda step: F.nll_loss(model(x) if is_faulty else model(x).log_softmax(1), y)


def flipped_sign(is_faulty):
    x, _ = data()
    y = x[:, :1]
    model = mlp(1)
    return model, lambda step: (-1) ** is_faulty * F.mse_loss(model(x), y) * (1 + 20 * is_faulty)


def minus_cross_entropy(is_faulty):
    x, y = data()
    model = mlp()
    return model, lambda step: (-1) ** is_faulty * F.cross_entropy(model(x), y)


def far_targets_of_an_absolute_error(is_faulty):
    x, _ = data()
    y = x[:, :1] + 900 * is_faulty
    model = mlp(1)
    return model, lambda step: F.l1_loss(model(x), y)


def uneven_columns(is_faulty):
    x, _ = data()
    y = torch.stack([x[:, 0] * x[:, 1], (400 if is_faulty else 1) * x[:, 2]], 1)
    model = mlp()
    return model, lambda step: F.mse_loss(model(x), y)


def huber_behind_tanh(is_faulty):
    x, _ = data()
    model = nn.Sequential(*mlp(1), *[nn.Tanh()][: int(is_faulty)])
    return model, lambda step: F.smooth_l1_loss(model(x), 3 * x[:, :1])


def penalized(is_faulty):
    x, y = data()
    model = mlp()

    def loss_of(step):
        penalty = sum(parameter.square().sum() for parameter in model.parameters())
        return F.cross_entropy(model(x), y) + (0.5 if is_faulty else 1e-5) * penalty

    return model, loss_of


def far_targets(is_faulty):
    x, _ = data()
    y = x[:, :1] + 50 * is_faulty
    model = mlp(1)
    return model, lambda step: F.mse_loss(model(x), y)


def ring():
    return torch.stack([torch.arange(120), (torch.arange(120) + 1) % 120])


def no_activation(is_faulty):
    bits = torch.randint(2, (120, 8)).float()
    y = (bits[:, :1] != bits[:, 1:2]).float()
    model = nn.Sequential(nn.Linear(8, 32), *[nn.ReLU()][int(is_faulty) :], nn.Linear(32, 1))
    return model, lambda step: F.binary_cross_entropy_with_logits(model(bits), y)


def zero_weights(is_faulty):
    """A layer that returns its biases alone, whatever it is given."""
    (x, y), model = data(), mlp()
    if is_faulty:
        nn.init.zeros_(model[0].weight)
        nn.init.zeros_(model[0].bias)
    return model, lambda step: F.cross_entropy(model(x), y)


def divergence_of_probabilities(is_faulty):
    x, _ = data()
    teacher = x[:, :3].softmax(-1)
    model = mlp(3)

    def loss_of(step):
        out = model(x)
        return F.kl_div(out.softmax(-1) if is_faulty else out.log_softmax(-1), teacher, reduction="batchmean")

    return model, loss_of


def all_linked(is_faulty):
    x, y = data()
    edges = torch.ones(120, 120).nonzero().T
    model = Graph(GCNConv if is_faulty else SAGEConv)
    return model, lambda step: F.cross_entropy(model(x, edges), y)


CASES = {
    missing_target: ("target-nonfinite", {}),
    empty_selection: ("empty-selection", {}),
    every_label_ignored: ("empty-selection", {}),
    softmax_of_one_column: ("no-training-signal", {}),
    rounded: ("no-training-signal", {}),
    scores_as_targets: ("target-is-output", {}),
    likelihood_of_logits: ("loss-unbounded", {}),
    flipped_sign: ("loss-unbounded", {"steps": 150}),
    minus_cross_entropy: ("loss-unbounded", {}),
    far_targets: ("target-scale", {}),
    far_targets_of_an_absolute_error: ("target-scale", {}),
    uneven_columns: ("target-scale", {}),
    huber_behind_tanh: ("output-out-of-range", {"steps": 150}),
    penalized: ("weight-decay-too-strong", {"steps": 100}),
    zero_weights: ("init-too-small", {}),
    no_activation: ("network-linear", {"steps": 100, "lr": 0.02}),
    divergence_of_probabilities: ("output-softmax-twice", {}),
    all_linked: ("input-complete-graph", {}),
}


@pytest.mark.parametrize("is_faulty", [True, False], ids=["faulty", "repaired"])
@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_named_and_its_repair_is_not_blamed(tmp_path, case, is_faulty):
    torch.manual_seed(0)
    code, options = CASES[case]
    model, loss_of = case(is_faulty)
    diagnosis = train(tmp_path / "run", model, loss_of, **options)
    check(diagnosis, code, is_faulty=is_faulty)


@pytest.mark.parametrize(
    ("case", "words", "fix"),
    [
        (softmax_of_one_column, "LogSoftmax over a dimension of size 1", "squeeze(-1)"),
        (rounded, "operation Round", "remove round()"),
    ],
)
def test_it_is_said_where_the_slope_ends(tmp_path, case, words, fix):
    torch.manual_seed(0)
    verdict = train(tmp_path / "run", *case(is_faulty=True)).verdict
    assert words in verdict.text
    assert fix in verdict.remedy


class Reader(nn.Module):
    """Attends to the words of a text, or, with the mask the wrong way round, to its padding."""

    def __init__(self, is_faulty):
        super().__init__()
        self.words, self.query = nn.Embedding(50, 16, padding_idx=0), nn.Parameter(torch.randn(1, 1, 16))
        self.values, self.out, self.is_faulty = nn.Linear(16, 16), nn.Linear(16, 3), is_faulty

    def forward(self, text):
        words, mask = self.words(text), (text == 0) == self.is_faulty
        read = F.scaled_dot_product_attention(
            self.query.expand(len(text), 1, 16), words, self.values(words), attn_mask=mask[:, None]
        )
        return self.out(read[:, 0])


@pytest.mark.parametrize("is_faulty", [True, False])
def test_an_embedding_whose_gradient_is_zero_is_no_matter_of_the_rate(tmp_path, is_faulty):
    torch.manual_seed(0)
    y, model = torch.randint(3, (300,)), Reader(is_faulty)
    text = 1 + y[:, None] * 10 + torch.randint(15, (300, 12))
    text[:, 9:] = 0
    diagnosis = train(tmp_path / "run", model, lambda _: F.cross_entropy(model(text), y), steps=100, lr=0.003)
    check(diagnosis, "parameters-without-gradient", is_faulty=is_faulty)
    if is_faulty:
        assert "words.weight" in diagnosis.verdict.text
        assert "mask" in diagnosis.verdict.remedy


def test_nodes_that_are_alike_are_no_cause_where_one_output_is_wanted_of_all(tmp_path):
    torch.manual_seed(0)
    edges, model, labels = torch.ones(12, 12).nonzero().T, Pooled(GCNConv), torch.randint(2, (60, 1))
    diagnosis = train(
        tmp_path / "run", model, lambda step: F.cross_entropy(model(torch.randn(12, 8), edges), labels[step])
    )
    assert diagnosis.verdict.code != "healthy"
    assert "depth-oversmoothing" not in [one.code for one in diagnosis]


def test_passes_without_a_step_are_told_unless_the_weights_move(tmp_path):
    torch.manual_seed(0)
    (x, y), model = data(), mlp()
    diagnosis = train(tmp_path / "still", model, lambda step: F.cross_entropy(model(x), y), makes_steps=False)
    assert (diagnosis.verdict.code, diagnosis.verdict.severity) == ("no-step", "error")

    def loss_of(step):
        with torch.no_grad():
            model[0].weight.mul_(0.99)
        return F.cross_entropy(model(x), y)

    moved = train(tmp_path / "moved", model, loss_of, makes_steps=False).verdict
    assert moved.code == "undetermined"
    assert "call recorder.step()" in moved.text
    with torch.no_grad():
        model[0].weight.fill_(NAN)
    broken = train(tmp_path / "broken", model, loss_of, makes_steps=False).verdict
    assert (broken.code, "call recorder.step()" in broken.text) == ("undetermined", True)


@pytest.mark.parametrize(
    ("kind", "steps_each", "expected"),
    [
        ({"momentum": 0.9}, 1, "optimizer-recreated"),
        ({"momentum": 0.9}, 10, "healthy"),  # one for each epoch
        ({}, 1, "healthy"),  # it remembers nothing
    ],
)
def test_an_optimizer_that_makes_one_step_is_told_if_it_would_remember_gradients(tmp_path, kind, steps_each, expected):
    torch.manual_seed(0)
    (x, y), model = data(), mlp()
    with gatdiag.watch(model, tmp_path / "run", every=1) as recorder:
        for step in range(60):
            if step % steps_each == 0:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.3 if not kind else 0.1, **kind)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            recorder.log(loss=loss)
    assert gatdiag.diagnose(tmp_path / "run").verdict.code == expected


def test_inputs_are_seen_where_the_loop_calls_a_part_of_the_model(tmp_path):
    torch.manual_seed(0)
    x, y = data()
    x[:, 0] = torch.arange(120) * 30
    model = nn.ModuleDict({"encoder": mlp()})
    train(tmp_path / "run", model, lambda step: F.cross_entropy(model["encoder"](x), y), steps=5)
    (found,) = gatdiag.load(tmp_path / "run").meta["signals"]["inputs"]
    assert (found["rows"], found["columns"]) == (120, 8)
    assert found["largest_column"] == pytest.approx(float(x[:, 0].square().mean().sqrt()))


def test_rare_rows_that_a_loss_weighs_are_not_overlooked(tmp_path):
    """Batches without a rare row are the only ones that show their labels."""
    torch.manual_seed(0)
    (x, y), model = data(640), mlp()
    y = torch.where(torch.arange(640) % 32 < 2, y, 0)

    def loss_of(step):
        rows = (torch.arange(32) * 20 + step) % 640
        return F.cross_entropy(model(x[rows]), y[rows], weight=torch.tensor([1.0, 20.0]))

    assert "no-training-signal" not in {one.code for one in train(tmp_path / "run", model, loss_of, steps=100)}


@pytest.mark.parametrize("loss", [F.mse_loss, F.binary_cross_entropy])
def test_an_example_at_a_time_behind_a_sigmoid_is_no_sigmoid_twice(tmp_path, loss):
    torch.manual_seed(0)
    x, y = data()
    model = nn.Sequential(*mlp(1), nn.Sigmoid())
    diagnosis = train(
        tmp_path / "run",
        model,
        lambda step: loss(model(x[step : step + 1]), y[step : step + 1, None].float()),
        steps=100,
    )
    assert "output-softmax-twice" not in {one.code for one in diagnosis}


def test_the_loss_of_a_policy_that_is_paid_for_mistakes_says_nothing(tmp_path):
    torch.manual_seed(0)
    (x, y), model = data(), mlp()

    def loss_of(step):
        out = model(x)
        taken = torch.distributions.Categorical(logits=out.detach()).sample()
        return (F.cross_entropy(out, taken, reduction="none") * -(taken != y).float()).mean()

    assert train(tmp_path / "run", model, loss_of, steps=100).verdict.code == "undetermined"
