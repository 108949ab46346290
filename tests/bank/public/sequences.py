"""Reports of recurrent networks and transformers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.bank.public.reports import (
    Rebuilt,
    accuracy,
    minimize,
    outputs,
    perceptron,
    report,
    seeded,
    shuffled,
)


@report(
    "https://discuss.pytorch.org/t/lstm-change-batch-first-true-loss-does-not-decrease/62364",
    "The LSTM after the convolutions was changed to batch_first=True, but is still given time first: it runs over the "
    "examples of a batch.",
    right="wrong-axis",
    near="output-softmax-over-nodes",
)
def batch_read_as_time(is_faulty: bool) -> Rebuilt:
    """What was seen two moments ago is to be named, as in reading a line of text."""
    generator = seeded(1)
    symbols = torch.randint(6, (256, 12), generator=generator)
    signal = F.one_hot(symbols, 6).float() + 0.3 * torch.randn(256, 12, 6, generator=generator)
    y = torch.cat([symbols[:, :2], symbols[:, :-2]], 1)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(6, 16, 1)
            self.lstm = nn.LSTM(16, 32, batch_first=is_faulty)
            self.out = nn.Linear(32, 6)

        def forward(self, x: Tensor) -> Tensor:
            h = self.conv(x.transpose(1, 2)).relu().permute(2, 0, 1)  # time, examples, channels
            return self.out(self.lstm(h)[0]).permute(1, 0, 2)

    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(signal[rows]).flatten(0, 1), y[rows].flatten())

    def score() -> float:
        return accuracy(outputs(model, (signal[:, :],))[:, 2:].flatten(0, 1), y[:, 2:].flatten())

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(256, 32, 30), log), score)


@report(
    "https://github.com/keras-team/keras-io/issues/2044",
    "Texts are padded behind, and the state after the padding is classified: it no longer depends on the text.",
    right="depth-vanishing-gradient",
)
def padding_read_last(is_faulty: bool) -> Rebuilt:
    """Two classes of short texts, by two words that may occur anywhere in them."""
    generator = seeded(2)
    texts, y = torch.zeros(256, 120, dtype=torch.long), torch.arange(256) % 2
    for text, label in zip(texts, y.tolist(), strict=True):
        length = int(torch.randint(5, 10, (1,), generator=generator))
        words = torch.randint(3, 40, (length,), generator=generator)
        words[int(torch.randint(length, (1,), generator=generator))] = 1 + label
        start = 0 if is_faulty else 120 - length
        text[start : start + length] = words

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.lstm = nn.Embedding(40, 16), nn.LSTM(16, 32, batch_first=True)
            self.out = nn.Linear(32, 2)

        def forward(self, text: Tensor) -> Tensor:
            return self.out(self.lstm(self.embedding(text))[0][:, -1])

    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(texts[rows]), y[rows])

    return Rebuilt(
        model,
        lambda log: minimize(optimizer, loss_of, shuffled(256, 32, 20), log),
        lambda: accuracy(outputs(model, (texts,)), y),
    )


class Attention(nn.Module):
    """A layer of a transformer; keys that are hidden from a query get a score of minus infinity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.norm1, self.norm2 = nn.Linear(width, 3 * width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = perceptron(width, 2 * width, width)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(hidden, float("-inf"))
        x = self.norm1(x + scores.softmax(-1) @ v)
        return self.norm2(x + self.feed(x))


class Transformer(nn.Module):
    """Layers over embedded tokens, with learned positions."""

    def __init__(self, tokens: int, length: int, classes: int, layers: int = 1) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(tokens, 32), nn.Embedding(length, 32)
        self.layers, self.out = nn.ModuleList(Attention(32) for _ in range(layers)), nn.Linear(32, classes)

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, hidden)
        return self.out(x)


