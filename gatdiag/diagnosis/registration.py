"""Tensors of a model that are no parameters, though they look as if they should be learned."""

import re
from typing import Final

from gatdiag.diagnosis.causes import cause
from gatdiag.diagnosis.facts import Facts
from gatdiag.diagnosis.finding import Action, Evidence, Finding, Remedy
from gatdiag.diagnosis.thresholds import Limit, limit, threshold_text
from gatdiag.names import join_names

_LEARNED: Final = re.compile(
    r"(?i)(^|_)(w\d*|a|b|att\w*|weights?\d*|bias\w*|alphas?|betas?|gammas?|thetas?|emb\w*|gates?|kernels?|filters?|"
    r"coefs?|coefficients?|quer(y|ies)|keys?|tokens?|prompts?|codebook|centroids?)\d*$"
)


@cause(
    "parameters-not-registered",
    "A weight is a plain tensor",
    rank=255,
    why="what no optimizer can hold does not move",
    figure="unchanged_fraction",
    column="parameters.unchanged_fraction",
    falsified_by="It is a constant on purpose: then a parameter in its place does not make the loss fall further.",
    needs_training=True,
    limits={
        "distinct": Limit(0.5, "share of distinct values: random weights 1, masks and one-hot tables near 0"),
    },
)
def check_registered(facts: Facts) -> Finding | str | None:
    """A plain tensor among a module's attributes, read in the forward pass, with the name and the look of a weight.

    Tables of sines, masks and positions have entries that are exactly zero or one, or ascend.
    """
    known = facts.signals.get("plain_tensors")
    if known is None:
        return "the forward pass was not traced"
    found = [one for one in known if _looks_learned(one)]
    if not found or facts.state not in ("failing", "partly"):
        return None
    names = [one["name"] for one in found]
    first = names[0].rpartition(".")[2]
    return facts.finding(
        "parameters-not-registered",
        f"The output depends on {join_names(names, 3)}, which {'is' if len(names) == 1 else 'are'} a plain tensor of "
        "the module and no parameter: no optimizer can get it, and it keeps its initial values.",
        Evidence("tensors that look like weights and are no parameters", len(names), "tensors"),
        Evidence("share of distinct values in the first", found[0]["distinct"]),
        threshold=f"Flagged above {threshold_text('distinct')}.",
        severity="warning",
        remedy=Remedy(
            Action("register", {"tensors": tuple(names)}),
            f"# or self.{first} = torch.nn.Parameter(self.{first}) in __init__; self.register_buffer({first!r}, "
            f"self.{first}) if it is a constant",
        ),
    )


def _looks_learned(tensor: dict[str, object]) -> bool:
    name, distinct = str(tensor["name"]).rpartition(".")[2], float(str(tensor["distinct"]))
    return bool(_LEARNED.search(name)) and distinct > limit("distinct") and not tensor["is_regular"]
