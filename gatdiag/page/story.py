"""The model and its training in a few sentences."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from gatdiag.diagnosis.thresholds import limit
from gatdiag.diagnosis.wording import number, percent
from gatdiag.names import join_names, one_line, short
from gatdiag.run import Run
from gatdiag.summary import (
    TrainingFacts,
    compare,
    in_words,
    is_empty,
    is_of_checkpoints,
    kind_of_score,
    score_names,
    training_facts,
)

_NOTES = 3  # recorder notes shown at the top
_SHOWN = "This page shows what had been recorded when it was generated."
_UNFINISHED = {
    "live": "This run is still being recorded.",
    "recording": "This run did not finish: its process was killed, or it is running on another machine.",
    "failed": "This run failed with an exception: {error}.",
    "interrupted": "This run was interrupted (KeyboardInterrupt).",
}


def run_warnings(run: Run) -> tuple[str, ...]:
    """Warnings about incomplete data: an unfinished run, empty tables."""
    status = "live" if run.status == "recording" and run.is_live else run.status
    texts = []
    if status in _UNFINISHED:
        error = one_line(run.meta["error"] or "no message")
        texts.append(f"{_UNFINISHED[status].format(error=error)} {_SHOWN}")
    return (*texts, *_nothing_recorded(run)) if is_empty(run) else tuple(texts)


def story(run: Run) -> tuple[str, ...]:
    """Two paragraphs: the model and its training; the outcome. Empty for an empty run, see `run_warnings`."""
    facts = training_facts(run)
    return () if is_empty(run) else (_describe_training(run, facts), " ".join(_describe_outcome(run, facts)))


def recorder_notes(run: Run) -> str:
    """The recorder's notes on missing measurements, or the first few of them."""
    notes = _notes(run)
    rest = f" And {len(notes) - _NOTES:,} more, under Settings." if len(notes) > _NOTES else ""
    return f"{'; '.join(notes[:_NOTES])}.{rest}" if notes else ""


def _notes(run: Run) -> list[str]:
    return [one_line(note).rstrip(".") for note in run.meta["notes"]]


def count_parameters(meta: Mapping[str, Any]) -> tuple[int, int]:
    """The number of weights of the recorded parameters, and of the trainable ones. Shared ones count once."""
    parameters = {p["name"]: p for layer in meta["structure"]["layers"] for p in layer["parameters"]}
    counts = [(math.prod(p["shape"]), p.get("trainable", True)) for p in parameters.values()]
    return sum(size for size, _ in counts), sum(size for size, trainable in counts if trainable)


def format_metric(name: str, value: float) -> str:
    """A logged scalar as text; an accuracy as a percentage."""
    return percent(value) if kind_of_score(name) == "accuracy" and 0 <= value <= 1 else number(value, 4)


def describe_optimizer(optimizer: Mapping[str, Any]) -> str:
    """The optimizer's class, the learning rates of its groups, and its first step if it replaced another one."""
    rates = {f"{group['lr']:g}" for group in optimizer["groups"] if isinstance(group.get("lr"), float | int)}
    rate = f" with learning rate {join_names(sorted(rates))}" if rates else ""
    since = f" from step {optimizer['from_step']} on" if optimizer.get("from_step") else ""
    return f"{optimizer['class']}{rate}{since}"


def describe_loss(facts: TrainingFacts) -> str:
    """How the logged loss changed, in one or two sentences."""
    loss = short(in_words(str(facts.loss)))
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
    direction, by = "rose" if change > 0 else "fell", describe_change(facts.first_loss, facts.last_loss)
    if not change:
        return f"The {loss} did not change: it is {last} at the start and at the end."
    if abs(change) < limit("fall"):
        moved = f"It {direction} {by}."
        return f"The {loss} hardly moved: {first} at the start, {last} at the end. {moved}"
    return f"The {loss} {direction} from {first} to {last}, {by}."


