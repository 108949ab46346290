"""A cause of one's own: many weights for few labels, which a network learns by heart."""

from gatdiag.diagnosis import Action, Evidence, Facts, Finding, Limit, Remedy, cause, limit


def needs_labels(facts: Facts) -> str:
    """The reason why the check cannot be made, if so."""
    return "" if sum(facts.output.get("labels") or []) else "no labels were seen"


@cause(
    "few-labels",
    "Many weights for few labels",
    rank=355,
    why="it explains overfitting, and no training that fails",
    figure="training_curves",
    falsified_by="With a tenth of the weights the validation score is no better.",
    needs=(needs_labels,),
    needs_training=True,
    severity="warning",
    limits={"weights-per-label": Limit(2000, "weights for each label; a GAT with 8 heads on Cora has 660")},
)
def check_few_labels(facts: Facts) -> Finding | None:
    """Thousands of weights for each label that the loss sees: a network of this size can learn labels by heart.

    Weights that are shared, as between the steps of a recurrent network, count once.
    """
    labels = sum(facts.output["labels"])
    weights_per_label = facts.weight_count / labels
    if weights_per_label < limit("weights-per-label") or facts.state not in ("trained", "partly"):
        return None
    rates = tuple(facts.signals.get("dropout") or {})
    dropout = Action("dropout", {"attributes": rates, "rate": 0.5}) if rates else ""
    return facts.finding(
        "few-labels",
        f"The network has {facts.weight_count:,} weights, and the loss sees {labels:,} labels: it can learn each of "
        "them by heart.",
        Evidence("weights for each label", weights_per_label),
        threshold="Flagged from 2,000 on.",
        remedy=Remedy("hidden_channels = 16  # a narrower network", dropout),
    )
