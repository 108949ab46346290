"""Weight normalization W <- c W / ||W||: the norm of each weight matrix is a number that is chosen."""

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.optim import Optimizer

from gatdiag.errors import InputError, ModelError
from gatdiag.remedies.applied import Applied
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
        return weight * (self.c / torch.where(size == 0, 1.0, size))

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
    the W behind it, the same parameter as before under the name ``parametrizations.weight.original``. Models with
    parametrizations are saved by their ``state_dict()``; torch does not pickle them whole. With `optimizer` it is a
    projection: weights are set to c W / ||W||_F now and after each of its steps, and names stay.

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
            normalization, pruning). Nothing was changed.

    Source:
        Park & Kim, "Taming Gradient Oversmoothing and Expansion in Graph Neural Networks", arXiv 2410.04824. Whether
        they project or parametrize is not known.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> applied = weight_normalize_(model, 4.0)
        >>> round(model[0].weight.norm().item(), 4), [change.where for change in applied.changes]
        (4.0, ['0.weight', '2.weight'])
    """
    if not c > 0.0 or not math.isfinite(c):
        raise InputError(f"c is the norm of each weight: a positive number was expected, got {c}")
    if kind not in get_args(Kind):
        raise InputError(f"Expected kind 'frobenius' or 'spectral', got {kind!r}")
    if optimizer is not None and kind == "spectral":
        raise InputError("optimizer= projects onto a Frobenius norm; leave it out for kind='spectral'")
    user = unwrapped(model)
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
            if ".parametrizations." in f".{info.name}" or info.name.endswith(("_orig", "_g", "_v")):
                raise ModelError(
                    f"{info.name} is rewritten already, by a normalization or by pruning: remove that first"
                )
            names.append(info.name)
    if not names:
        raise ModelError(f"Expected a model with weight matrices, got {type(model).__name__} without any")
    return names


def _parametrize_(applied: Applied, model: nn.Module, name: str, c: float, kind: Kind) -> None:
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    if kind == "frobenius":
        parametrize.register_parametrization(module, attribute, FrobeniusNormalized(c))
    else:
        parametrizations.spectral_norm(module, attribute)
        parametrize.register_parametrization(module, attribute, _Scaled(c))
    norm = "||W||_F" if kind == "frobenius" else "||W||_2"
    saving = module.register_state_dict_post_hook(_leave_computed_out)

    def undo() -> None:
        saving.remove()
        parametrize.remove_parametrizations(module, attribute, leave_parametrized=False)

    applied.record(name, f"{norm} = {c:g}, by a parametrization", undo)


def _leave_computed_out(module: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    """PyG's linear layers save the weight that is computed as well, which cannot be loaded."""
    for name in module.parametrizations:
        state.pop(f"{prefix}{name}", None)


def _project_(applied: Applied, model: nn.Module, names: list[str], c: float, optimizer: Optimizer) -> None:
    parameters = dict(model.named_parameters())
    tensors = [parameters[name] for name in names]
    for name, tensor in zip(names, tensors, strict=True):
        applied.remember(name, tensor, f"||W||_F = {c:g} now and after each step")
    project = _projection(tensors, FrobeniusNormalized(c))
    project()
    handle = optimizer.register_step_post_hook(project)
    applied.record(type(optimizer).__name__, "projects the weights after each step", handle.remove)


def _projection(tensors: list[nn.Parameter], normalized: FrobeniusNormalized) -> Callable[..., None]:
    @torch.no_grad()
    def project(*_: Any) -> None:
        for tensor in tensors:
            tensor.copy_(normalized(tensor))

    return project
