"""Weight normalization W <- c W / ||W||: the norm of each weight matrix is a number that is chosen."""

from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gatdiag.errors import InputError, ModelError
from gatdiag.remedies.applied import Applied, module_of, parametrized, picklable, positive, refuse_scripted, remove_all
from gatdiag.remedies.rebalance import refuse_foreign
from gatdiag.structure import discover, unwrapped

Kind: TypeAlias = Literal["frobenius", "spectral"]


class FrobeniusNormalized(nn.Module):
    """The parametrization W -> c W / ||W||_F; a matrix of zeros stays one.

    Example:
        >>> FrobeniusNormalized(10.0)(torch.tensor([[3.0, 4.0]]))
        tensor([[6., 8.]])
    """

    def __init__(self, c: float) -> None:
        super().__init__()
        self.c = c

    def forward(self, weight: Tensor) -> Tensor:
        """The weight that the layer computes with."""
        size: Tensor = torch.linalg.vector_norm(weight)
        return weight * (self.c / (size + (size == 0)))

    def extra_repr(self) -> str:
        """The norm."""
        return f"c={self.c:g}"


class _Scaled(nn.Module):
    def __init__(self, c: float) -> None:
        super().__init__()
        self.c = c

    def forward(self, weight: Tensor) -> Tensor:
        return self.c * weight


def weight_normalize_(
    model: nn.Module,
    c: float = 1.0,
    *,
    kind: Kind = "frobenius",
    optimizer: Optimizer | None = None,
) -> Applied:
    """Keep the norm of every weight matrix of a model at c, in place: gradients cannot expand without limit.

    A layer stretches what passes through it by at most ||A||_2 ||W||_2, on the way back as well, and ||W||_2 is at most
    ||W||_F. In a residual network, where each layer has 1 + that, a small c keeps gradients from expanding over
    hundreds of layers; a c that is too small leaves each layer little to express.

    Without `optimizer` it is a parametrization of torch: the layer computes with c W / ||W||, and what is trained is
    the W behind it, the same parameter as before under the name ``parametrizations.weight.original``. With `optimizer`
    it is a projection: weights are set to c W / ||W||_F now and after each of its steps, and names stay.

    Args:
        model: Any module. Its weight matrices are those whose role is to map features of nodes
            (`gatdiag.structure.discover`), and no attention vectors, biases or normalizations.
        c: The norm. The paper trains 512 layers of a residual GCN with c = 4.
        kind: ``frobenius``, or ``spectral``: c W / ||W||_2, by torch's own parametrization, which follows ||W||_2 by
            power iteration in each training pass.
        optimizer: Project after each step of this one.

    Returns:
        The weights, and the way back. Undoing the parametrization gives the trained W back, as it was if it was not
        trained; undoing the projection gives back the weights of before.

    Raises:
        InputError: An argument does not fit.
        ModelError: The model has no weight matrix, or one of them is rewritten already (weight or spectral
            normalization, pruning) or is that of a scripted layer. Nothing was changed.

    Source:
        Park & Kim, "Taming Gradient Oversmoothing and Expansion in Graph Neural Networks", arXiv 2410.04824. Whether
        they project or parametrize is not known.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> applied = weight_normalize_(model, 4.0)
        >>> round(model[0].weight.norm().item(), 4), [change.where for change in applied.changes]
        (4.0, ['0.weight', '2.weight'])
    """
    c = positive(c, "c is the norm of each weight")
    if kind not in get_args(Kind):
        raise InputError(f"Expected kind 'frobenius' or 'spectral', got {kind!r}")
    if optimizer is not None and kind == "spectral":
        raise InputError("optimizer= projects onto a Frobenius norm; leave it out for kind='spectral'")
    user = unwrapped(module_of(model))
    if optimizer is not None:
        refuse_foreign(user, optimizer)
    weights = _weights(user)
    applied = Applied("weight_normalize")
    with applied.changing():
        if optimizer is not None:
            _project_(applied, user, weights, c, optimizer)
        else:
            for name in weights:
                _parametrize_(applied, user, name, c, kind)
        return applied


