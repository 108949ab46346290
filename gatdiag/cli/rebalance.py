"""`gatdiag rebalance`: a checkpoint -> the same function with weights in balance."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatdiag.cli.inspect import sizes_of
from gatdiag.cli.options import DATA_FOLDER, MODEL_OF_CHECKPOINT, Data, Inputs, Overwrite, Root, Transform
from gatdiag.cli.printing import plain_console, use_option_names
from gatdiag.errors import InputError, ModelError, OptimizerError
from gatdiag.names import join_names, printable, quote

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gatdiag.checkpoint import Checkpoint, ModelCase
    from gatdiag.laws import Exclusion
    from gatdiag.remedies.verification import OutputDifference

_Towards = StrEnum("_Towards", {"c": "c", "relative_gradients": "relative-gradients"})
_Moments = StrEnum("_Moments", ["rescale", "drop"])


def rebalance(
    *,
    source: Annotated[Path, typer.Argument(metavar="IN", help="Saved checkpoint: torch, Lightning or safetensors.")],
    target: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="File to write: the same, with other weights.")
    ] = None,
    model: Annotated[str, MODEL_OF_CHECKPOINT],
    data: Data = None,
    inputs: Inputs = None,
    root: Root = DATA_FOLDER,
    transform: Transform = None,
    towards: Annotated[
        _Towards, typer.Option(help="c: weights in balance; relative-gradients (with --data): gradients.")
    ] = _Towards.c,
    moments: Annotated[
        _Moments, typer.Option(help="The optimizer's state: rescale it along, or drop it.")
    ] = _Moments.rescale,
    in_place: Annotated[bool, typer.Option("--in-place", help="Write over IN itself.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Rescale the weights of a checkpoint until its neurons balance; the function it computes stays the same.

    Epoch, scheduler and all else in the file are carried over. The new file is written whole or not at all; where no
    neuron can be balanced there is none, and the status is 2.
    """
    from gatdiag.checkpoint import open_checkpoint, write_checkpoint
    from gatdiag.cli.model_case import load_case

    if (target is None) != in_place:
        raise InputError("Say where to: the name of a new file, or --in-place for the checkpoint itself")
    drop = moments == "drop"
    checkpoint = open_checkpoint(source)
    if target is not None and target.is_file() and not (overwrite or target.samefile(source)):
        raise InputError(f"{str(target)!r} exists: choose another name or --overwrite")
    if drop:
        checkpoint = replace(checkpoint, optimizer=None)
    with redirect_stdout(sys.stderr):  # the model's own code may print
        case = load_case(model, data, inputs, root, transform, sizes_of(checkpoint))
        weights, scales, lines = _balanced(checkpoint, case, towards)
    written = write_checkpoint(
        checkpoint,
        weights,
        source if target is None else target,
        moments=_moments(checkpoint, scales),
        drop_optimizer=drop,
        in_place=in_place,
    )
    notes = [f"note: {note}" for note in checkpoint.notes]
    if checkpoint.within:
        under = quote(".".join(checkpoint.within))
        notes.append(f"note: Only the weights under {under} are rescaled: averages of them are not")
    for line in (*lines, *_rounded(checkpoint, weights), *notes, f"written: {written}"):
        plain_console().print(printable(line), soft_wrap=True)


def _balanced(
    checkpoint: Checkpoint, case: ModelCase, towards: str
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[str]]:
    """The checkpoint's names -> weights in balance, and what each was multiplied by; what was done, in words."""
    from gatdiag.checkpoint.state_dict import fit, load_weights_
    from gatdiag.remedies import rebalance_

    found = fit(case.model, checkpoint.tensors, checkpoint.keys)
    if found.lacking:
        raise InputError(
            f"The checkpoint does not fit the model ({'; '.join(found.differences(3))}). If shapes follow from the "
            "graph, name the one it was trained on: --data NAME --root FOLDER, or --inputs"
        )
    load_weights_(case.model, found.tensors)
    if towards == "relative-gradients":
        if case.loss is None:
            raise InputError("--towards relative-gradients needs a loss: give --data")
        case.loss(case.model(*case.args, **case.kwargs)).backward()
    options: dict[str, Any] = {"towards": towards, **case.kwargs}
    done = rebalance_(case.model, *case.args, **options)
    if not done.factors:
        reasons = "; ".join(_skipped(done.skipped)) or "the model has no laws"
        raise ModelError(f"No law could be balanced, and nothing was written: {reasons}")
    lines = [
        f"{len(done.factors)} laws balanced: largest |c| {done.c_before:.3g} before, {done.c_after:.1e} after; largest "
        f"imbalance {done.imbalance_before:.3g} before, {done.imbalance_after:.1e} after; factors from "
        f"{min(done.factors.values()):.3g} to {max(done.factors.values()):.3g}",
        *([] if done.double is None else [_moved("in float64", done.double)]),
        _moved("in the model's own precision", done.own),
        f"the model ran on {case.source}",
    ]
    own = {name: parameter.detach() for name, parameter in case.model.named_parameters()}
    names = _all_names(case.model, done.scales, found.names)
    weights, scales = ({each: of[name] for name in names for each in names[name]} for of in (own, done.scales))
    return weights, scales, [*lines, *_skipped(done.skipped)]


