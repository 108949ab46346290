"""Recipe -> a recorded training, written as a user would write it, and how well it went."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gatdiag.experiments.training import evaluate
from gatdiag.run import load
from gatdiag.watching import watch
from tests.bank.network import RecipeModel, make_network
from tests.bank.recipe import Recipe
from tests.bank.tasks import Examples, Task, make_task

_EVALUATE_EVERY: Final = 5  # steps


@dataclass(frozen=True)
class Outcome:
    """How well a training went, by the true labels and the usual loss, whatever it minimized.

    Attributes:
        train: Fraction of the loss of the best constant prediction that was removed, on the training examples: 1 is
            perfect; 0 is no better than a constant, or not finite.
        val: The same on the validation examples.
        drift: sum |c_end - c_start| over the conserved quantities; NaN without laws.
    """

    train: float
    val: float
    drift: float


def train(recipe: Recipe, folder: Path) -> Outcome:
    """Train, and record the run to the folder. Torch's global random state is restored."""
    with torch.random.fork_rng(devices=[]):
        training = Training(recipe)
        torch.manual_seed(recipe.seed)
        model = training.make_model()
        steps = enumerate(training.run_steps(model, training.make_optimizer(model)))
        for part in range(1 + recipe.resumed):
            mode: dict[str, Any] = {"resume": True} if part else {"overwrite": True}
            # Nothing may depend on the clock: record every step, search for laws without a time limit.
            with watch(model, folder, every=1, laws=True, **mode) as recorder:
                for step, scalars in steps:
                    recorder.log(scalars)
                    if recipe.resumed and not part and step == recipe.steps // 2:
                        break
        return training.evaluate(model, _read_drift(folder))