def _weights(model: nn.Module) -> list[str]:
    """Names of the matrices that map features."""
    names = []
    for layer in discover(model):
        for info in layer.parameters:
            if info.role != "feature weight" or len(info.shape) < 2:
                continue
            if _is_rewritten(model, info.name):
                raise ModelError(
                    f"{info.name} is rewritten already, by a normalization or by pruning: remove that first"
                )
            names.append(info.name)
    if not names:
        raise ModelError(f"Expected a model with weight matrices, got {type(model).__name__} without any")
    return names


def _is_rewritten(model: nn.Module, name: str) -> bool:
    """Does the layer compute with something else, which it makes of this parameter?"""
    path, _, attribute = name.rpartition(".")
    made, _, mark = attribute.rpartition("_")  # as weight_orig, weight_g, weight_v
    hooked = mark in ("orig", "g", "v") and isinstance(getattr(model.get_submodule(path), made, None), Tensor)
    return hooked or ".parametrizations." in f".{name}"


def _parametrize_(applied: Applied, model: nn.Module, name: str, c: float, kind: Kind) -> None:
    weight = dict(model.named_parameters())[name]
    norm = "||W||_F" if kind == "frobenius" else "||W||_2"
    for path, module in list(model.named_modules()):  # a tied weight is in several
        for attribute in [own for own, tensor in module.named_parameters(recurse=False) if tensor is weight]:
            refuse_scripted(path, module)
            saving: list[RemovableHandle] = []
            where = f"{path}.{attribute}".removeprefix(".")
            undo = partial(_restore_, module, attribute, list(module._parameters), saving)
            applied.record(where, f"{norm} = {c:g}, by a parametrization", undo)
            if kind == "spectral":
                parametrizations.spectral_norm(module, attribute)
            normalized = FrobeniusNormalized(c) if kind == "frobenius" else _Scaled(c)
            parametrize.register_parametrization(module, attribute, normalized)
            picklable(module)
            saving.append(module.register_state_dict_post_hook(_leave_computed_out))


def _restore_(module: nn.Module, attribute: str, order: list[str], saving: list[RemovableHandle]) -> None:
    remove_all(saving)
    if parametrize.is_parametrized(module, attribute):
        module.__class__ = parametrized(type(module), *type(module).__bases__)  # copies of the model have the other
        parametrize.remove_parametrizations(module, attribute, leave_parametrized=False)
    own = module._parameters  # torch puts the weight last, and optimizers know parameters by their numbers
    own.update([(name, own.pop(name)) for name in order if name in own])


def _leave_computed_out(module: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    """PyG's linear layers save the weight that is computed as well, which cannot be loaded."""
    for name in module.parametrizations:
        state.pop(f"{prefix}{name}", None)


def _project_(applied: Applied, model: nn.Module, names: list[str], c: float, optimizer: Optimizer) -> None:
    parameters = dict(model.named_parameters())
    tensors = [parameters[name] for name in names]
    others = [hook for hook in optimizer._optimizer_step_post_hooks.values() if isinstance(hook, _Projection)]
    for name, tensor in zip(names, tensors, strict=True):
        if any(tensor is other for hook in others for other in hook.tensors):
            raise ModelError(f"{name} is projected after each step already: undo that first")
        applied.remember(name, tensor, f"||W||_F = {c:g} now and after each step")
    project = _Projection(tensors, FrobeniusNormalized(c))
    project()
    handles: list[RemovableHandle] = []
    applied.record(type(optimizer).__name__, "projects the weights after each step", partial(remove_all, handles))
    handles.append(optimizer.register_step_post_hook(project))


class _Projection:
    def __init__(self, tensors: list[nn.Parameter], normalized: FrobeniusNormalized) -> None:
        self.tensors, self._normalized = tensors, normalized

    @torch.no_grad()
    def __call__(self, *_: Any) -> None:
        for tensor in self.tensors:
            tensor.copy_(self._normalized(tensor))