def describe_change(first: float, last: float) -> str:
    """By how much a number changed: a percentage, a factor of more than ten, or the difference if the sign changed.

    Example:
        >>> describe_change(2.0, 1.0), describe_change(2.0, 500.0), describe_change(0.5, -9.5)
        ('by 50%', 'by a factor of 250', 'by 10')
    """
    if first == last:
        return ""
    if first * last < 0:
        return f"by {number(abs(last - first))}"
    if last / first > 10:
        return f"by a factor of {number(last / first)}"
    return f"by {percent(abs((last - first) / first))}"


def format_duration(seconds: float) -> str:
    """A duration in its two largest units.

    Example:
        >>> format_duration(3.21), format_duration(75), format_duration(7384)
        ('3.2 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _nothing_recorded(run: Run) -> tuple[str, str, str]:
    """That nothing was recorded, why, and what to do."""
    unknown = "no optimizer step reached the recorder, and it noted no reason"
    return (
        "Nothing was recorded: all tables are empty, so there is nothing to plot or to diagnose.",
        f"Why: {'; '.join(_notes(run)[:_NOTES]) or unknown}.",
        "What to do: pass the module whose parameters the optimizer updates to gatdiag.watch, and call "
        "optimizer.step() while it records; if the optimizer is not a torch.optim.Optimizer, call recorder.step() "
        "before each update. Then train again.",
    )


def _describe_training(run: Run, facts: TrainingFacts) -> str:
    layers = len(run.layer_names)
    kinds = {layer.get("kind") or "" for layer in run.meta["structure"]["layers"]}
    kind = f"{short(min(kinds))} " if len(kinds) == 1 and kinds != {""} else ""
    total, trainable = count_parameters(run.meta)
    frozen = f", {total - trainable:,} of them frozen" if trainable < total else ""
    made = f" of {layers} {kind}layer{'s' * (layers != 1)} with {total:,} parameters{frozen}" if layers else ""
    model = f"{short(run.meta['model'] or 'A model')}{made}"
    if is_of_checkpoints(run):
        saved = f"{facts.steps} saved checkpoint{'s' * (facts.steps != 1)}"
        return f"{model}, read from {saved}, the last at step {facts.last_step or 0:,}."
    optimizers = [short(describe_optimizer(optimizer)) for optimizer in run.meta["optimizers"]]
    by = f" by {join_names(optimizers)}" if optimizers else ""
    seconds = float(run.steps["time"].max())
    time = f" in {format_duration(seconds)}" if seconds > 0 else ""
    steps = 0 if facts.last_step is None else facts.last_step + 1
    trained = f"{model}, trained{by} for {steps:,} optimizer step{'s' * (steps != 1)}{time}."
    return trained + _describe_sampling(run, facts.recorded, steps)


def _describe_sampling(run: Run, recorded: int, steps: int) -> str:
    """How many steps were recorded and why not all; "" if all were."""
    every, budget = (run.meta["cadence"].get(name) for name in ("every", "budget"))
    if not 0 < recorded < steps or (every == "1" and not budget):
        return ""
    why = f", to stay within {percent(budget)} of the training's time" if budget else f", as requested by every={every}"
    more = "; every=1 records all" if every == "auto" else ""
    what = "Layers" if len(run.layers) else "Parameters"
    return f" {what} were recorded at {recorded:,} of {steps:,} steps{why}{more}."


def _describe_outcome(run: Run, facts: TrainingFacts) -> Iterator[str]:
    if not facts.steps:
        yield "No step was recorded."
    elif facts.loss is None and is_of_checkpoints(run):
        yield "Checkpoints contain no loss; gatdiag inspect measures it if given the model and the data."
    elif facts.loss is None:
        yield "No loss was logged, so it is unknown whether the model trained: call recorder.log(loss=...) in the loop."
    else:
        yield describe_loss(facts)
    if facts.metric and facts.best_step is not None:
        best = format_metric(facts.metric, facts.best_metric)
        at = f"at step {facts.best_step:,} (steps count from 0)"
        yield f"The best {short(in_words(facts.metric))} is {best}, {at}{_test_score(run)}."


def _test_score(run: Run) -> str:
    """The test score at the best step; "" if none was logged."""
    name, value = score_names(run).get("test"), float(compare([run])["accuracy_test"].iloc[0])
    return f", where {short(in_words(name))} is {format_metric(name, value)}" if name and not math.isnan(value) else ""
