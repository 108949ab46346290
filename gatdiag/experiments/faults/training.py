"""Recipe -> a training, watched, as a user would write it; and how well it went by a yardstick of its own."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gatdiag.experiments.faults.network import RecipeModel, make_network
from gatdiag.experiments.faults.recipe import Recipe
from gatdiag.experiments.faults.tasks import Task, make_task
from gatdiag.experiments.training import evaluated
from gatdiag.run import load
from gatdiag.watching import watch

_EVALUATED: Final = 5  # every so many steps


@dataclass(frozen=True)
class Outcome:
    """How a training went, in the true labels and the usual loss, whatever it minimized.

    Attributes:
        train: Share of the loss of the best constant prediction that was removed, on the examples for training: 1 is
            perfect, 0 is no better than a constant, or not finite.
        val: The same on the other examples.
        drift: How far the conserved quantities went: sum |c_end - c_start| over laws; NaN without laws.
    """

    train: float
    val: float
    drift: float


def train(recipe: Recipe, folder: Path) -> Outcome:
    """Train, watched: the run is written into the folder. Torch's global random state is as it was."""
    with torch.random.fork_rng(devices=[]):
        training = Training(recipe)
        torch.manual_seed(recipe.seed)
        model = training.make()
        steps = enumerate(training.steps(model, training.optimizer(model)))
        for part in range(1 + recipe.resumed):
            # at each step, and with all the time there is for laws: nothing depends on the clock
            again: dict[str, Any] = {"resume": True} if part else {"overwrite": True}
            with watch(model, folder, every=1, law_search_seconds=None, **again) as recorder:
                for number, scalars in steps:
                    recorder.log(scalars)
                    if recipe.resumed and not part and number == recipe.steps // 2:
                        break
        return training.outcome(model, _drift(folder))