@report(
    "https://github.com/pytorch/pytorch/issues/24816",
    "An example consists of padding alone: its attention is a softmax over nothing, which is NaN.",
    right="nonfinite-operation",
    held_out=True,
)
def padded_examples(is_faulty: bool) -> Rebuilt:
    """Which word is repeated in a text; few texts are empty."""
    generator = seeded(3)
    tokens = torch.randint(1, 9, (160, 8), generator=generator)
    y = torch.arange(160) % 2
    tokens[:, 3] = 9 + y
    lengths = torch.randint(4, 9, (160,), generator=generator)
    lengths[::40] = 0
    padding = torch.arange(8) >= lengths[:, None]
    if not is_faulty:
        padding[:, 0] = False
    tokens = tokens.masked_fill(padding, 0)
    model = Transformer(11, 8, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(rows: Tensor) -> Tensor:
        out = model(tokens[rows], padding[rows][:, None])
        return F.cross_entropy(out.masked_fill(padding[rows][..., None], 0).mean(1), y[rows])

    def score() -> float:
        kept = lengths > 0
        out = outputs(model, (tokens[kept], padding[kept][:, None])).masked_fill(padding[kept][..., None], 0)
        return accuracy(out.mean(1), y[kept])

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(160, 32, 20), log), score)


@report(
    "https://github.com/alex-matton/causal-transformer-decoder/issues/1",
    "The decoder is trained without a causal mask: each position sees the token that it is to predict.",
    right="target-leakage",
    near="overfitting",
    held_out=True,
)
def future_tokens(is_faulty: bool) -> Rebuilt:
    """Sequences in which each token follows from the two before it."""
    text = torch.randint(7, (200, 14), generator=seeded(4))
    for place in range(2, 14):
        text[:, place] = (text[:, place - 1] + text[:, place - 2]) % 7
    model = Transformer(7, 14, 7, layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    hidden = torch.ones(13, 13, dtype=torch.bool).triu(1) & (not is_faulty)

    def loss_of(rows: Tensor) -> Tensor:
        out = model(text[rows, :-1], hidden)
        return F.cross_entropy(out[:, 1:].flatten(0, 1), text[rows, 2:].flatten())

    def score() -> float:
        out = torch.stack([outputs(model, (text[:, :end], hidden[:end, :end]))[:, -1]
                           for end in range(2, 14)], 1)  # fmt: skip
        return accuracy(out.flatten(0, 1), text[:, 2:].flatten())

    def train(log):
        for epoch in range(60):
            minimize(optimizer, loss_of, shuffled(200, 40, 1), log)
            if epoch % 10 == 9:
                log(val_accuracy=score())

    return Rebuilt(model, train, score)


@report(
    "https://github.com/Project-MONAI/GenerativeModels/issues/314",
    "Targets of an autoregressive transformer are its inputs, not shifted by one: it learns to copy.",
    right="target-leakage",
)
def targets_not_shifted(is_faulty: bool) -> Rebuilt:
    """Sequences in which the next token depends on the last one, read with a causal mask."""
    generator = seeded(26)
    chances = (3 * torch.randn(12, 12, generator=generator)).softmax(1)
    text = torch.randint(12, (200, 1), generator=generator)
    for _ in range(16):
        text = torch.cat([text, torch.multinomial(chances[text[:, -1]], 1, generator=generator)], 1)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(12, 32), nn.Embedding(17, 32)
            self.body = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.head = nn.Linear(32, 12)

        def forward(self, tokens: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
            return self.head(self.body(x, mask, is_causal=True))

    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(rows: Tensor) -> Tensor:
        given, following = text[rows, :-1], text[rows, 1:]
        return F.cross_entropy(model(given).flatten(0, 1), (given if is_faulty else following).flatten())

    def score() -> float:
        return accuracy(outputs(model, (text[:, :-1],)).flatten(0, 1), text[:, 1:].flatten())

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(200, 40, 30), log), score)


