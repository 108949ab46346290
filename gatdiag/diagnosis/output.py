"""The model's output and what the loss does with it: probabilities that are squashed a second time."""

from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import limit

_LOGITS = {"cross-entropy": "cross_entropy", "bce-logits": "binary_cross_entropy_with_logits"}
_SQUASHES = ("Softmax", "Sigmoid")
_PERHAPS = (*_SQUASHES, "Exp", "Div", "Tanh", "Hardsigmoid")


def softmax_twice(facts: Facts) -> Finding | str | None:
    """Outputs that are probabilities, and a gradient dL/dout that is that of a loss on logits."""
    output = facts.output
    criterion = output.get("criterion")
    if "min" not in output or "max" not in output:
        return "the recorder did not look at the model's output"
    if not criterion or output.get("criterion_share", 0.0) < limit("criterion"):
        return "dL/dout is not that of a known classification loss"
    operation = str(output.get("last_operation", "")).removesuffix("Backward0")
    name = str(criterion)
    base, _, outside = name.partition("-of-")
    loss, cure = _LOGITS.get(base, "nll_loss"), None
    if outside in ("softmax", "sigmoid"):
        text = f"The model's output goes through {outside} into {loss}, which expects logits and squashes them itself: "
        cure = Remedy(f"loss = torch.nn.functional.{loss}(logits, target)  # without {outside} before it")
    elif not _is_squashed(output, operation) or name not in (*_LOGITS, "nll"):
        return None
    elif name == "nll":
        text = "The model returns probabilities, and nll_loss expects their logarithms: "
    else:
        squash = operation.lower() if operation.startswith(_SQUASHES) else "softmax"
        text = f"The model ends in {squash}, and the loss ({loss}) expects logits, which it squashes itself: "
    return facts.found(
        "output-softmax-twice",
        f"{text}the gradient is small wherever the model is wrong.",
        Evidence("smallest output", float(output["min"])),
        Evidence("largest output", float(output["max"])),
        Evidence(f"misfit of dL/dout to that of {name}", float(output.get("criterion_misfit", 0.0))),
        title="Probabilities are given to nll_loss" if name == "nll" else "",
        # such a loss does not fall to zero, however well the network has learned
        severity="warning" if facts.predicts else None,
        remedy=cure,
        threshold="Exact: the last operation, and dL/dout = k (softmax(out) - onehot), or that of the other losses, "
        "within 1 %.",
    )


def _is_squashed(output: dict[str, object], operation: str) -> bool:
    """By the last operation; where that is not telling, by range and row sums."""
    if operation.startswith(_SQUASHES):
        return not (operation.startswith("Softmax") and output.get("criterion") == "bce-logits")
    if operation and not operation.startswith(_PERHAPS):
        return False
    low, high, off = (float(str(output.get(key, "nan"))) for key in ("min", "max", "row_sum_error"))
    return low >= 0 and high <= 1 + 1e-6 and off < 1e-3
