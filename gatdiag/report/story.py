"""The model and its training, in a few sentences."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from gatdiag.diagnosis.thresholds import limit
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import join_names, one_line, short
from gatdiag.run import Run
from gatdiag.summary import TrainingFacts, accuracies, compare, is_empty, is_of_checkpoints, score, training_facts

_NOTES = 3  # of the recorder, that are said at the beginning
_SHOWN = "The page shows what was on disk when it was made."
_UNFINISHED = {
    "live": "This run is still being recorded.",
    "recording": "This run has no end: its process was killed, or it runs on another machine.",
    "failed": "An exception ended this run: {error}.",
    "interrupted": "This run was interrupted by hand.",
}


def warnings(run: Run) -> tuple[str, ...]:
    """Reasons for care in reading the rest: a run without an end, rows that could not be read, no row at all."""
    nothing = is_empty(run)  # what cannot be read is known after reading
    status = "live" if run.status == "recording" and run.is_live else run.status
    texts = [f"Not everything could be read: {one_line(problem)}" for problem in run.problems]
    if status in _UNFINISHED:
        error = one_line(run.meta["error"] or "no message")
        texts.insert(0, f"{_UNFINISHED[status].format(error=error)} {_SHOWN}")
    return (*texts, *_nothing_recorded(run)) if nothing else tuple(texts)


def story(run: Run) -> tuple[str, ...]:
    """The model and its training, then the course of its loss. Nothing of a run without a row: `warnings` says so."""
    facts = training_facts(run)
    return () if is_empty(run) else (_what(run, facts), " ".join(_how(run, facts)))


def notes_text(run: Run) -> str:
    """Notes on measurements that the recorder could not make, in its own words; of many notes the first."""
    notes = _notes(run)
    rest = f" And {len(notes) - _NOTES:,} more, under Settings." if len(notes) > _NOTES else ""
    return f"{'; '.join(notes[:_NOTES])}.{rest}" if notes else ""


def _notes(run: Run) -> list[str]:
    return [one_line(note).rstrip(".") for note in run.meta["notes"]]


def sizes(meta: Mapping[str, Any]) -> tuple[int, int]:
    """How many numbers the recorded parameters have, and how many of them are trainable. A shared one counts once."""
    parameters = {p["name"]: p for layer in meta["structure"]["layers"] for p in layer["parameters"]}
    counts = [(math.prod(p["shape"]), p.get("trainable", True)) for p in parameters.values()]
    return sum(size for size, _ in counts), sum(size for size, trainable in counts if trainable)


def metric(name: str, value: float) -> str:
    """A logged scalar; an accuracy as a percentage."""
    return percent(value) if score(name) == "accuracy" and 0 <= value <= 1 else number(value, 4)


def optimizer_text(optimizer: Mapping[str, Any]) -> str:
    """The optimizer's class with the learning rates of its groups, and from when on if it was not the first."""
    rates = {f"{group['lr']:g}" for group in optimizer["groups"] if isinstance(group.get("lr"), float | int)}
    rate = f" with learning rate {join_names(sorted(rates))}" if rates else ""
    since = f" from step {optimizer['from_step']} on" if optimizer.get("from_step") else ""
    return f"{optimizer['class']}{rate}{since}"


def loss_text(facts: TrainingFacts) -> str:
    """The course of the logged loss, in one sentence or two."""
    loss = short(str(facts.loss))
    if facts.best_loss_step is None:
        return f"The {loss} was never finite."
    first, last, best = (number(value, 4) for value in (facts.first_loss, facts.last_loss, facts.best_loss))
    if not math.isfinite(facts.last_loss):
        return (
            f"The {loss} went from {first} to {last}: it became NaN or infinite; its best value was {best}, at step "
            f"{facts.best_loss_step:,}."
        )
    if not math.isfinite(facts.first_loss) or not facts.first_loss or facts.steps == 1:
        return f"The {loss} is {last}."
    change = (facts.last_loss - facts.first_loss) / abs(facts.first_loss)
    direction = "rose" if change > 0 else "fell"
    if not change:
        return f"The {loss} did not move: it is {last} at the start and at the end."
    if abs(change) < limit("fall"):
        moved = f"It {direction} by {percent(abs(change))}."
        return f"The {loss} hardly moved: {first} at the start, {last} at the end. {moved}"
    return f"The {loss} {direction} from {first} to {last}, by {percent(abs(change))}."