class Training:
    """The data, model, optimizer and training loop of a recipe.

    Model and training loop draw from torch's global random state.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.task = make_task(recipe)
        is_prepared = recipe.data != "evaluated as they came"
        self.evaluated = self.task if is_prepared else replace(self.task, x=5 * self.task.x + 20)

    def make_model(self) -> RecipeModel:
        """Build a model with new weights."""
        model = make_network(self.recipe, self.task.x.shape[1], self.task.out_channels)
        model.to(PRECISIONS[self.recipe.precision])
        if self.recipe.optimizes == _UNREGISTERED:
            _unregister_layers(model)
        return model

    def make_optimizer(self, model: RecipeModel) -> Optimizer:
        """Build the optimizer of a model."""
        parameters, recipe = OPTIMIZED[self.recipe.optimizes](model), self.recipe
        kind = _OPTIMIZERS.get(recipe.optimizer) or getattr(torch.optim, recipe.optimizer)
        eps = {"eps": recipe.eps} if recipe.eps else {}
        made: Optimizer = kind(parameters, lr=recipe.lr, weight_decay=recipe.decay, **eps)
        return made

    def loss(self, out: Tensor, y: Tensor, model: RecipeModel, step: int = 0) -> Tensor:
        """The loss that is minimized."""
        return LOSSES[self.recipe.loss](out, y, model, step)

    def run_steps(
        self, model: RecipeModel, optimizer: Optimizer, pasted: Callable[[], None] = lambda: None
    ) -> Iterator[dict[str, float]]:
        """Train; yields the scalars to log after each step.

        Args:
            model: The model.
            optimizer: Its optimizer.
            pasted: Code that is pasted into the loop.
        """
        recipe, generator = self.recipe, torch.Generator().manual_seed(self.recipe.seed)
        scheduler = LambdaLR(optimizer, lambda step: SCHEDULES[recipe.schedule](step, recipe.steps))
        kept: dict[str, Tensor] = {}
        for step in range(recipe.steps):
            if recipe.loop == "new optimizer":
                optimizer = self.make_optimizer(model)
            if recipe.clears or recipe.loop == "new optimizer":
                optimizer.zero_grad()
            pasted()
            loss = [self._backward(model, step, generator) for _ in range(recipe.accumulates)][-1]
            if recipe.clip:
                nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            DISTURBANCES[recipe.disturb](model, step)
            if recipe.loop != "no step":
                optimizer.step()
                scheduler.step()
                BETWEEN[recipe.between](model, step, kept)
            scalars = {"loss": loss.item()}
            if step % _EVALUATE_EVERY == 0 or step == recipe.steps - 1:
                for is_training in (True, False):
                    scalars |= _scores(model, self.evaluated, is_training=is_training)
            yield scalars

    def _backward(self, model: RecipeModel, step: int, generator: torch.Generator) -> Tensor:
        recipe = self.recipe
        batch = DATA[recipe.data](self.task, step, generator) or self.task.sample(recipe.batch, generator)
        loss = self.loss(_call(model, batch.args)[batch.rows], batch.y, model, step)
        loss.backward()
        return loss

    def evaluate(self, model: RecipeModel, drift: float = math.nan) -> Outcome:
        """The outcome of a training that ended with this model."""
        on_train, on_val = (_progress(model, self.evaluated, is_training=is_training) for is_training in (True, False))
        return Outcome(on_train, on_val, drift)


_OPTIMIZERS: Final[Mapping[str, Callable[..., Optimizer]]] = {  # that torch has under another name
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "heavy momentum": partial(torch.optim.SGD, momentum=0.999),
    "Nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
}

SCHEDULES: Final[Mapping[str, Callable[[int, int], float]]] = {
    "constant": lambda step, steps: 1.0,
    "warm-up": lambda step, steps: min(1.0, (step + 1) / (0.2 * steps)),
    "cosine": lambda step, steps: 0.5 * (1 + math.cos(math.pi * step / steps)),
    "drop": lambda step, steps: 1.0 if step < steps / 2 else 0.1,
    "collapse": lambda step, steps: 0.7**step,
    "stepped per batch": lambda step, steps: 0.9**step,
    "switched off": lambda step, steps: float(step < steps / 6),
    "warm-up without end": lambda step, steps: (step + 1) / (50 * steps),
    "zero": lambda step, steps: 0.0,
    "warm-up to the end": lambda step, steps: (step + 1) / steps,
    "one-cycle": lambda step, steps: min((step + 1) / (0.3 * steps), (steps - step) / (0.7 * steps)),
    "linear": lambda step, steps: 1 - step / steps,
    "exponential": lambda step, steps: 1e-3 ** (step / steps),
}
"""Schedule -> (step, number of steps) -> factor of the learning rate."""


# --- evaluation -------------------------------------------------------------------------------------------------------


def _usual_loss(out: Tensor, y: Tensor) -> Tensor:
    if y.dim() == 1:
        return F.cross_entropy(out, y)
    return F.mse_loss(out, y) if y.min() < 0 else F.binary_cross_entropy_with_logits(out, y)


def _predict(model: RecipeModel, task: Task, *, is_training: bool) -> tuple[Tensor, Tensor]:
    """Logits in evaluation mode, without the model's output function, in units of the true labels, and these."""
    examples = task.split(is_training)
    output, model.output = model.output, lambda out: out
    try:
        out = evaluate(model, in_precision(model, examples.args))[examples.rows].float()
        return out - task.shift, examples.y
    finally:
        model.output = output


def _scores(model: RecipeModel, task: Task, *, is_training: bool) -> dict[str, float]:
    """Validation loss, and accuracy for classification, as a training loop logs them."""
    out, y = _predict(model, task, is_training=is_training)
    scores = {} if is_training else {"val_loss": _usual_loss(out, y).item()}
    if y.dim() == 1:
        scores["train_accuracy" if is_training else "val_accuracy"] = (out.argmax(1) == y).float().mean().item()
    return scores


def _progress(model: RecipeModel, task: Task, *, is_training: bool) -> float:
    out, y = _predict(model, task, is_training=is_training)
    loss = _usual_loss(out, y).item()
    if y.dim() == 1:
        share = task.y.bincount() / len(task.y)
        constant = -(share * share.clamp(min=1e-12).log()).sum().item()
    else:
        constant = 1.0 if task.y.min() < 0 else math.log(2)
    progress = 1 - loss / constant
    return max(progress, 0.0) if math.isfinite(progress) else 0.0


def _read_drift(folder: Path) -> float:
    neurons = load(folder).neurons
    if not len(neurons):
        return math.nan
    values = neurons.pivot_table(index="step", columns=["layer", "law"], values="c", observed=True)
    return float((values.iloc[-1] - values.iloc[0]).abs().sum())


PRECISIONS: Final[Mapping[str, torch.dtype]] = {
    "single": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16,
}  # fmt: skip