class Training:
    """What a recipe describes: what there is to learn, a model, its optimizer, and the steps of a training.

    The model and its steps draw from torch's global random state.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.task = make_task(recipe)

    def make(self) -> RecipeModel:
        """A model with fresh weights."""
        return make_network(self.recipe, self.task.x.shape[1], self.task.out_channels)

    def optimizer(self, model: RecipeModel) -> Optimizer:
        """The optimizer of a model."""
        parameters, recipe = PARTS[self.recipe.optimizes](model), self.recipe
        return OPTIMIZERS[recipe.optimizer](parameters, lr=recipe.lr, weight_decay=recipe.decay)

    def loss(self, out: Tensor, y: Tensor, model: RecipeModel, number: int = 0) -> Tensor:
        """What a step minimizes, of the output and the labels of its examples."""
        return LOSSES[self.recipe.loss](out, y, model, number)

    def steps(self, model: RecipeModel, optimizer: Optimizer) -> Iterator[dict[str, float]]:
        """Make the steps of a training; yields what is logged at each."""
        recipe, generator = self.recipe, torch.Generator().manual_seed(self.recipe.seed)
        scheduler = LambdaLR(optimizer, lambda number: _FACTORS[recipe.schedule](number, recipe.steps))
        for number in range(recipe.steps):
            examples = self.task.draw(recipe.batch, generator)
            if recipe.clears:
                optimizer.zero_grad()
            loss = self.loss(model(*examples.args)[examples.rows], examples.y, model, number)
            loss.backward()
            if recipe.clip:
                nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            DISTURBANCES[recipe.disturb](model, number)
            optimizer.step()
            scheduler.step()
            scalars = {"loss": loss.item()}
            if number % _EVALUATED == 0 or number == recipe.steps - 1:
                for is_training in (True, False):
                    scalars |= _scores(model, self.task, is_training=is_training)
            yield scalars

    def outcome(self, model: RecipeModel, drift: float = math.nan) -> Outcome:
        """How well a model does now."""
        on_train, on_val = (_progress(model, self.task, is_training=is_training) for is_training in (True, False))
        return Outcome(on_train, on_val, drift)


OPTIMIZERS: Final[Mapping[str, Callable[..., Optimizer]]] = MappingProxyType(
    {
        "SGD": torch.optim.SGD,
        "momentum": partial(torch.optim.SGD, momentum=0.9),
        "Nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
        "RMSprop": torch.optim.RMSprop,
        "Adam": torch.optim.Adam,
        "AdamW": torch.optim.AdamW,
    }
)

_FACTORS: Final[Mapping[str, Callable[[int, int], float]]] = MappingProxyType(
    {
        "constant": lambda number, steps: 1.0,
        "warm-up": lambda number, steps: min(1.0, (number + 1) / (0.2 * steps)),
        "cosine": lambda number, steps: 0.5 * (1 + math.cos(math.pi * number / steps)),
        "drop": lambda number, steps: 1.0 if number < steps / 2 else 0.1,
        "collapse": lambda number, steps: 0.7**number,
    }
)
"""Schedule -> (step, steps) -> factor of the learning rate."""


# --- how well it went -------------------------------------------------------------------------------------------------


def _usual(out: Tensor, y: Tensor) -> Tensor:
    if y.dim() == 1:
        return F.cross_entropy(out, y)
    return F.mse_loss(out, y) if y.min() < 0 else F.binary_cross_entropy_with_logits(out, y)


def _evaluated(model: RecipeModel, task: Task, *, is_training: bool) -> tuple[Tensor, Tensor]:
    """Output and labels in evaluation mode, before what the model does to its logits."""
    examples = task.whole(is_training)
    output, model.output = model.output, lambda out: out
    try:
        return evaluated(model, examples.args)[examples.rows], examples.y
    finally:
        model.output = output


def _scores(model: RecipeModel, task: Task, *, is_training: bool) -> dict[str, float]:
    """Loss, and accuracy where there are classes, as a training loop logs them."""
    out, y = _evaluated(model, task, is_training=is_training)
    scores = {} if is_training else {"val_loss": _usual(out, y).item()}
    if y.dim() == 1:
        scores["train_accuracy" if is_training else "val_accuracy"] = (out.argmax(1) == y).float().mean().item()
    return scores


def _progress(model: RecipeModel, task: Task, *, is_training: bool) -> float:
    out, y = _evaluated(model, task, is_training=is_training)
    loss = _usual(out, y).item()
    if y.dim() == 1:
        share = task.y.bincount() / len(task.y)
        constant = -(share * share.clamp(min=1e-12).log()).sum().item()
    else:
        constant = 1.0 if task.y.min() < 0 else math.log(2)
    progress = 1 - loss / constant
    return max(progress, 0.0) if math.isfinite(progress) else 0.0


def _drift(folder: Path) -> float:
    neurons = load(folder).neurons
    if not len(neurons):
        return math.nan
    values = neurons.pivot_table(index="step", columns=["layer", "law"], values="c", observed=True)
    return float((values.iloc[-1] - values.iloc[0]).abs().sum())


# --- what a training does, rightly or wrongly -------------------------------------------------------------------------


def _before_the_model_was_rebuilt(model: RecipeModel) -> list[nn.Parameter]:
    """All but the last layer is replaced after the optimizer was made."""
    parameters = list(model.parameters())
    model.encoder.convs = nn.ModuleList([*copy.deepcopy(model.encoder.convs[:-1]), model.encoder.convs[-1]])
    return parameters


def _without_those_in_a_list(model: RecipeModel) -> list[nn.Parameter]:
    """Layers in a plain list are not registered: the model does not know their parameters."""
    convs = list(model.encoder.convs)
    model.encoder.last = convs.pop()
    del model.encoder.convs
    object.__setattr__(model.encoder, "convs", [*convs, model.encoder.last])
    return list(model.parameters())


PARTS: Final[Mapping[str, Callable[[RecipeModel], list[nn.Parameter]]]] = MappingProxyType(
    {
        "all": lambda model: list(model.parameters()),
        "last": lambda model: list((model.head or model.encoder.convs[-1]).parameters()),
        "biases": lambda model: [p for name, p in model.named_parameters() if name.endswith("bias")],
        "of a copy": lambda model: list(copy.deepcopy(model).parameters()),
        "before rebuilding": _before_the_model_was_rebuilt,
        "layers in a list": _without_those_in_a_list,
    }
)
"""Which parameters the optimizer is given."""

_Loss = Callable[[Tensor, Tensor, RecipeModel, int], Tensor]


def _penalized(out: Tensor, y: Tensor, model: RecipeModel, number: int) -> Tensor:
    """From a fifth of a hundred steps on, a penalty on the first layer."""
    penalty = sum(parameter.square().sum() for parameter in model.encoder.convs[0].parameters())
    return _usual(out, y) + (0.01 * penalty if number >= 20 else 0.0)


def _nobody(out: Tensor, y: Tensor, model: RecipeModel, number: int) -> Tensor:
    """A mask in which there is no example."""
    mask = torch.zeros(len(y), dtype=torch.bool)
    return F.cross_entropy(out[mask], y[mask], reduction="sum")


LOSSES: Final[Mapping[str, _Loss]] = MappingProxyType(
    {
        "usual": lambda out, y, model, number: _usual(out, y),
        "times zero": lambda out, y, model, number: 0.0 * _usual(out, y),
        "empty mask": _nobody,
        "negative log-likelihood": lambda out, y, model, number: F.nll_loss(out, y),
        "penalized later": _penalized,
        "label smoothing": lambda out, y, model, number: F.cross_entropy(out, y, label_smoothing=0.1),
        "summed": lambda out, y, model, number: _usual(out, y) * len(y),
    }
)
"""(output, labels, model, step) -> what the training minimizes."""


def _scaled_gradient(model: RecipeModel, number: int) -> None:
    for parameter in model.encoder.convs[0].parameters() if number >= 20 else ():
        assert parameter.grad is not None
        parameter.grad[::2] *= 3.0


def _noisy_gradient(model: RecipeModel, number: int) -> None:
    for parameter in model.parameters() if number >= 20 else ():
        assert parameter.grad is not None
        parameter.grad += 0.3 * parameter.grad.norm() * torch.randn_like(parameter) / parameter.numel() ** 0.5


DISTURBANCES: Final[Mapping[str, Callable[[RecipeModel, int], None]]] = MappingProxyType(
    {
        "": lambda model, number: None,
        "gradient scaled later": _scaled_gradient,
        "gradient noisy later": _noisy_gradient,
        "values clipped at 1e-5": lambda model, number: nn.utils.clip_grad_value_(model.parameters(), 1e-5),
    }
)
"""What happens to (model, step) between the backward pass and the update."""