def _all_names(model: nn.Module, parameters: Iterable[str], names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Name of a parameter -> all its names in the checkpoint: what a model shares may be saved as copies."""
    every = dict(model.named_parameters(remove_duplicate=False))
    return {
        name: tuple(names[other] for other in every if every[other] is every[name] and other in names)
        for name in parameters
    }


def _moved(when: str, difference: OutputDifference) -> str:
    return f"largest difference of outputs {when}: {difference.absolute:.1e}, relative {difference.relative:.1e}"


def _skipped(exclusions: Sequence[Exclusion]) -> list[str]:
    """Reasons, and how much they keep from being balanced."""
    reasons = Counter(exclusion.reason for exclusion in exclusions)
    return [f"skipped, {count} of them: {use_option_names(reason)}" for reason, count in reasons.most_common()]


def _rounded(checkpoint: Checkpoint, parameters: Mapping[str, Tensor]) -> Iterator[str]:
    """What a coarse number type in the file does to each weight."""
    import torch

    types = {checkpoint.tensors[name].dtype for name in parameters}
    for dtype in sorted((dtype for dtype in types if dtype.is_floating_point and dtype.itemsize < 4), key=str):
        name, error = str(dtype).removeprefix("torch."), torch.finfo(dtype).eps / 2
        yield f"weights are rounded to {name} in the file, each by up to {error:.1e} of its size"


def _moments(checkpoint: Checkpoint, scales: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]] | None:
    """The optimizer's state of the weights that were multiplied, as it follows.

    Raises:
        OptimizerError: What is saved is of no optimizer that is known, or it is not known of which weights.
    """
    from gatdiag.remedies.moments import rescale_moments_

    if checkpoint.optimizer is None:
        return None
    if checkpoint.optimizer.others:
        raise OptimizerError(
            "Several optimizers in the file hold moments, and only those of a single one can follow: drop them, "
            'moments="drop"'
        )
    if not checkpoint.optimizer.matched:
        raise OptimizerError(
            "The file does not tell which of the optimizer's moments belong to which weight, so that they cannot "
            'follow: drop them, moments="drop"'
        )
    held = {name: state for name, state in checkpoint.optimizer.moments.items() if name in scales and state}
    if not held:
        return None
    powers = _powers(held, checkpoint.tensors)
    states = {name: {key: tensor.clone() for key, tensor in state.items()} for name, state in held.items()}
    for name, state in states.items():
        rescale_moments_(state, scales[name], powers)
    return states


def _powers(states: Mapping[str, Mapping[str, Tensor]], weights: Mapping[str, Tensor]) -> Mapping[str, int]:
    """How moments scale: as those of the first optimizer that keeps as much of each weight."""
    from gatdiag.remedies.moments import POWERS

    held = {key for state in states.values() for key in state}
    of_weights = [(name, key, t.shape) for name, state in states.items() for key, t in state.items() if t.dim() > 0]
    keys = {key for _, key, _ in of_weights}
    powers = next((known for known in POWERS.values() if keys and keys <= known.keys()), None)
    if powers is None or any(shape != weights[name].shape for name, _, shape in of_weights):
        raise OptimizerError(
            f"The optimizer's state ({join_names(map(quote, sorted(held)))}) is not of a known optimizer of "
            'these weights: drop it, moments="drop"'
        )
    return powers