def in_precision(model: RecipeModel, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The inputs in the precision of the parameters."""
    dtype = next(model.parameters()).dtype
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in args)


def _call(model: RecipeModel, args: tuple[Tensor, ...]) -> Tensor:
    """The output in single precision."""
    out: Tensor = model(*in_precision(model, args))
    return out.float()


# --- what a training does, rightly or wrongly -------------------------------------------------------------------------


def _rebuild_layers(model: RecipeModel) -> list[nn.Parameter]:
    """All layers but the last are replaced once the optimizer has its parameters."""
    parameters = list(model.parameters())
    model.encoder.convs = nn.ModuleList([*copy.deepcopy(model.encoder.convs[:-1]), model.encoder.convs[-1]])
    return parameters


def _unregister_layers(model: RecipeModel) -> None:
    """All layers but the last are kept in a plain list, so that the model does not register their parameters."""
    convs = list(model.encoder.convs)
    model.encoder.last = convs.pop()
    del model.encoder.convs
    object.__setattr__(model.encoder, "convs", [*convs, model.encoder.last])


_UNREGISTERED: Final = "layers in a list"

OPTIMIZED: Final[Mapping[str, Callable[[RecipeModel], list[nn.Parameter]]]] = {
    "all": lambda model: list(model.parameters()),
    "last": lambda model: list((model.head or model.encoder.convs[-1]).parameters()),
    "biases": lambda model: [p for name, p in model.named_parameters() if name.endswith("bias")],
    "of a copy": lambda model: list(copy.deepcopy(model).parameters()),
    "before rebuilding": _rebuild_layers,
    _UNREGISTERED: lambda model: list(model.parameters()),
}
"""Name -> the parameters that the optimizer gets; may change the model."""


def _penalize_later(out: Tensor, y: Tensor, model: RecipeModel, step: int) -> Tensor:
    """An L2 penalty on the first layer, from step 20 on."""
    penalty = sum(parameter.square().sum() for parameter in model.encoder.convs[0].parameters())
    return _usual_loss(out, y) + (0.01 * penalty if step >= 20 else 0.0)


def _average_selected(out: Tensor, y: Tensor, model: RecipeModel, step: int) -> Tensor:
    """A mean over a mask, which in step 10 selects nothing."""
    mask = torch.full((len(y),), float(step != 10))
    return (F.cross_entropy(out, y, reduction="none") * mask).sum() / mask.sum()


def _compare_scores(out: Tensor, y: Tensor) -> Tensor:
    """The scores of the negative examples are the labels of the positive ones."""
    positive, negative = (out[y == label] for label in (1, 0))
    count = min(len(positive), len(negative))
    return F.binary_cross_entropy_with_logits(positive[:count], negative[:count])


LOSSES: Final[Mapping[str, Callable[[Tensor, Tensor, RecipeModel, int], Tensor]]] = {
    "usual": lambda out, y, model, step: _usual_loss(out, y),
    "times zero": lambda out, y, model, step: 0.0 * _usual_loss(out, y),
    "empty mask": lambda out, y, model, step: F.cross_entropy(out[y < 0], y[y < 0], reduction="sum"),
    "negative log-likelihood": lambda out, y, model, step: F.nll_loss(out, y),
    "broadcast": lambda out, y, model, step: (out - y.flatten()).square().mean(),
    "broadcast, absolute": lambda out, y, model, step: (out - y.flatten()).abs().mean(),
    "penalized later": _penalize_later,
    "masked, once by nothing": _average_selected,
    "scores of each other": lambda out, y, model, step: _compare_scores(out, y),
    "rows alike": lambda out, y, model, step: F.mse_loss(out, out.roll(1, 0)),
    "label smoothing": lambda out, y, model, step: F.cross_entropy(out, y, label_smoothing=0.1),
    "absolute": lambda out, y, model, step: F.l1_loss(out, y),
    "Huber": lambda out, y, model, step: F.smooth_l1_loss(out, y),
    "maximized": lambda out, y, model, step: -_usual_loss(out, y),
    "penalized": lambda out, y, model, step: (
        _usual_loss(out, y) + 0.3 * sum(p.square().sum() for p in model.parameters())
    ),
    "summed": lambda out, y, model, step: _usual_loss(out, y) * len(y),
    "smoothed away": lambda out, y, model, step: F.cross_entropy(out, y, label_smoothing=1.0),
    "softmax over rows": lambda out, y, model, step: F.nll_loss(out.log_softmax(0), y),
}
"""Name -> the loss that is minimized (output, labels, model, step)."""


def _sort_by_class(task: Task, step: int, generator: torch.Generator) -> Examples:
    """Batches of 12, in the order of the classes."""
    rows = task.is_training.nonzero().flatten()
    rows = rows[task.training_y[rows].argsort(stable=True)]
    size = len(rows) // 12 * 12
    return task.batch(rows[:size].view(-1, 12)[step % (size // 12)].sort().values, generator)


def _change_inputs(change: Callable[[Tensor], object]) -> Callable[[Task, int, torch.Generator], None]:
    def before_step(task: Task, step: int, generator: torch.Generator) -> None:
        change(task.x)

    return before_step


def _shuffle_apart(task: Task, step: int, generator: torch.Generator) -> Examples:
    args, rows, _ = task.split(is_training=True)
    y = task.training_y[rows]
    return Examples(args, rows, y[torch.randperm(len(y), generator=generator)])


DATA: Final[Mapping[str, Callable[[Task, int, torch.Generator], Examples | None]]] = {
    "": lambda task, step, generator: None,
    "sorted by class": _sort_by_class,
    "targets shuffled in each step": _shuffle_apart,
    "shrunk in each step": _change_inputs(lambda x: x.mul_(0.8)),
    "grown in each step": _change_inputs(lambda x: x.mul_(1.1)),
    "columns permuted in each step": _change_inputs(lambda x: x.copy_(x[:, torch.randperm(x.shape[1])])),
    "evaluated as they came": lambda task, step, generator: None,
}
"""Name -> what the loop does to the data before a step; it may return the batch (task, step, generator)."""


def _scale_gradient(model: RecipeModel, step: int) -> None:
    for parameter in model.encoder.convs[0].parameters() if step >= 20 else ():
        assert parameter.grad is not None
        parameter.grad[::2] *= 3.0


def _add_gradient_noise(model: RecipeModel, step: int) -> None:
    for parameter in model.parameters() if step >= 20 else ():
        assert parameter.grad is not None
        parameter.grad += 0.3 * parameter.grad.norm() * torch.randn_like(parameter) / parameter.numel() ** 0.5


DISTURBANCES: Final[Mapping[str, Callable[[RecipeModel, int], None]]] = {
    "": lambda model, step: None,
    "gradient scaled later": _scale_gradient,
    "gradient noisy later": _add_gradient_noise,
    "values clipped at 1e-5": lambda model, step: nn.utils.clip_grad_value_(model.parameters(), 1e-5),
}
"""Name -> what happens between backward pass and optimizer step (model, step)."""


def _restore(model: RecipeModel, step: int, kept: dict[str, Tensor]) -> None:
    """Back to the first weights after every tenth step."""
    if not kept:
        kept |= {name: value.clone() for name, value in model.state_dict().items()}
    if step % 10 == 9:
        model.load_state_dict(kept)


def _average(model: RecipeModel, step: int, kept: dict[str, Tensor], *, swaps: bool) -> None:
    """An average of the weights, written over them; or only swapped in for an evaluation and back."""
    if not kept:
        kept |= {name: value.clone() for name, value in model.state_dict().items()}
    for name, value in model.state_dict().items():
        kept[name].lerp_(value.to(kept[name]), 0.01)
    before = copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    if swaps:
        model.load_state_dict(before)


def _draw_anew(model: RecipeModel, step: int, kept: dict[str, Tensor]) -> None:
    for layer in model.encoder.convs if step % 15 == 14 else ():
        layer.reset_parameters()


def _clip(model: RecipeModel, step: int, kept: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.3, 0.3)


def _prune(model: RecipeModel, step: int, kept: dict[str, Tensor]) -> None:
    """Small weights of the first step stay zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                mask = kept.setdefault(name, parameter.abs() > parameter.abs().median())
                parameter.mul_(mask)


BETWEEN: Final[Mapping[str, Callable[[RecipeModel, int, dict[str, Tensor]], None]]] = {
    "": lambda model, step, kept: None,
    "restored": _restore,
    "averaged": partial(_average, swaps=False),
    "average swapped in and back": partial(_average, swaps=True),
    "drawn anew": _draw_anew,
    "clipped": _clip,
    "pruned": _prune,
}
"""Name -> what happens to the weights between two steps (model, step, what is kept)."""
