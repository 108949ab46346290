"""Parameters that multiply nothing but zeros on these inputs, as those of a recurrent network do in its first step."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from gatdiag.law import Exclusion, Law
from gatdiag.laws.assembly import Place
from gatdiag.names import join_names


def split_unclear(
    laws: list[Law], times_zeros: Mapping[str, Tensor], names: Sequence[str], places: Mapping[str, Place]
) -> tuple[list[Law], list[Exclusion]]:
    """Without the laws that other inputs may refute, where the named parameters multiply nothing but zeros here.

    An RNN does so in one step: whatever it computes may be what its weights multiply in the next, so no law is certain.
    Where only some columns multiply zeros (features that are padded with zeros), those of the same layer are not.
    """
    if any(bool(times_zeros[name].all()) for name in names):
        kept = []
    else:
        layers = {places[name].layer for name in names}
        kept = [law for law in laws if layers.isdisjoint(places[term.parameter].layer for term in law.terms)]
    reason = f"{join_names(names)} multiplies only zeros on these inputs; what it multiplies on others is unknown"
    dropped = Counter(law.layer for law in laws) - Counter(law.layer for law in kept)
    return kept, [Exclusion(f"{count} laws of {layer}", reason) for layer, count in dropped.items()]


def only_times_zeros(times_zeros: Mapping[str, Tensor], points: Iterable[Mapping[str, Tensor]]) -> list[str]:
    """The parameters whose columns that multiply zeros get no gradient at any point, also from other operations.

    Args:
        times_zeros: Name of a parameter -> mask of the columns that multiply zeros.
        points: Name of a parameter -> gradient, at each point; a missing one is zero.
    """
    names = list(times_zeros)
    for gradients in points if names else ():
        names = [name for name in names if name not in gradients or _is_zero_at(gradients[name], times_zeros[name])]
        if not names:
            break
    return names


def _is_zero_at(gradient: Tensor, mask: Tensor) -> bool:
    """Whether a gradient is zero, or its slices are that a mask selects along the last axis of this length."""
    axes = [axis for axis, size in enumerate(gradient.shape) if size == len(mask)]
    return not bool((gradient.movedim(axes[-1], 0)[mask.to(gradient.device)] if axes else gradient).any())
