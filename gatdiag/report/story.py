"""What was trained and how the training went, in a few sentences and a few large figures."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gatdiag.diagnosis import Finding
from gatdiag.diagnosis.wording import TIMES, count, duration, number, percent
from gatdiag.names import listed, one_line, short
from gatdiag.run import Run
from gatdiag.summary import TrainingFacts, accuracies, score, training_facts

_NOTES = 3  # of the recorder, that are told at the beginning
HARDLY = 0.05  # of the first loss: a smaller change is called that
_SHOWN = "The page shows what was on disk when it was made."
_UNFINISHED = {
    "live": "This run is still being recorded.",
    "recording": "This run has no end: its process was killed, or it runs on another machine.",
    "failed": "An exception ended this run: {error}.",
    "interrupted": "This run was interrupted by hand.",
}


@dataclass(frozen=True)
class Stat:
    """One large figure.

    Attributes:
        label: What it is.
        value: The figure.
        detail: What else belongs to it, or "".
    """

    label: str
    value: str
    detail: str = ""


def warnings(run: Run) -> tuple[str, ...]:
    """What to know before believing the rest: a run without an end, rows that could not be read."""
    anything(run)  # what cannot be read is known after reading
    status = "live" if run.status == "recording" and run.is_live else run.status
    texts = [f"Not everything could be read: {one_line(problem)}" for problem in run.problems]
    if status in _UNFINISHED:
        error = one_line(str(run.meta.get("error") or "no message"))
        texts.insert(0, f"{_UNFINISHED[status].format(error=error)} {_SHOWN}")
    return tuple(texts) if anything(run) else (*texts, *nothing_recorded(run))


def nothing_recorded(run: Run) -> tuple[str, str, str]:
    """Of a run without a row: that nothing was recorded, why as far as the recorder knows, and what to do."""
    notes = [one_line(str(note)).rstrip(".") for note in run.meta.get("notes") or []]
    known = "no step of the training reached the recorder, and it noted no reason"
    return (
        "Nothing was recorded: none of its tables has a row, so there is nothing to draw or to judge.",
        f"Why: {'; '.join(notes[:_NOTES]) or known}.",
        "What to do: give gatdiag.watch the module whose parameters the optimizer holds, and call optimizer.step() "
        "while it records; with an optimizer that is not one of torch's, call recorder.step() before each update. "
        "Then train again.",
    )


def anything(run: Run) -> bool:
    """Whether any table of the run has a row."""
    return sum(len(table) for table in (run.steps, run.layers, run.parameters, run.neurons)) > 0


def story(run: Run) -> tuple[str, ...]:
    """What was trained; whether it trained. Nothing of a run without a row: `warnings` says so."""
    facts = training_facts(run)
    return (_what(run, facts), " ".join(_how(run, facts))) if anything(run) else ()


def stats(run: Run) -> tuple[Stat, ...]:
    """The large figures, those that are known."""
    if not anything(run):
        return ()
    facts = training_facts(run)
    total, trainable = sizes(run.meta)
    frozen = f"{count(total - trainable)} of them frozen" if trainable < total else "all trainable"
    found = [Stat("Optimizer steps", _steps(facts), f"{count(facts.steps)} recorded")]
    if _is_of_checkpoints(run):
        found = [Stat("Checkpoints", count(facts.steps), f"the last of step {count(facts.last_step or 0)}")]
    if run.layer_names:
        layers = Stat("Layers", count(len(run.layer_names)), _kinds(run.meta))
        found[:0] = [layers, Stat("Parameters", count(total), frozen if total else "")]
    if facts.loss and facts.steps:
        detail = f"{number(facts.first_loss, 4)} at the start, best {number(facts.best_loss, 4)}"
        found.append(Stat(f"Last {short(facts.loss)}", number(facts.last_loss, 4), detail))
    if facts.metric and facts.best_step is not None:
        value = metric(facts.metric, facts.best_metric)
        found.append(Stat(f"Best {short(facts.metric)}", value, f"at step {count(facts.best_step)}"))
    test = accuracies(run).get("test")
    if test and facts.best_step is not None:
        found.append(Stat(f"{short(test)} then", metric(test, _at(run, test, facts.best_step)), "at that step"))
    return tuple(found)


def note_facts(run: Run) -> Iterator[Finding]:
    """What the recorder could not measure, in its own words; of many notes the first."""
    notes = [one_line(str(note)).rstrip(".") for note in run.meta.get("notes") or []]
    if notes:
        rest = f" And {count(len(notes) - _NOTES)} more, under Settings." if len(notes) > _NOTES else ""
        yield Finding("notes", "info", "Notes", f"{'; '.join(notes[:_NOTES])}.{rest}")


def sizes(meta: Mapping[str, Any]) -> tuple[int, int]:
    """How many numbers the recorded parameters have, and how many of them are trainable. A shared one counts once."""
    seen: dict[str, tuple[int, bool]] = {}
    for layer in meta["structure"]["layers"]:
        for parameter in layer["parameters"]:
            seen[parameter["name"]] = (math.prod(parameter["shape"]), bool(parameter.get("trainable", True)))
    return sum(size for size, _ in seen.values()), sum(size for size, trainable in seen.values() if trainable)


def metric(name: str, value: float) -> str:
    """A logged scalar; an accuracy as a percentage."""
    return percent(value) if score(name) == "accuracy" and 0 <= value <= 1 else number(value, 4)


def _what(run: Run, facts: TrainingFacts) -> str:
    total, _ = sizes(run.meta)
    model, layers = short(str(run.meta.get("model") or "A model")), len(run.layer_names)
    kinds = {str(layer.get("kind") or "") for layer in run.meta["structure"]["layers"]}
    kind = f"{short(min(kinds))} " if len(kinds) == 1 and kinds != {""} else ""
    made = f" of {layers} {kind}layer{'s' * (layers != 1)} with {count(total)} parameters" if layers else ""
    if _is_of_checkpoints(run):
        saved = f"{facts.steps} saved checkpoint{'s' * (facts.steps != 1)}"
        return f"{model}{made}, read off {saved}, the last of step {count(facts.last_step or 0)}."
    optimizers = [optimizer_text(optimizer) for optimizer in run.meta.get("optimizers") or []]
    seconds = float(run.steps["time"].max()) if len(run.steps) and "time" in run.steps else 0.0
    by = f" by {listed(map(short, optimizers))}" if optimizers else ""
    return (
        f"{model}{made}, trained{by} for {_steps(facts)} optimizer "
        f"step{'s' * (facts.last_step != 0)}{f' in {duration(seconds)}' if seconds > 0 else ''}."
    )


def _is_of_checkpoints(run: Run) -> bool:
    return bool((run.meta.get("cadence") or {}).get("every") == "checkpoint")


def optimizer_text(optimizer: Mapping[str, Any]) -> str:
    """The optimizer's class with the learning rates of its groups, and from when on if it was not the first."""
    start = optimizer.get("from_step")
    since = f" from step {start} on" if start else ""
    rates = {f"{group['lr']:g}" for group in optimizer.get("groups") or [] if isinstance(group.get("lr"), float | int)}
    return (
        f"{optimizer.get('class')}"
        + (f" with learning rate {listed(map(short, sorted(rates)))}" if rates else "")
        + since
    )


