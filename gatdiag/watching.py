"""watch(): record a training loop; with a line in the terminal, if it is wanted."""

import math
import os
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from gatdiag.recorder import Every, Metrics, Patterns, Recorder, Settings, Status, select
from gatdiag.recorder.settings import as_optimizer_list, make_layer_filter, parse_best

_BARS = "▁▂▃▄▅▆▇█"
_DECADES = 7.0  # relative gradient norms from 10^-7, which float32 can no longer add, to 1
_MOST_LAYERS = 40
_SECONDS = 0.1


def watch(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    every: Every = "auto",
    metrics: Metrics = "standard",
    budget: float | None = None,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    scaler: Any = None,
    best: str | None = None,
    overwrite: bool = False,
    resume: bool | int = False,
    include: Patterns = None,
    exclude: Patterns = None,
    name: str | None = None,
    law_search_seconds: float | None = 20.0,
    warn: bool = True,
    progress: bool = False,
    enabled: bool = True,
) -> Recorder:
    """Record a training loop: the loop runs unchanged, and the run folder fills.

    Weights, losses and random numbers are bit for bit those of the unwatched loop. The model is not modified: it
    can be pickled, deep-copied, compiled and watched again, and its copies write nothing. What fails inside recording
    raises one warning, and training goes on. Evaluation under `torch.no_grad()` is not recorded, nor are forward passes
    that no gradient comes back to, if the step has another one.

    A step is what an optimizer of torch's makes that holds parameters of the model; row t of each table belongs to the
    parameters before step t, and to the gradients that step used: after accumulation, after `clip_grad_norm_`, and
    unscaled. Optimizers that follow each other without a forward or a backward pass between them make one step; of
    those that step inside the backward pass nothing is recorded, for all gradients never exist together. Where two
    losses share a forward pass and each has its own step, the second has no rows of layers. Where several backward
    passes go through one forward pass before a step, dLoss/dX is that of the last. If no optimizer that holds
    parameters of the model makes steps, those of one that was meant to (one whose own parameters the training gives no
    gradients) are recorded, with a warning.

    Layers inside `torch.compile` cannot be read; parameters, gradients and laws are recorded all the same. Of a layer
    that returns a dict, such as one entry per type of node, the first entry is recorded. Where parameters are
    replaced by others, one warning says so and the recording of the model ends: watch it anew; those that are added
    are not recorded, with a warning; those that `torch.func.functional_call` lends are not looked at.

    Args:
        model: Any module, also wrapped by `torch.compile` or data parallelism. Its conservation laws are found at the
            first training forward, from its inputs, once; where training calls parts of it instead (`training_step`,
            `encode` and `decode`), just before the first backward pass, from what it has computed. Laws that the first
            gradients disobey are not recorded: where a penalty on weights is in the loss, for instance. Of a
            LightningModule what it logs with `self.log` is recorded, and its loss as `loss`.
        folder: Where the run is written; see `gatdiag.run` for what is in it.
        every: "auto": every step until recording has cost 3 s in all, and then as often as keeps it within 5 % of the
            training's time (`budget`), the steps evenly spread. What is expensive is part of the account, the search
            for laws in the first step with at most 2.5 of these 3 s. Or a number: steps 0, k, 2k, ...; or "log":
            densely early, sparsely later; or a function of the step. `meta.json` says which it was, and the rows are
            those of the steps that were recorded; what is logged is kept of every step. Where a step takes a
            millisecond or less, noticing and logging each one costs more than the share by itself, and "auto" records
            rarely.
        metrics: "fast", "standard" or "full", or names of groups (`gatdiag.recorder.GROUPS`) and columns. "standard"
            records everything but cosine distances: ranks and energies at every hundredth record, spectral norms at
            every fiftieth, quantiles of change and attention entropy at every tenth, all else at each. "fast" leaves
            laws, changes and all that is expensive out, and has layers at every tenth.
        budget: Share of training time, such as 0.03, that recording may take. It is 0.05 with `every="auto"`; with
            any other `every` there is none if it is not given, and those of its steps are left out that would take
            more. Which ones depends on the clock.
        optimizer: Count only the steps of this optimizer, or of these.
        scaler: What scales the loss, so that gradients of layer outputs are unscaled, too. A `torch.amp.GradScaler`
            is noticed by itself when its `step` calls the optimizer; any other scaler with `is_enabled` and
            `get_scale` has to be given.
        best: Name of a logged scalar; when it improves, the parameters are kept as `best.safetensors`. Smaller is
            better if its name holds loss, error, perplexity, mse or mae; "max:..." and "min:..." say it themselves.
        overwrite: Delete the run that is in the folder. Without it, a folder that holds anything is refused.
        resume: True: go on after the last step of the run in the folder. A number: go on at that step; later rows are
            superseded. The model must have the recorded layers, in the recorded shapes.
        include: Shell patterns of layer names ("convs.*"); only these layers are recorded.
        exclude: Shell patterns of layer names that are not.
        name: What the run is called in reports; the folder's name if left out.
        law_search_seconds: How long the first step may look for laws. After that training goes on without them, one
            warning says so, and all else is recorded. None: no limit. 0: laws are not looked for.
        warn: Say in one line, as a `TrainingWarning`, what is certain to be wrong with the training: the first NaN or
            infinity at its step, with what led to it; and after 1, 10 and 100 recorded steps, if no gradient reaches
            the first layer or none at all arrives, if parameters are in no optimizer, if gradients are not cleared, if
            probabilities are given to a loss on logits. It is what `gatdiag.diagnose` finds, each said once. Training
            goes on, even where warnings are errors: standard error has to do then.
        progress: Show one line in the terminal: step, loss, and for each layer a bar whose height is the logarithm of
            its gradient relative to its weights, from ▁ for 1e-7 to █ for 1; "·" is zero, "-" no gradient, "!" NaN.
        enabled: False makes all of it a no-op, as the environment variable GATDIAG_DISABLE=1 does. In distributed
            training only the first process records.

    Returns:
        The recorder, which records already. As a context manager it ends with the context; without one it records until
        `recorder.finish()` or the exit of the interpreter, whether the variable is kept or not, or until the model is
        watched again. `recorder.log(loss=loss)` or `recorder.log({"loss": loss})` notes scalars, `recorder.step()`
        announces the step of an optimizer that is not torch's, and `recorder.diagnosis()` says what is wrong so far.

    Raises:
        InputError: An argument is wrong, or the folder holds something, is being recorded, or has a run of another
            model.
        ModelError: The model has no parameters.

    Example:
        >>> import tempfile, torch
        >>> from torch import nn
        >>> model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(5, 4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> folder = tempfile.mkdtemp() + "/run"
        >>> with watch(model, folder) as recorder:
        ...     for _ in range(3):
        ...         loss = model(x).square().mean()
        ...         loss.backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        ...         recorder.log(loss=loss)
        >>> import gatdiag
        >>> len(gatdiag.load(folder).steps)
        3
        >>> recorder = watch(model, folder, resume=True)  # the same without a context
        >>> model(x).square().mean().backward()
        >>> optimizer.step()
        >>> recorder.finish()
        >>> len(gatdiag.load(folder).steps)
        4
    """
    settings = Settings(
        selection=select(metrics, law_search_seconds),
        every=every,
        budget=budget,
        optimizers=as_optimizer_list(optimizer),
        scaler=scaler,
        best=None if best is None else parse_best(best),
        keeps=make_layer_filter(include, exclude),
        name=name,
        overwrite=overwrite,
        resume=resume,
        warn=warn,
    )
    observer = ProgressLine() if progress else None
    return Recorder(model, folder, settings, enabled=enabled, observer=observer).start()


