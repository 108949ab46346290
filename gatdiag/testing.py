"""assert_trains(): a test that a model trains, which says why if it does not."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from gatdiag.diagnosis import SEVERITIES, Diagnosis, Severity, diagnose
from gatdiag.errors import InputError
from gatdiag.recorder import Recorder
from gatdiag.structure.isolation import random_state
from gatdiag.watching import watch


def assert_trains(
    make_model: Callable[[], nn.Module],
    train: Callable[[nn.Module, Recorder], object],
    *,
    seeds: Sequence[int] = (0,),
    fail_on: Severity = "error",
    folder: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> tuple[Diagnosis, ...]:
    """Assert that a model trains, for tests of your own; random states are restored.

    Train for at least twenty steps, better a hundred: with less, nothing is known, and the assertion fails.

    Args:
        make_model: Returns a new model at each call.
        train: The training loop, called with the model and a recorder, as that of `gatdiag.treat`. It creates the
            optimizer, and may log with ``recorder.log(val_accuracy=...)``.
        seeds: Seeds of torch, numpy and `random`, set before each call of `make_model`.
        fail_on: A finding that is at least this severe fails, even if the model trains: "note", "warning" or "error".
        folder: Where the runs are kept, as ``seed-0`` and so on; by default they are deleted.
        settings: Other arguments of `gatdiag.watch`. By default every step is recorded.

    Returns:
        The diagnosis for each seed.

    Raises:
        AssertionError: With one seed the training fails, too little is recorded to say whether it does, or something is
            found. The message is the diagnosis: the cause, its evidence, and a line to paste.
        InputError: An argument is wrong. Exceptions of `make_model` and `train` are passed on.

    Example:
        >>> import torch
        >>> x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
        >>> x[:, 0] += 4 * y
        >>> def loop(model, recorder):
        ...     optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        ...     for _ in range(60):
        ...         optimizer.zero_grad()
        ...         nn.functional.cross_entropy(model(x), y).backward()
        ...         optimizer.step()
        >>> (diagnosis,) = assert_trains(lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), loop)
        >>> diagnosis.state
        'trained'
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    if fail_on not in SEVERITIES:
        raise InputError(f"fail_on: expected one of {', '.join(SEVERITIES)}, got {fail_on!r}")
    if not isinstance(seeds, Sequence) or not seeds:
        raise InputError(f"seeds: expected at least one number, got {seeds!r}")
    found = []
    with tempfile.TemporaryDirectory(prefix="gatdiag-") as scratch:
        for seed in seeds:
            place = Path(scratch if folder is None else folder) / f"seed-{seed}"
            place, diagnosis = _train(make_model, train, seed, place, settings)
            if not _passes(diagnosis, fail_on):
                kept = "" if folder is None else f"\nSee gatdiag report {place}"
                why = f"with seed {seed} training is {diagnosis.state} ({diagnosis.reason})"
                raise AssertionError(f"{why}:\n{diagnosis}{kept}")
            found.append(diagnosis)
    return tuple(found)


def _train(
    make_model: Callable[[], nn.Module],
    train: Callable[[nn.Module, Recorder], object],
    seed: int,
    folder: Path,
    settings: dict[str, Any],
) -> tuple[Path, Diagnosis]:
    with random_state(seed):
        model = make_model()
        if not isinstance(model, nn.Module):
            raise InputError(f"make_model() returned {type(model).__name__}, expected a torch.nn.Module")
        with watch(model, folder, **{"every": 1, **settings}) as recorder:
            train(model, recorder)
    return recorder.folder, diagnose(recorder.folder)


def _passes(diagnosis: Diagnosis, fail_on: Severity) -> bool:
    bad = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    return diagnosis.state in ("trained", "partly") and not any(finding.severity in bad for finding in diagnosis)