@report(
    "https://github.com/espnet/espnet/pull/465",
    "An encoding of positions is added where no gradients are computed: what is before it stays as it was drawn.",
    right="parameters-without-gradient",
    held_out=True,
)
def encoding_without_gradients(is_faulty: bool) -> Rebuilt:
    """Classes of series by a pattern in them, found by convolutions in front of attention."""
    generator = seeded(27)
    y = torch.arange(240) % 4
    x = 0.5 * torch.randn(240, 20, 10, generator=generator)
    x[:, 8:12] += torch.randn(4, 4, 10, generator=generator)[y]

    class Listener(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv1d(10, 4, 5, padding=2), nn.Linear(4, 4)
            self.body = nn.TransformerEncoderLayer(4, 2, 16, dropout=0.0, batch_first=True)
            self.register_buffer("places", 0.3 * torch.randn(20, 4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x.transpose(1, 2)).relu().transpose(1, 2)
            with torch.set_grad_enabled(torch.is_grad_enabled() and not is_faulty):
                x = x + self.places
            return self.head(self.body(x).mean(1))

    model = Listener()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(x[rows]), y[rows])

    score = lambda: accuracy(outputs(model, (x,)), y)  # noqa: E731
    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(240, 40, 30), log), score)


@report(
    "https://github.com/InseeFrLab/torchTextClassifiers/pull/92",
    "The mask of the padding is the wrong way round for scaled_dot_product_attention: it reads the padding alone.",
    right="parameters-without-gradient",
    held_out=True,
)
def padding_attended(is_faulty: bool) -> Rebuilt:
    """Classes of short texts, by one word in each."""
    generator = seeded(34)
    y, places = torch.randint(5, (500,), generator=generator), torch.arange(12)
    texts = torch.randint(6, 50, (500, 12), generator=generator)
    lengths = torch.randint(4, 11, (500,), generator=generator)
    texts[torch.arange(500), (torch.rand(500, generator=generator) * lengths).long()] = y + 1
    texts[places >= lengths[:, None]] = 0

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.labels = nn.Embedding(50, 32, padding_idx=0), nn.Parameter(0.3 * torch.randn(5, 32))
            self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32)
            self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, 1)

        def forward(self, texts: Tensor) -> Tensor:
            x, is_read = self.embedding(texts), (texts == 0) if is_faulty else (texts != 0)
            queries = self.labels.expand(len(texts), 5, 32)
            mask = is_read[:, None].expand(len(texts), 5, 12)
            h = F.scaled_dot_product_attention(queries, self.key(x), self.value(x), attn_mask=mask)
            return self.out(self.norm(h + queries).relu()).squeeze(2)

    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(texts[rows]), y[rows])

    score = lambda: accuracy(outputs(model, (texts,)), y)  # noqa: E731
    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(500, 50, 30), log), score)


@report(
    "https://github.com/vitrioil/Speech-Separation/issues/4",
    "Between convolutions and LSTM, channels and time are brought together by view, without permute before it.",
    right="wrong-axis",
    held_out=True,
)
def channels_viewed_as_time(is_faulty: bool) -> Rebuilt:
    """The loudest pitch in each part of a spectrogram."""
    generator = seeded(35)
    y = torch.randint(5, (300, 8), generator=generator).repeat_interleave(3, 1)
    x = 0.5 * torch.randn(300, 24, 12, generator=generator) + 1.5 * F.one_hot(2 * y + 1, 12)

    class Listener(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lstm = nn.Conv2d(1, 6, 3, padding=1), nn.LSTM(72, 24, batch_first=True, bidirectional=True)
            self.out = nn.Linear(48, 5)

        def forward(self, x: Tensor) -> Tensor:
            h = self.conv(x[:, None]).relu()  # examples, channels, time, pitches
            h = h if is_faulty else h.transpose(1, 2)
            return self.out(self.lstm(h.reshape(len(x), 24, 72))[0])

    model = Listener()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(x[rows]).flatten(0, 1), y[rows].flatten())

    def score() -> float:
        return accuracy(outputs(model, (x[200:],)).flatten(0, 1), y[200:].flatten())

    return Rebuilt(model, lambda log: minimize(optimizer, loss_of, shuffled(200, 25, 20), log), score)
