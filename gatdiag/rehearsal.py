"""preflight(): a copy of the model makes the first steps of its training, which are diagnosed."""

import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gatdiag.diagnosis import CAUSES, Diagnosis, run_checks
from gatdiag.diagnosis.facts import Facts
from gatdiag.errors import InputError, ModelError
from gatdiag.leakage import dependence_on_future
from gatdiag.recorder import Recorder, RecordingWarning, Settings, select
from gatdiag.recorder.ranks import is_first_process
from gatdiag.recorder.settings import as_optimizer_list
from gatdiag.run import load
from gatdiag.structure.copying import map_tensors
from gatdiag.structure.isolation import preserve_random_state
from gatdiag.structure.mixing import find_mixing
from gatdiag.structure.optimizers import parameters_of
from gatdiag.structure.replica import copy_model, unwrap
from gatdiag.structure.tensors import all_tensors, graph_leaves

_STEPS: Final = 10
_PROBE: Final = 0.01  # of a parameter's norm: a step without an optimizer
_OF_ZEROS: Final = 1e-3  # root mean square of such a step of parameters that are zero
_RECORDED: Final = 3  # steps with all tables; the others have the loss only
_NOT_RECORDED: Final = (
    "nothing is recorded in this process (GATDIAG_DISABLE, or not the first one of a distributed training)"
)

Loss = Callable[[Any], Tensor]


