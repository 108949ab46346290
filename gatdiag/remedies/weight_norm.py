"""Weight normalization W <- c W / ||W||_F: weight matrices with a fixed Frobenius norm c."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gatdiag.errors import ModelError
from gatdiag.remedies.applied import Applied, add_mixin, check_not_generated, check_positive, remove_mixin, unwrap_model
from gatdiag.roles import FEATURE
from gatdiag.structure import discover
from gatdiag.structure.from_names import FROBENIUS_NORM


def weight_normalize_(model: nn.Module, c: float = 1.0) -> Applied:
    """Fix the Frobenius norm of every weight matrix of a model at c, in place, which bounds the growth of gradients.

    A layer multiplies the norm of a signal, and of a gradient, by at most ||A||_2 ||W||_2 <= ||A||_2 ||W||_F; a layer
    with a skip connection by at most 1 plus that. A small c keeps gradients from exploding over hundreds of layers; if
    c is too small, the layers have little effect.

    The layer computes with c W / ||W||_F, which its ``weight`` attribute returns. W itself is trained and saved: the
    same parameter as before, under the same name. c is saved in the buffer ``weight_frobenius_norm``, which marks the
    state dict as that of a normalized model. A matrix of zeros stays zero.

    Args:
        model: Any module. Its feature weights (`gatdiag.structure.discover`) are normalized, not its attention
            vectors, biases or normalization layers.
        c: The norm. The paper trains 512 layers of a residual GCN with c = 4.

    Returns:
        The changed weights. `undo` keeps W as trained.

    Raises:
        InputError: An argument is invalid.
        ModelError: The model has no weight matrix, or one is already reparametrized (weight normalization, spectral
            normalization, pruning) or belongs to a scripted or traced layer. Nothing was changed.

    Source:
        Park & Kim, "Taming Gradient Oversmoothing and Expansion in Graph Neural Networks", arXiv 2410.04824.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> applied = weight_normalize_(model, 4.0)
        >>> round(model[0].weight.norm().item(), 4), [change.where for change in applied.changes]
        (4.0, ['0.weight', '2.weight'])
    """
    c = check_positive("c", c)
    user = unwrap_model(model)
    weights = _find_weights(user)
    applied = Applied("weight_normalize")
    with applied.undo_on_error():
        for path, module in user.named_modules():  # tied weights are in several modules
            for name, parameter in list(module.named_parameters(path, recurse=False)):
                if any(parameter is weight for weight in weights):
                    check_not_generated(path, module)
                    _normalize_(applied, name, module, c)
        return applied


def is_reparametrized(model: nn.Module, name: str) -> bool:
    """True if the layer computes its actual weight from this parameter."""
    path, _, attribute = name.rpartition(".")
    layer = model.get_submodule(path)
    computed, _, suffix = attribute.rpartition("_")  # weight_orig, weight_g, weight_v
    has_hook = suffix in ("orig", "g", "v") and isinstance(getattr(layer, computed, None), Tensor)
    return has_hook or ".parametrizations." in f".{name}" or hasattr(layer, attribute + FROBENIUS_NORM)


def _find_weights(model: nn.Module) -> list[nn.Parameter]:
    infos = [info for layer in discover(model) for info in layer.parameters]
    names = [info.name for info in infos if info.role == FEATURE and len(info.shape) > 1]
    for name in names:
        if is_reparametrized(model, name):
            raise ModelError(f"{name} is already reparametrized, by normalization or pruning: remove that first")
    if not names:
        raise ModelError(f"Expected a model with weight matrices, but {type(model).__name__} has none")
    return [model.get_parameter(name) for name in names]


def _normalize_(applied: Applied, name: str, module: nn.Module, c: float) -> None:
    attribute = name.rpartition(".")[2]
    applied.add_change(name, f"||W||_F = {c:g}", partial(_restore_, module, attribute))
    weight = module._parameters[attribute]
    module.register_buffer(attribute + FROBENIUS_NORM, torch.as_tensor(c).to(weight))
    add_mixin(module, _WeightNormMixin)


def _restore_(module: nn.Module, attribute: str) -> None:
    module._buffers.pop(attribute + FROBENIUS_NORM, None)
    if not any(name + FROBENIUS_NORM in module._buffers for name in module._parameters):
        remove_mixin(module, _WeightNormMixin)


class _WeightNormMixin:
    """Mixin of a layer whose weights are normalized when they are read."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)  # type: ignore[misc]
        c = vars(self)["_buffers"].get(name + FROBENIUS_NORM)
        return found if c is None else normalize_frobenius(found, c)

    def _save_to_state_dict(self: Any, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[misc]
        for name, weight in self._parameters.items():  # PyG's Linear saves self.weight, and no buffers
            if (norm := name + FROBENIUS_NORM) in self._buffers:
                destination[f"{prefix}{name}"] = weight if keep_vars else weight.detach()
                destination[f"{prefix}{norm}"] = self._buffers[norm]

    def _load_from_state_dict(self: Any, state_dict: dict[str, Any], prefix: str, *options: Any) -> None:
        for name, c in self._buffers.items():
            if name.endswith(FROBENIUS_NORM):  # a state dict without c keeps the model's
                state_dict.setdefault(f"{prefix}{name}", c)
        super()._load_from_state_dict(state_dict, prefix, *options)  # type: ignore[misc]


def normalize_frobenius(weight: Tensor, c: float | Tensor) -> Tensor:
    """c W / ||W||_F, or zeros if W is zero.

    Example:
        >>> normalize_frobenius(torch.tensor([[3.0, 4.0]]), 10.0)
        tensor([[6., 8.]])
    """
    norm: Tensor = torch.linalg.vector_norm(weight)
    return weight * (c / (norm + (norm == 0)))
