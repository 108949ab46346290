"""`gatdiag preflight`: before training, will this model train, and if not, why?

The JSON document has the keys ``version`` (1), ``model`` and ``inputs``, as given on the command line, and those of
`gatdiag.diagnosis.Diagnosis.document` (verdict, findings, skipped, state, reason, remarks). NaN and infinity are null.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from traceback import walk_tb
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatdiag.cli.diagnose import exit_with_status, print_diagnosis
from gatdiag.cli.options import (
    DATA_FOLDER,
    AsJson,
    Data,
    Factory,
    FailOn,
    Inputs,
    LearningRate,
    Level,
    Root,
    Transform,
    WeightDecay,
)
from gatdiag.cli.printing import print_json
from gatdiag.errors import GatdiagError, InputError, ModelError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def preflight(
    factory: Factory,
    data: Data = None,
    inputs: Inputs = None,
    root: Root = DATA_FOLDER,
    transform: Transform = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="PACKAGE.MODULE:FUNCTION",
            help="Function of the model's output that returns the loss. Default: cross-entropy on the training nodes "
            "of --data.",
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Class of torch.optim, such as Adam. Without it, no optimizer step is made."),
    ] = None,
    lr: LearningRate = None,
    weight_decay: WeightDecay = None,
    as_json: AsJson = False,
    fail_on: FailOn = Level.error,
) -> None:
    """Predict whether a model will train, and if not, why.

    A copy of the model makes the first training steps, which are diagnosed. Exits with status 0 if every finding is
    less severe than --fail-on, 1 if one is not, 2 if the model or its inputs fail.
    """
    from gatdiag import rehearsal
    from gatdiag.cli.model_case import load_case, load_target

    settings = {name: value for name, value in (("lr", lr), ("weight_decay", weight_decay)) if value is not None}
    if settings and optimizer is None:
        raise InputError("--lr and --weight-decay need an optimizer: give --optimizer, too")
    with redirect_stdout(sys.stderr):
        case = load_case(factory, data, inputs, root, transform=transform)
        loss_function = case.loss if loss is None else load_target(loss)
        if loss_function is None:
            raise InputError("--inputs has no labels: give --loss PACKAGE.MODULE:FUNCTION")
        made = None if optimizer is None else _make_optimizer(optimizer, case.model, settings)
        try:
            diagnosis = rehearsal.preflight(case.model, *case.args, loss=loss_function, optimizer=made, **case.kwargs)
        except GatdiagError:
            raise
        except Exception as error:
            if not any(frame.f_code is rehearsal.train_copy.__code__ for frame, _ in walk_tb(error.__traceback__)):
                raise  # an error of gatdiag's own
            raise ModelError(f"a training step of {factory} raised {type(error).__name__}: {error}") from error
    if as_json:
        print_json({"version": 1, "model": factory, "inputs": case.source, **diagnosis.document()})
    else:
        print_diagnosis(diagnosis, "gatdiag preflight --json")
    exit_with_status([diagnosis], fail_on)


def _make_optimizer(name: str, model: nn.Module, settings: Mapping[str, Any]) -> Optimizer:
    from torch import optim

    kind = next((kind for known, kind in vars(optim).items() if known.lower() == name.lower()), None)
    if not isinstance(kind, type) or not issubclass(kind, optim.Optimizer) or kind is optim.Optimizer:
        raise InputError(f"--optimizer: expected a class of torch.optim, such as SGD or Adam, got {name!r}")
    try:
        made: Optimizer = kind(model.parameters(), **settings)
    except (ValueError, TypeError) as error:
        raise InputError(f"--optimizer {name}: {error}") from error
    return made
