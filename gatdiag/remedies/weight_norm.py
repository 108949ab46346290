"""Weight normalization W <- c W / ||W||_F: the norm of each weight matrix is a number that is chosen."""

from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from gatdiag.errors import ModelError
from gatdiag.remedies.applied import Applied, module_of, positive, put_on, refuse_scripted, take_off
from gatdiag.roles import FEATURE
from gatdiag.structure import discover
from gatdiag.structure.from_names import FROBENIUS_NORM


def weight_normalize_(model: nn.Module, c: float = 1.0) -> Applied:
    """Keep the norm of every weight matrix of a model at c, in place: gradients cannot expand without limit.

    A layer stretches what passes through it by at most ||A||_2 ||W||_2, on the way back as well, and ||W||_2 is at most
    ||W||_F. In a residual network, where each layer has 1 + that, a small c keeps gradients from expanding over
    hundreds of layers; a c that is too small leaves each layer little to express.

    The layer computes with c W / ||W||_F, which is what its ``weight`` gives; what is trained and saved is the W behind
    it, the same parameter as before under the same name. c is a buffer beside it (``weight_frobenius_norm``), so that
    the weights are not taken for those of a model without. A matrix of zeros stays one.

    Args:
        model: Any module. Its weight matrices are those whose role is to map features of nodes
            (`gatdiag.structure.discover`), and no attention vectors, biases or normalizations.
        c: The norm. The paper trains 512 layers of a residual GCN with c = 4.

    Returns:
        The weights, and the way back: undoing it leaves W as training has made it.

    Raises:
        InputError: An argument does not fit.
        ModelError: The model has no weight matrix, or one of them is rewritten already (weight or spectral
            normalization, pruning) or is that of a scripted layer. Nothing was changed.

    Source:
        Park & Kim, "Taming Gradient Oversmoothing and Expansion in Graph Neural Networks", arXiv 2410.04824.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> applied = weight_normalize_(model, 4.0)
        >>> round(model[0].weight.norm().item(), 4), [change.where for change in applied.changes]
        (4.0, ['0.weight', '2.weight'])
    """
    c = positive(c, "c is the norm of each weight")
    user = module_of(model)
    weights = _weights(user)
    applied = Applied("weight_normalize")
    with applied.changing():
        for path, module in user.named_modules():  # a tied weight is in several
            for name, parameter in list(module.named_parameters(path, recurse=False)):
                if any(parameter is weight for weight in weights):
                    refuse_scripted(path, module)
                    _normalize_(applied, name, module, c)
        return applied


def is_rewritten(model: nn.Module, name: str) -> bool:
    """True where a layer computes with something else, which it makes of this parameter."""
    path, _, attribute = name.rpartition(".")
    layer: Any = reduce(getattr, filter(None, path.split(".")), model)  # get_submodule is not of scripted models
    made, _, mark = attribute.rpartition("_")  # as weight_orig, weight_g, weight_v
    hooked = mark in ("orig", "g", "v") and isinstance(getattr(layer, made, None), Tensor)
    return hooked or ".parametrizations." in f".{name}" or hasattr(layer, attribute + FROBENIUS_NORM)


def _weights(model: nn.Module) -> list[nn.Parameter]:
    """The matrices that map features."""
    infos = [info for layer in discover(model) for info in layer.parameters]
    names = [info.name for info in infos if info.role == FEATURE and len(info.shape) > 1]
    for name in names:
        if is_rewritten(model, name):
            raise ModelError(f"{name} is rewritten already, by a normalization or by pruning: remove that first")
    if not names:
        raise ModelError(f"Expected a model with weight matrices, got {type(model).__name__} without any")
    return [model.get_parameter(name) for name in names]


def _normalize_(applied: Applied, name: str, module: nn.Module, c: float) -> None:
    attribute = name.rpartition(".")[2]
    applied.record(name, f"||W||_F = {c:g}", partial(_restore_, module, attribute))
    weight = module._parameters[attribute]
    module.register_buffer(attribute + FROBENIUS_NORM, torch.as_tensor(c).to(weight))
    put_on(module, _Normalized)


def _restore_(module: nn.Module, attribute: str) -> None:
    module._buffers.pop(attribute + FROBENIUS_NORM, None)
    if not any(name + FROBENIUS_NORM in module._buffers for name in module._parameters):
        take_off(module, _Normalized)


class _Normalized:
    """A layer that computes with other weights than those that are trained."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)  # type: ignore[misc]
        c = vars(self)["_buffers"].get(name + FROBENIUS_NORM)
        return found if c is None else frobenius_normalized(found, c)

    def _save_to_state_dict(self: Any, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[misc]
        for name, weight in self._parameters.items():  # PyG's linear layers save what they compute with, no buffers
            if (norm := name + FROBENIUS_NORM) in self._buffers:
                destination[f"{prefix}{name}"] = weight if keep_vars else weight.detach()
                destination[f"{prefix}{norm}"] = self._buffers[norm]

    def _load_from_state_dict(self: Any, state_dict: dict[str, Any], prefix: str, *options: Any) -> None:
        for name, c in self._buffers.items():
            if name.endswith(FROBENIUS_NORM):  # weights of a model without are taken, c stays
                state_dict.setdefault(f"{prefix}{name}", c)
        super()._load_from_state_dict(state_dict, prefix, *options)  # type: ignore[misc]


def frobenius_normalized(weight: Tensor, c: float | Tensor) -> Tensor:
    """c W / ||W||_F; zeros where W is zero.

    Example:
        >>> frobenius_normalized(torch.tensor([[3.0, 4.0]]), 10.0)
        tensor([[6., 8.]])
    """
    size: Tensor = torch.linalg.vector_norm(weight)
    return weight * (c / (size + (size == 0)))