def _how(run: Run, facts: TrainingFacts) -> Iterator[str]:
    if not facts.steps:
        yield "No step was recorded, so there is nothing to say about the training."
    elif facts.loss is None and _is_of_checkpoints(run):
        yield "Checkpoints hold no loss; gatdiag inspect measures it if it is given the model and the data."
    elif facts.loss is None:
        yield "No loss was logged, so whether it trained cannot be said: recorder.log(loss=...) in the loop records it."
    else:
        yield loss_text(short(facts.loss), facts)
    if facts.metric and facts.best_step is not None:
        best = metric(facts.metric, facts.best_metric)
        yield f"The best {short(facts.metric)} is {best}, at step {count(facts.best_step)} (steps count from 0)."


def loss_text(loss: str, facts: TrainingFacts) -> str:
    """What became of the loss, in one sentence or two."""
    if facts.best_loss_step is None:
        return f"The {loss} was never finite."
    ends = f"from {number(facts.first_loss, 4)} to {number(facts.last_loss, 4)}"
    if not math.isfinite(facts.last_loss):
        best = f"its best value was {number(facts.best_loss, 4)}, at step {count(facts.best_loss_step)}"
        return f"The {loss} went {ends}: it became NaN or infinite; {best}."
    if not math.isfinite(facts.first_loss) or not facts.first_loss or facts.steps == 1:
        return f"The {loss} is {number(facts.last_loss, 4)}."
    change = (facts.last_loss - facts.first_loss) / abs(facts.first_loss)
    if not change:
        return f"The {loss} did not move: it is {number(facts.last_loss, 4)} at the start and at the end."
    direction = "rose" if change > 0 else "fell"
    if abs(change) < HARDLY:
        first, last = number(facts.first_loss, 4), number(facts.last_loss, 4)
        moved = f"It {direction} by {percent(abs(change))}."
        return f"The {loss} hardly moved: {first} at the start, {last} at the end. {moved}"
    return f"The {loss} {direction} {ends}, by {percent(abs(change))}."


def _steps(facts: TrainingFacts) -> str:
    return "0" if facts.last_step is None else count(facts.last_step + 1)


def _kinds(meta: Mapping[str, Any]) -> str:
    kinds = Counter(short(str(layer.get("kind"))) for layer in meta["structure"]["layers"])
    return ", ".join(f"{kind} {TIMES} {many}" if len(kinds) > 1 else kind for kind, many in kinds.most_common(3))


def _at(run: Run, name: str, step: int) -> float:
    known = run.steps[run.steps["step"] <= step][name].dropna()
    return float(known.iloc[-1]) if len(known) else math.nan
