"""watch(): record a training loop, optionally with a progress line in the terminal."""

import math
import os
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from gatdiag.errors import InputError
from gatdiag.laws import Laws
from gatdiag.recorder import Every, Metrics, Patterns, Recorder, Settings, Status, Tracker, select
from gatdiag.recorder.settings import as_optimizer_list, make_layer_filter, parse_best

_BARS = "▁▂▃▄▅▆▇█"
_DECADES = 7.0  # relative gradient norms from 1e-7, about the precision of float32, to 1
_MAX_BARS = 40
_MIN_SECONDS = 0.1  # between two updates


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
    laws: bool | Laws = True,
    warn: bool = True,
    progress: bool = False,
    tracker: Tracker | None = None,
    enabled: bool = True,
) -> Recorder:
    """Record a training loop, which runs unchanged, to a run folder.

    Weights, losses and random numbers are bit for bit those of the unwatched loop. The model is not modified: it can be
    pickled, deep-copied, compiled and watched again, and its copies are not recorded. If recording fails, it raises one
    warning, and training continues. Evaluation under `torch.no_grad()` is not recorded, nor are forward passes that
    receive no gradient, if the step has another one.

    A step is one of a `torch.optim.Optimizer` that holds parameters of the model. Row t of each table belongs to the
    parameters before step t and to the gradients that step used: after accumulation and `clip_grad_norm_`, and
    unscaled. Optimizers that step one after the other, without a forward or backward pass in between, share a step.
    Optimizers that step inside the backward pass are not recorded, because the gradients never all exist at the same
    time. If two losses share a forward pass and each has its own step, the second step has no rows of layers. If
    several backward passes go through one forward pass, dLoss/dX is that of the last one. If no optimizer of the model
    makes steps, those of an optimizer whose own parameters get no gradients are recorded, with a warning.

    Layers inside `torch.compile` cannot be read; parameters, gradients and laws are recorded. Steps inside a compiled
    function are not seen. Forward passes in other threads than the one that trains are not recorded. If a layer returns
    a dict, such as one entry for each node type, the first entry is recorded. If parameters are replaced, recording of
    the model ends with a warning: call `watch` again. Parameters that are added later are not recorded, nor are those
    passed to `torch.func.functional_call`.

    Args:
        model: Any module, also wrapped by `torch.compile` or data parallelism. Its conservation laws are found once, at
            the first step, from the operations of the training's own forward passes. If training calls parts of the
            model (`encode` and `decode`, the layers in a `training_step`), what each call returns counts as fixed, so
            some laws may be missed. Laws that the first gradients violate are not recorded, as with a penalty on
            weights in the loss. For a LightningModule, the values of `self.log` are recorded, too.
        folder: Where the run is written, from the first step on; `gatdiag.run` documents the format. See `overwrite`.
        every: Which steps are recorded. "auto": the first thirty, and then at least one in each tenth of the run,
            whatever its length and the cost; more as `budget` allows, which is every step until recording has taken
            about 1.5 s, and then ever fewer until 5% of the training time are kept. That includes expensive quantities,
            but not the first step, with the search for laws. A number k: steps 0, k, 2k, ... "log": densely early,
            sparsely later. Or a function of the step. Logged values are kept for every step, and NaN is looked for. If
            a step takes a millisecond or two, noticing and logging steps alone exceeds the budget.
        metrics: "fast", "standard" or "full", or names of groups (`gatdiag.recorder.GROUPS`) and columns. "standard"
            records everything except cosine distances: ranks and energies at every 100th record, spectral norms at
            every 50th, quantiles of change and attention entropy at every 10th, everything else at each. "fast" records
            layers at every 10th record, and no laws, changes or expensive quantities.
        budget: Share of the training time that recording may take, such as 0.03. The default is 0.05 with
            `every="auto"`, and no limit otherwise. The share of the first minute may be spent at once (3 s with 5%),
            and is within the share after two minutes. Steps that would exceed it are not recorded, so which steps are
            recorded depends on the clock.
        optimizer: Count only the steps of this optimizer, or of these.
        scaler: The gradient scaler, so that gradients of layer outputs are unscaled, too. A `torch.amp.GradScaler` is
            found automatically when its `step` calls the optimizer; any other scaler with `is_enabled` and `get_scale`
            must be passed.
        best: Name of a logged scalar; when it improves, the parameters are saved as `best.safetensors`. Smaller is
            better if the name contains loss, error, perplexity, mse or mae, otherwise larger; "max:..." and "min:..."
            override this.
        overwrite: Delete the run in the folder. By default, if the folder holds a run, a numbered sibling is written
            (runs/gat10-2 for runs/gat10), and one line on standard error names it, as `recorder.folder` does.
        resume: True: continue after the last step of the run in the folder. A number: continue at that step; later rows
            are superseded. The model must have the recorded layers with the same shapes.
        include: Shell patterns of the names of layers to record, such as "convs.*". The table `steps` is of the whole
            model in any case.
        exclude: Shell patterns of the names of layers not to record.
        name: Name of the run in reports; the folder's name by default.
        laws: Find and record the conservation laws. False: do not. Or the laws, from `gatdiag.find_laws`, where they
            cannot be found while training, as in compiled code.
        warn: Warn of training errors that are certain, once each and in one line, as a `TrainingWarning`: the first NaN
            or infinity, with its cause; and after 1, 10 and 100 recorded steps, that no gradient reaches the first
            layer or any layer, that parameters are not in an optimizer, that gradients are not cleared, or that a loss
            on logits gets probabilities. These are findings of `gatdiag.diagnose`. Training continues even if warnings
            are errors; they are printed to standard error then.
        progress: Show one line in the terminal: step, loss, and for each layer a bar for the logarithm of its gradient
            relative to its weights, from ▁ for 1e-7 to █ for 1; "·" is zero, "-" no gradient, "!" NaN.
        tracker: Called with a `gatdiag.recorder.Update`, in the thread that trains, about once in two seconds and at
            the end: a few scalars of each step that was written since, and at the end the diagnosis. So it should hand
            them on rather than wait. `gatdiag.integrations` has those of TensorBoard, W&B and MLflow. If it fails,
            there is one warning, and it is not called again.
        enabled: False disables recording, as the environment variable GATDIAG_DISABLE=1 does. In distributed training
            only the first process records, which is decided at the first step: gradients are those after reduction, and
            layers those of its own batches. What FSDP and tensor parallelism distribute is left out, with a note.

    Returns:
        The recorder, which is already recording. Used as a context manager, it ends with the context; otherwise it
        records until `recorder.finish()`, the exit of the interpreter, or the next call of `watch` with the same model,
        even if it is not assigned to a variable. `recorder.log(loss=loss)` or `recorder.log({"loss": loss})` logs
        scalars, `recorder.step()` announces a step of an optimizer that is not a `torch.optim.Optimizer`, and
        `recorder.diagnosis()` diagnoses the training so far.

    Raises:
        InputError: An argument is wrong, the folder holds other files than a run, or the run to resume is of another
            model or is being recorded.
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
    if not isinstance(laws, bool | Laws):
        raise InputError(f"laws= expects True, False or the laws of gatdiag.find_laws, got {laws!r:.60}")
    settings = Settings(
        selection=select(metrics, laws=laws is not False),
        laws=laws if isinstance(laws, Laws) else None,
        every=every,
        budget=budget,
        optimizers=as_optimizer_list(optimizer),
        scaler=scaler,
        best=None if best is None else parse_best(best),
        layer_filter=make_layer_filter(include, exclude),
        name=name,
        overwrite=overwrite,
        numbered=not overwrite and resume is False,
        resume=resume,
        warn=warn,
        tracker=tracker,
    )
    observer = ProgressLine() if progress else None
    return Recorder(model, folder, settings, enabled=enabled, observer=observer).start()


class ProgressLine:
    """Shows the last status in one line, at most ten times a second, if the console is a terminal.

    Args:
        console: A rich console; None: standard error.
    """

    def __init__(self, console: Any = None) -> None:
        state = random.getstate()  # importing rich draws random numbers
        from rich import live, text  # noqa: F401
        from rich.console import Console

        random.setstate(state)
        self._console = console or Console(stderr=True)
        self._live: Any = None
        self._shown = 0.0

    def __call__(self, status: Status | None) -> None:
        """Show the status; None: the recording has ended."""
        from rich.live import Live
        from rich.text import Text

        if status is None:
            if self._live is not None:
                self._live.stop()
                self._live = None
            return
        if not self._console.is_terminal or time.monotonic() - self._shown < _MIN_SECONDS:
            return
        self._shown = time.monotonic()
        text = Text(format_status(status), overflow="ellipsis", no_wrap=True)
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        self._live.update(text, refresh=True)


def format_status(status: Status) -> str:
    """Format a status, with a bar for each layer, from ▁ for a relative gradient norm of 1e-7 to █ for 1.

    "·" is a gradient of zero, "-" no gradient; after the first NaN or infinity of the training, "!" is one of these.

    Example:
        >>> format_status(Status(7, {"loss": 1.386}, ("0", "1"), (1e-7, 0.5), None))
        'step 7  loss 1.386  gradient/weight by layer ▁█'
    """
    parts = [f"step {status.step}"]
    parts += [f"{name} {value:.4g}" for name, value in _scalars(status)]
    if status.relative_gradient_norms:
        has_non_finite = status.first_non_finite is not None
        bars = "".join(_bar(value, has_non_finite) for value in _downsample(status.relative_gradient_norms))
        parts.append(f"gradient/weight by layer {bars}")
    if (first := status.first_non_finite) is not None:
        parts.append(f"{first.kind} since step {first.step} in the {first.where} of {first.layer}")
    return "  ".join(parts)


def _scalars(status: Status) -> list[tuple[str, float]]:
    """Up to four logged scalars, the loss first."""
    measured = ("time", "gradient_norm", "gradient_norm_before_clipping")
    logged = [
        (name, value)
        for name, value in status.scalars.items()
        if name not in measured and not name.startswith("learning_rate")
    ]
    return sorted(logged, key=lambda item: item[0] != "loss")[:4]


def _downsample(values: Sequence[float]) -> list[float]:
    """The smallest value of each group of layers if there are more layers than bars, because stuck layers matter."""
    size = math.ceil(len(values) / _MAX_BARS)
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    return [min((value for value in group if not math.isnan(value)), default=math.nan) for group in groups]


def _bar(value: float, has_non_finite: bool) -> str:
    if not math.isfinite(value) and has_non_finite:  # otherwise infinite relative to weights of zero
        return "!"
    if math.isnan(value):
        return "-"
    if value == 0:
        return "·"
    height = (math.log10(min(value, 1.0)) + _DECADES) / _DECADES
    return _BARS[min(len(_BARS) - 1, max(0, int(height * len(_BARS))))]