class ProgressLine:
    """Shows the last status in one line, ten times a second at most; on a terminal only.

    Args:
        console: Where; None: standard error.
    """

    def __init__(self, console: Any = None) -> None:
        state = random.getstate()  # which rich draws from while it is imported
        from rich import live, text  # noqa: F401
        from rich.console import Console

        random.setstate(state)
        self._console = console or Console(stderr=True)
        self._live: Any = None
        self._shown = 0.0

    def __call__(self, status: Status | None) -> None:
        """Show it; None: the recording has ended."""
        from rich.live import Live
        from rich.text import Text

        if status is None:
            if self._live is not None:
                self._live.stop()
                self._live = None
            return
        if not self._console.is_terminal or time.monotonic() - self._shown < _SECONDS:
            return
        self._shown = time.monotonic()
        text = Text(line(status), overflow="ellipsis", no_wrap=True)
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        self._live.update(text, refresh=True)


def line(status: Status) -> str:
    """The status in words: a bar for each layer, from ▁ for a relative gradient norm of 1e-7 to █ for 1.

    "·" is a gradient of zero, "-" none; from the first NaN or infinity of the training on, "!" is one.

    Example:
        >>> line(Status(7, {"loss": 1.386}, ("0", "1"), (1e-7, 0.5), None))
        'step 7  loss 1.386  gradient/weight by layer ▁█'
    """
    parts = [f"step {status.step}"]
    parts += [f"{name} {value:.4g}" for name, value in _scalars(status)]
    if status.relative_gradient_norms:
        broken = status.first_non_finite is not None
        bars = "".join(_bar(value, broken) for value in _thinned(status.relative_gradient_norms))
        parts.append(f"gradient/weight by layer {bars}")
    if (bad := status.first_non_finite) is not None:
        parts.append(f"{bad.kind} since step {bad.step} in the {bad.where} of {bad.layer}")
    return "  ".join(parts)


def _scalars(status: Status) -> list[tuple[str, float]]:
    own = ("time", "gradient_norm", "gradient_norm_before_clipping")
    logged = [
        (name, value)
        for name, value in status.scalars.items()
        if name not in own and not name.startswith("learning_rate")
    ]
    return sorted(logged, key=lambda item: item[0] != "loss")[:4]


def _thinned(values: Sequence[float]) -> list[float]:
    """The smallest of each group, if there are too many for a line: it is the stuck layers that matter."""
    size = math.ceil(len(values) / _MOST_LAYERS)
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    return [min((value for value in group if not math.isnan(value)), default=math.nan) for group in groups]


def _bar(value: float, broken: bool) -> str:
    """Relative to weights of zero, a gradient is infinite though nothing is broken."""
    if not math.isfinite(value) and broken:
        return "!"
    if math.isnan(value):
        return "-"
    if value == 0:
        return "·"
    height = (math.log10(min(value, 1.0)) + _DECADES) / _DECADES
    return _BARS[min(len(_BARS) - 1, max(0, int(height * len(_BARS))))]