def duration(seconds: float) -> str:
    """A length of time in its two largest units.

    Example:
        >>> duration(3.21), duration(75), duration(7384)
        ('3.2 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _nothing_recorded(run: Run) -> tuple[str, str, str]:
    """That nothing was recorded, why as far as the recorder knows, and what to do."""
    known = "no step of the training reached the recorder, and it noted no reason"
    return (
        "Nothing was recorded: none of its tables has a row, so there is nothing to draw or to judge.",
        f"Why: {'; '.join(_notes(run)[:_NOTES]) or known}.",
        "What to do: give gatdiag.watch the module whose parameters the optimizer holds, and call optimizer.step() "
        "while it records; with an optimizer that is not one of torch's, call recorder.step() before each update. "
        "Then train again.",
    )


def _what(run: Run, facts: TrainingFacts) -> str:
    layers = len(run.layer_names)
    kinds = {layer.get("kind") or "" for layer in run.meta["structure"]["layers"]}
    kind = f"{short(min(kinds))} " if len(kinds) == 1 and kinds != {""} else ""
    total, trainable = sizes(run.meta)
    frozen = f", {total - trainable:,} of them frozen" if trainable < total else ""
    made = f" of {layers} {kind}layer{'s' * (layers != 1)} with {total:,} parameters{frozen}" if layers else ""
    model = f"{short(run.meta['model'] or 'A model')}{made}"
    if is_of_checkpoints(run):
        saved = f"{facts.steps} saved checkpoint{'s' * (facts.steps != 1)}"
        return f"{model}, read off {saved}, the last of step {facts.last_step or 0:,}."
    optimizers = [short(optimizer_text(optimizer)) for optimizer in run.meta["optimizers"]]
    by = f" by {join_names(optimizers)}" if optimizers else ""
    seconds = float(run.steps["time"].max())
    time = f" in {duration(seconds)}" if seconds > 0 else ""
    steps = 0 if facts.last_step is None else facts.last_step + 1
    trained = f"{model}, trained{by} for {steps:,} optimizer step{'s' * (steps != 1)}{time}."
    return trained + _left_out(run, facts.recorded, steps)


def _left_out(run: Run, recorded: int, steps: int) -> str:
    """How few of the steps are in tables and figures, and why; "" if all are."""
    every, budget = (run.meta["cadence"].get(name) for name in ("every", "budget"))
    if not 0 < recorded < steps or (every == "1" and not budget):
        return ""
    why = f", to stay within {percent(budget)} of the training's time" if budget else f", as every={every} asks for"
    more = "; every=1 records all" if every == "auto" else ""
    what = "Layers" if len(run.layers) else "Parameters"
    return f" {what} were recorded at {recorded:,} of {steps:,} steps{why}{more}."


def _how(run: Run, facts: TrainingFacts) -> Iterator[str]:
    if not facts.steps:
        yield "No step was recorded, so there is nothing to say about the training."
    elif facts.loss is None and is_of_checkpoints(run):
        yield "Checkpoints hold no loss; gatdiag inspect measures it if it is given the model and the data."
    elif facts.loss is None:
        yield "No loss was logged, so whether it trained cannot be said: recorder.log(loss=...) in the loop records it."
    else:
        yield loss_text(facts)
    if facts.metric and facts.best_step is not None:
        best = metric(facts.metric, facts.best_metric)
        at = f"at step {facts.best_step:,} (steps count from 0)"
        yield f"The best {short(facts.metric)} is {best}, {at}{_tested(run)}."


def _tested(run: Run) -> str:
    """The score of test data at the best step; "" if none was logged."""
    name, value = accuracies(run).get("test"), float(compare([run])["accuracy_test"].iloc[0])
    return f", where {short(name)} is {metric(name, value)}" if name and not math.isnan(value) else ""
