"""`gatdiag rebalance`: balances the weights of a checkpoint without changing its function."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatdiag.cli.inspect import infer_sizes
from gatdiag.cli.options import CHECKPOINT_MODEL, DATA_FOLDER, Data, Inputs, Overwrite, Root, Transform
from gatdiag.cli.printing import plain_console
from gatdiag.errors import InputError, ModelError, OptimizerError
from gatdiag.names import join_names, printable, quote

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gatdiag.checkpoint import Checkpoint, ModelCase
    from gatdiag.laws import Exclusion
    from gatdiag.remedies import Rebalanced

_Moments = StrEnum("_Moments", ["rescale", "drop"])


def rebalance(
    *,
    source: Annotated[Path, typer.Argument(metavar="IN", help="Checkpoint: torch, Lightning or safetensors.")],
    target: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="File to write: IN with balanced weights.")
    ] = None,
    model: Annotated[str, CHECKPOINT_MODEL],
    data: Data = None,
    inputs: Inputs = None,
    root: Root = DATA_FOLDER,
    transform: Transform = None,
    moments: Annotated[
        _Moments, typer.Option(help="Rescale the optimizer's state with the weights, or drop it.")
    ] = _Moments.rescale,
    in_place: Annotated[bool, typer.Option("--in-place", help="Overwrite IN.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Balance a checkpoint's weights without changing its function.

    The weights of each neuron are rescaled; epoch, scheduler and all else in the file are kept. What is printed of c
    and the outputs is of the weights as written. The file is written completely or not at all. If no neuron can be
    balanced, nothing is written and the exit status is 2.
    """
    from gatdiag.checkpoint import open_checkpoint, write_checkpoint
    from gatdiag.cli.model_case import load_case

    if (target is None) != in_place:
        raise InputError("Expected either OUT, the name of a new file, or --in-place to overwrite the checkpoint")
    drop = moments == "drop"
    checkpoint = open_checkpoint(source)
    if target is not None and target.is_file() and not (overwrite or target.samefile(source)):
        raise InputError(f"{str(target)!r} exists: choose another name, or replace it with --overwrite")
    is_safetensors = checkpoint.format == "safetensors"
    if target is not None and target.suffix and (target.suffix == ".safetensors") is not is_safetensors:
        raise InputError(f"{str(target)!r} gets the format of {str(source)!r}, so it needs the same ending")
    if drop:
        checkpoint = replace(checkpoint, optimizer=None)
    with redirect_stdout(sys.stderr):  # the user's code may print
        case = load_case(model, data, inputs, root, transform, infer_sizes(checkpoint))
        weights, scales, lines = _balance(checkpoint, case)
    written = write_checkpoint(
        checkpoint,
        weights,
        source if target is None else target,
        moments=_rescaled_moments(checkpoint, scales),
        drop_optimizer=drop,
        in_place=in_place,
    )
    notes = [f"note: {note}" for note in checkpoint.notes]
    if checkpoint.within:
        under = quote(".".join(checkpoint.within))
        notes.append(
            f"note: only the weights under {under} are rescaled, not copies or averages of them elsewhere in the file"
        )
    for line in (*lines, *notes, f"written: {written}"):
        plain_console().print(printable(line), soft_wrap=True)


def _balance(checkpoint: Checkpoint, case: ModelCase) -> tuple[dict[str, Tensor], dict[str, Tensor], list[str]]:
    """Balanced weights and their factors, by the checkpoint's names, and lines to print."""
    from gatdiag.checkpoint.state_dict import load_weights_, match_tensors
    from gatdiag.remedies import rebalance_

    found = match_tensors(case.model, checkpoint.tensors, checkpoint.keys)
    if found.missing:
        raise InputError(
            f"The checkpoint does not fit the model ({'; '.join(found.describe_differences(3))}). If shapes follow "
            "from the graph, name the one it was trained on: --data NAME --root FOLDER, or --inputs"
        )
    load_weights_(case.model, found.tensors)
    done = rebalance_(case.model, *case.args, **case.kwargs)
    if not done.factors:
        reasons = "; ".join(_skipped_lines(done.skipped)) or "the model has no laws"
        raise ModelError(f"No law could be balanced, and nothing was written: {reasons}")
    done.undo()
    names = _all_names(case.model, done.scales, found.names)
    scales = {each: done.scales[name] for name in names for each in names[name]}
    weights = {name: checkpoint.tensors[name] * scale for name, scale in scales.items()}  # with the digits of the file
    lines = _measure_lines(checkpoint, case, done, found.names, weights)
    return weights, scales, [*lines, *_skipped_lines(done.skipped), *found.describe_differences(3)]


