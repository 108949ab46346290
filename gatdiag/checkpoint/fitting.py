"""The tensors of a checkpoint -> the weights of a model that was built for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gatdiag.errors import InputError, ModelError
from gatdiag.names import listed, quoted

Shape = tuple[int, ...]

_WAY_OUT: Final = (
    "Give the model that was saved, with the same arguments; widths may follow from the graph it was trained on, which "
    "--data names."
)


@dataclass(frozen=True)
class Fit:
    """How the tensors of a checkpoint and those of a model go together.

    Attributes:
        tensors: The model's name -> tensor of the checkpoint.
        names: The model's name -> the checkpoint's.
        missing: What the model has and the checkpoint lacks.
        unexpected: What the checkpoint has and the model lacks.
        reshaped: Name -> shape in the model and in the checkpoint, where these differ.
    """

    tensors: Mapping[str, Tensor]
    names: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reshaped: Mapping[str, tuple[Shape, Shape]]

    def differences(self, most: int) -> tuple[str, ...]:
        """Words for what does not fit: up to so many names of each kind."""
        shapes = [
            f"{quoted(name)} {list(held)}, the model's {list(own)}" for name, (own, held) in self.reshaped.items()
        ]
        differing = (
            ("missing in the checkpoint, so that the model keeps its own", listed(map(quoted, self.missing), most)),
            ("unexpected in the checkpoint, and not used", listed(map(quoted, self.unexpected), most)),
            ("of another shape in the checkpoint, and not used", listed(shapes, most)),
        )
        return tuple(f"{what}: {which}" for what, which in differing if which)


def fit(model: nn.Module, tensors: Mapping[str, Tensor], keys: Mapping[str, str]) -> Fit:
    """Match tensors with a model's by name; the first part of all names may differ, as "model." of a wrapper does.

    Args:
        model: The model.
        tensors: Name -> tensor, as in `Checkpoint.tensors`.
        keys: Name -> key in the file.

    Raises:
        InputError: Less than half of what the model holds is there in the same shape.

    Example:
        >>> import torch
        >>> found = fit(nn.Linear(2, 1), {"net.weight": torch.ones(1, 2)}, {"net.weight": "net.weight"})
        >>> list(found.tensors), found.missing
        (['weight'], ('bias',))
    """
    own = model.state_dict()
    heads = dict.fromkeys(f"{name.partition('.')[0]}." for name in (*own, *tensors))
    readings = [{name: name for name in tensors}, dict(keys)]
    for head in heads:
        readings += [{name: head + name for name in tensors}, {name: name.removeprefix(head) for name in tensors}]
    meant = max(readings, key=lambda reading: sum(name in own for name in reading.values()))
    found = {meant[name]: tensor for name, tensor in tensors.items() if meant[name] in own}
    if not found:
        raise InputError(
            f"The model knows no tensor of the checkpoint: that holds {listed(map(quoted, tensors), 3)}, and the model "
            f"{listed(map(quoted, own), 3)}. {_WAY_OUT}"
        )
    shapes = {name: (tuple(own[name].shape), tuple(tensor.shape)) for name, tensor in found.items() if _has(own[name])}
    reshaped = {name: pair for name, pair in shapes.items() if pair[0] != pair[1]}
    fitted = Fit(
        {name: tensor for name, tensor in found.items() if name not in reshaped},
        {meant[name]: name for name in tensors if meant[name] in found},
        tuple(name for name in own if name not in found),
        tuple(name for name in tensors if meant[name] not in own),
        reshaped,
    )
    if 2 * len(fitted.tensors) < len(own):
        raise InputError(
            f"The checkpoint is of another model: of the model's {len(own)} tensors it holds {len(fitted.tensors)} in "
            f"the same shape ({'; '.join(fitted.differences(3))}). {_WAY_OUT}"
        )
    return fitted


def load_weights_(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into a model, in place; what it has besides stays as it is.

    Args:
        model: The model.
        tensors: As in `Fit.tensors`, of any number type.

    Raises:
        ModelError: The model refuses them.
    """
    try:
        model.load_state_dict({name: plain(tensor) for name, tensor in tensors.items()}, strict=False)
    except RuntimeError as error:
        raise ModelError(f"The model does not take the checkpoint's weights: {error}") from error


def plain(tensor: Tensor) -> Tensor:
    """The numbers that a quantized tensor stands for; any other tensor itself."""
    return tensor.dequantize() if tensor.is_quantized else tensor


def _has(tensor: Tensor) -> bool:
    """True where it has a shape that could differ."""
    return isinstance(tensor, Tensor) and not is_lazy(tensor)
