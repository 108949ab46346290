"""The model's output and the loss: probabilities that are passed to a loss that expects logits."""

from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import limit

_ON_LOGITS = {  # criterion -> the loss, and what it applies to its input
    "cross-entropy": ("cross_entropy", "softmax"),
    "bce-logits": ("binary_cross_entropy_with_logits", "the sigmoid"),
}
_TO_PROBABILITIES = ("Softmax", "Sigmoid")
_MAYBE_TO_PROBABILITIES = (*_TO_PROBABILITIES, "Exp", "Div", "Tanh", "Hardsigmoid")


def check_softmax_twice(facts: Facts) -> Finding | str | None:
    """Outputs are probabilities, but dL/dout is the gradient of a loss that expects logits or log-probabilities."""
    output = facts.output
    criterion = output.get("criterion")
    if "min" not in output or "max" not in output:
        return "the model's output was not recorded"
    if not criterion or output.get("criterion_share", 0.0) < limit("criterion"):
        return "dL/dout is not the gradient of a known classification loss"
    operation = str(output.get("last_operation", "")).removesuffix("Backward0")
    name = str(criterion)
    base, _, outside = name.partition("-of-")
    loss, applies = _ON_LOGITS.get(base, ("nll_loss", ""))
    fix = None
    if outside in ("softmax", "sigmoid"):
        text = f"The model's output passes through {outside} before {loss}, which expects logits and applies {applies}"
        fix = Remedy(f"loss = torch.nn.functional.{loss}(logits, target)  # without {outside} before it")
    elif not _has_probabilities(output, operation) or name not in (*_ON_LOGITS, "nll"):
        return None
    elif name == "nll":
        text = "The model returns probabilities, but nll_loss expects log-probabilities"
        fix = Remedy("return torch.log_softmax(x, -1)  # in forward, instead of x.softmax(-1)")
    else:
        last = operation.lower() if operation.startswith(_TO_PROBABILITIES) else "softmax"
        text = f"The model ends in {last}, but the loss ({loss}) expects logits and applies {applies} itself"
    return facts.finding(
        "output-softmax-twice",
        f"{text}: the gradient is small wherever the model is wrong.",
        Evidence("smallest output", float(output["min"])),
        Evidence("largest output", float(output["max"])),
        Evidence(f"misfit of dL/dout to the gradient of {name}", float(output.get("criterion_misfit", 0.0))),
        title="nll_loss expects log-probabilities but gets probabilities" if name == "nll" else "",
        remedy=fix,
        threshold="Exact: the last operation of the model, and dL/dout = k (softmax(out) - onehot), or the gradient of "
        "another such loss, within 1 %.",
    )


def _has_probabilities(output: dict[str, object], operation: str) -> bool:
    """By the last operation; if that does not tell, by range and row sums."""
    if operation.startswith(_TO_PROBABILITIES):
        return not (operation.startswith("Softmax") and output.get("criterion") == "bce-logits")
    if operation and not operation.startswith(_MAYBE_TO_PROBABILITIES):
        return False
    low, high, off = (float(str(output.get(key, "nan"))) for key in ("min", "max", "row_sum_error"))
    return low >= 0 and high <= 1 + 1e-6 and off < 1e-3