def preflight(
    model: nn.Module,
    *args: Any,
    loss: Loss,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    laws: bool = True,
    **kwargs: Any,
) -> Diagnosis:
    """Before training: will this model train with these inputs, this loss and this optimizer, and if not, why?

    A copy of the model makes the first ten steps of a training on these inputs, with a copy of the optimizer or,
    without one, by 1% of each parameter's norm down the gradient. They are diagnosed by the checks of
    `gatdiag.diagnose`. The model, its buffers and gradients, the optimizer, the inputs and all
    random states stay bit for bit as they are.

    Args:
        model: Any module, also wrapped by `torch.compile` or data parallelism. It is judged in training mode.
        args: Positional inputs of its forward pass, as the training loop gives them: all, or the first batch.
        loss: Function from the model's output to the loss, a tensor with one element. Labels and masks are its own;
            penalties on the weights of the model itself have no effect on the copy's gradients.
        optimizer: The optimizer of the training, or several. Without one, neither the learning rate nor the list of
            its parameters is judged.
        laws: Find the conservation laws, too.
        kwargs: Keyword inputs of the forward pass.

    Returns:
        The diagnosis. `verdict` is the reason why the model will not train, of severity "error" or, if that is less
        certain, "warning"; its code is "healthy" if nothing was found that would keep it from training. Causes that
        show only in training (overfitting, a learning rate that is too small, a later NaN) are in `skipped`, or not
        found. `state` is "untrained".

    Raises:
        InputError: The loss is not a tensor with one element, or an optimizer or the inputs cannot be used.
        ModelError: The model is lazy, has no parameters or no values (the meta device), or cannot be copied.
            Exceptions of the model's forward pass, the loss and the optimizer are not wrapped.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(dim=1))
        >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
        >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        >>> loss = torch.nn.functional.cross_entropy  # which expects logits
        >>> diagnosis = preflight(model, x, loss=lambda out: loss(out, y), optimizer=optimizer)
        >>> diagnosis.verdict.code
        'output-softmax-twice'
        >>> preflight(model[:3], x, loss=lambda out: loss(out, y), optimizer=optimizer).verdict.code
        'healthy'
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"preflight() expects a torch.nn.Module, got {type(model).__name__}")
    if not callable(loss):
        raise InputError(f"loss= expects a function of the model's output, got {type(loss).__name__}")
    if any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()]):
        raise ModelError(
            "The model is on the meta device and has no values. Call model.to_empty(device=...) and initialize it."
        )
    settings = Settings(select("standard", laws=laws), every=lambda step: step < _RECORDED, name="preflight")
    optimizers = as_optimizer_list(optimizer) or []
    with (
        tempfile.TemporaryDirectory(prefix="gatdiag-") as folder,
        _isolated_copy(model, args, kwargs, optimizers) as copied,
    ):
        recorder = Recorder(copied.model, Path(folder) / "run", settings)
        if not recorder.enabled or not is_first_process():
            return Diagnosis(skipped=_all_skipped(), reason=_NOT_RECORDED)
        future = _look_for_leakage(copied, loss)
        with recorder:
            train_copy(copied, loss, recorder)
        mixing = _find_mixing(copied)
        run = load(recorder.folder)
        if not len(run.parameters):
            notes = "; ".join(run.meta.get("notes") or []) or "no step was recorded"
            raise ModelError(f"Nothing could be measured in the first steps: {notes}")
        return run_checks(Facts(run, is_preflight=True, mixing=mixing, dependence_on_future=future))


def _all_skipped() -> dict[str, str]:
    return {code: _NOT_RECORDED for code, one in CAUSES.items() if one.check is not None}


@dataclass(frozen=True)
class _Copy:
    """Copies of everything that is given to `preflight`."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    optimizers: list[Optimizer]

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor that may get a gradient."""
        held = parameters_of(*self.optimizers).values()
        return [*self.model.parameters(), *held, *all_tensors((self.args, self.kwargs))]


@contextmanager
def _isolated_copy(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], optimizers: list[Optimizer]
) -> Iterator[_Copy]:
    """Copy everything, with gradients enabled; restore random states afterwards."""
    model = unwrap(model)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        copied_model, states = copy_model(model, [*map(_optimizer_state, optimizers)], args, kwargs)
        try:
            args, kwargs = map_tensors((args, kwargs), lambda x: x.detach().clone().requires_grad_(x.requires_grad))
        except Exception as error:
            raise InputError(
                f"The inputs must be copied before the model runs on them, and that failed with "
                f"{type(error).__name__}: {error}. Give tensors, graphs, or containers of them."
            ) from error
        if not copied_model.training:
            copied_model.train()
        copied = _Copy(copied_model, args, kwargs, [*map(_restore_optimizer, map(type, optimizers), states)])
        stack.enter_context(preserve_random_state({tensor.device for tensor in copied.tensors}))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RecordingWarning)  # the diagnosis lists what was skipped
        yield copied


def _optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """All attributes of an optimizer but its hooks and what schedulers wrap; its pickled state would be incomplete."""
    return {
        name: value for name, value in vars(optimizer).items() if name != "step" and not name.startswith("_optimizer_")
    }


def _restore_optimizer(kind: type[Optimizer], state: dict[str, Any]) -> Optimizer:
    optimizer = kind.__new__(kind)
    optimizer.__setstate__(state)
    return optimizer


def train_copy(copied: _Copy, loss: Loss, recorder: Recorder) -> None:
    """Make the steps, each with the same random numbers, so that only the updates make them differ.

    Whatever it raises comes from the model, the loss or an optimizer: the recorder contains its own errors.
    """
    devices = {tensor.device for tensor in copied.tensors}
    own = {id(tensor): tensor for tensor in copied.tensors}

    def closure() -> Tensor:
        for optimizer in copied.optimizers:
            optimizer.zero_grad()
        with preserve_random_state(devices):
            value = _check_loss(loss(copied.model(*copied.args, **copied.kwargs)))
            _backward(value, own)
        return value

    for _ in range(_STEPS):
        value = closure()
        if not copied.optimizers:
            with recorder.step():
                _descend(copied.model)
        for optimizer in copied.optimizers:
            optimizer.step(closure) if isinstance(optimizer, torch.optim.LBFGS) else optimizer.step()
        recorder.log(loss=value.detach())


def _find_mixing(copied: _Copy) -> dict[str, Any] | str | None:
    """Whether examples depend on each other in evaluation mode; the reason why that is not known if it raises."""
    try:
        copied.model.eval()
        return find_mixing(copied.model, copied.args, copied.kwargs)
    except Exception as error:  # evaluation may need what training does not
        return f"a pass in evaluation mode failed with {type(error).__name__}: {error}"


def _look_for_leakage(copied: _Copy, loss: Loss) -> float | str | None:
    """See `dependence_on_future`; the reason why that is not known if it raises."""
    try:
        with preserve_random_state({tensor.device for tensor in copied.tensors}):
            return dependence_on_future(copied.model, copied.args, copied.kwargs, loss)
    except Exception as error:  # as in `_find_mixing`
        return f"a pass in evaluation mode failed with {type(error).__name__}: {error}"


def _descend(model: nn.Module) -> None:
    """Move each parameter by 1% of its norm, or a little if it is zero, down the gradient: does the model learn?"""
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None and (size := p.grad.norm()) > 0:
                length = _PROBE * p.norm() if bool(p.any()) else _OF_ZEROS * p.numel() ** 0.5
                p.sub_(p.grad, alpha=float(length / size))


def _check_loss(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
        got = f"shape {tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            f"loss= must return a floating-point tensor with one element, got {got}: average or sum it, and do not "
            "call .item()"
        )
    return value.reshape(())


def _backward(loss: Tensor, own: dict[int, Tensor]) -> None:
    """Backward pass that gives gradients to copies only, as the loss may depend on other tensors of the user."""
    if not loss.requires_grad:
        return  # the diagnosis reports it
    if all(id(leaf) in own for leaf in graph_leaves(loss)):
        loss.backward()
    elif inputs := [tensor for tensor in own.values() if tensor.requires_grad and tensor.is_leaf]:
        torch.autograd.backward(loss, inputs=inputs)