def _measure_lines(
    checkpoint: Checkpoint, case: ModelCase, done: Rebalanced, names: Mapping[str, str], weights: Mapping[str, Tensor]
) -> list[str]:
    """Lines about c and the outputs of the weights as they are in the file, rounded to its dtypes."""
    import torch

    from gatdiag.checkpoint import round_to_file
    from gatdiag.remedies.verification import output_difference

    old, written = checkpoint.tensors, round_to_file(checkpoint, weights)
    versions = old, {**old, **weights}, {**old, **written}
    before, exact, after = ({name: of[names[name]].double() for name in done.laws.names} for of in versions)
    # what the weights are multiplied by in the file, rounding included
    factors = {name: torch.where(before[name] == 0, 1.0, after[name] / before[name]) for name in done.scales}
    (c, imbalance), (c_exact, _), (c_after, imbalance_after) = map(done.imbalance, (before, exact, after))
    differences = {"the model's own precision": output_difference(case.model, factors, case.args, case.kwargs)}
    if done.double is not None:  # the model runs in float64
        double = output_difference(case.model, factors, case.args, case.kwargs, torch.float64)
        differences = {"float64": double, **differences}
    lines = [
        f"{len(done.factors)} laws balanced: largest |c| {c:.3g} before, {c_after:.1e} after; largest imbalance "
        f"{imbalance:.3g} before, {imbalance_after:.1e} after; factors from {min(done.factors.values()):.3g} to "
        f"{max(done.factors.values()):.3g}",
        *(
            f"largest difference of outputs in {where}: {found.absolute:.1e}, relative {found.relative:.1e}"
            for where, found in differences.items()
        ),
        f"the model ran on {case.source}",
    ]
    if c_after > c_exact:
        kinds = join_names(sorted({str(old[names[name]].dtype).removeprefix("torch.") for name in done.scales}))
        outputs = "" if done.double is None else f", and outputs would differ by {done.double.absolute:.1e}"
        lines.append(
            f"rounding to {kinds}, in which the file has its weights, is what limits |c| and the outputs: without it, "
            f"the largest |c| would be {c_exact:.1e}{outputs}"
        )
    return lines


def _all_names(model: nn.Module, parameters: Iterable[str], names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """For each parameter all its names in the checkpoint, where shared parameters may be saved as copies."""
    every = dict(model.named_parameters(remove_duplicate=False))
    return {
        name: tuple(names[other] for other in every if every[other] is every[name] and other in names)
        for name in parameters
    }


def _skipped_lines(exclusions: Sequence[Exclusion]) -> list[str]:
    reasons = Counter(exclusion.reason for exclusion in exclusions)
    return [f"skipped {count}: {reason}" for reason, count in reasons.most_common()]


def _rescaled_moments(checkpoint: Checkpoint, scales: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]] | None:
    """The optimizer state of the rescaled weights, rescaled with them; None if there is none."""
    from gatdiag.remedies.moments import rescale_moments_

    if checkpoint.optimizer is None:
        return None
    if checkpoint.optimizer.others or not checkpoint.optimizer.matched:
        raise OptimizerError(
            "The optimizer state in the file is of several optimizers, or cannot be matched to the weights, and thus "
            "not rescaled: drop it with --moments drop"
        )
    held = {name: state for name, state in checkpoint.optimizer.moments.items() if name in scales and state}
    if not held:
        return None
    powers = _moment_powers(held, checkpoint.tensors)
    states = {  # in float64, so that they are rounded once and an overflow is noticed when they are written
        name: {key: tensor.double() for key, tensor in state.items() if powers.get(key)} for name, state in held.items()
    }
    for name, state in states.items():
        rescale_moments_(state, scales[name], powers)
    return states


def _moment_powers(states: Mapping[str, Mapping[str, Tensor]], weights: Mapping[str, Tensor]) -> Mapping[str, int]:
    """Power of a weight's factor by which each moment scales, from the first known optimizer that has these moments."""
    from gatdiag.remedies.moments import POWERS

    held = {key for state in states.values() for key in state}
    of_weights = [(name, key, t.shape) for name, state in states.items() for key, t in state.items() if t.dim() > 0]
    keys = {key for _, key, _ in of_weights}
    powers = next((known for known in POWERS.values() if keys and keys <= known.keys()), None)
    if powers is None or any(shape != weights[name].shape for name, _, shape in of_weights):
        raise OptimizerError(
            f"The optimizer state ({join_names(map(quote, sorted(held)))}) is not that of a known optimizer for "
            "these weights: drop it with --moments drop"
        )
    return powers
