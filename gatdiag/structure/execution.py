"""Order in which the layers of a model are first used in a forward pass."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from gatdiag.errors import ModelError
from gatdiag.structure.replica import Replica


def first_uses(
    replica: Replica, layers: Mapping[str, Sequence[str]], originals: Mapping[str, Tensor] | None = None
) -> list[str]:
    """Runs the replica once, without gradients, and names the layers used, in the order of their first use.

    A layer is used when an operation first reads one of its parameters, wherever that happens: the weights of the
    output projection of `nn.MultiheadAttention` are used although that module is never called, and a parameter of the
    model itself counts when it is used, not when the model starts. A layer whose parameters no operation reads (it
    has none) is used when its module is called. The forward pass of a replica must not read the parameters of the
    model that it was made of.

    Raises:
        ModelError: The forward pass fails, or reads the original's parameters.
    """
    reads: dict[str, int] = {}
    calls: dict[str, int] = {}

    def note(uses: dict[str, int], layer: str) -> None:
        uses.setdefault(layer, len(reads) + len(calls))

    owners = {id(replica.parameters[name]): layer for layer, names in layers.items() for name in names}
    called = _calling(replica.model, layers, lambda layer: note(calls, layer))
    foreign = {id(tensor): name for name, tensor in (originals or {}).items()}
    with called, _Reading(owners, foreign, lambda layer: note(reads, layer)):
        replica.run_no_grad()
    uses = calls | reads
    return sorted(uses, key=uses.__getitem__)


class _Reading(TorchDispatchMode):
    """Tells of every operation that reads one of the tensors given by id."""

    def __init__(self, owners: Mapping[int, str], foreign: Mapping[int, str], note: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners = owners
        self.foreign = foreign
        self.note = note

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and guarding against it imports torch._dynamo, which takes seconds

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for value in tensors_among(args, kwargs):
            if id(value) in self.foreign:
                raise ModelError(
                    f"The forward pass of a copy of the model read '{self.foreign[id(value)]}' of the model itself: a "
                    "function in it (a lambda, a wrapped or replaced forward) holds on to the model. Make it a method, "
                    "which finds its weights through self."
                )
            if id(value) in self.owners:
                self.note(self.owners[id(value)])
        return func(*args, **(kwargs or {}))


def tensors_among(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> list[Tensor]:
    """The tensors among the arguments of an operation, those in its lists too; faster than a walk of any tree."""
    found: list[Tensor] = []
    for value in (*args, *(kwargs or {}).values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_among(value, None)
    return found


@contextmanager
def _calling(model: nn.Module, layers: Iterable[str], note: Callable[[str], None]) -> Iterator[None]:
    """Tells of every call of the modules at these paths."""
    modules = dict(model.named_modules())
    paths = {id(modules[path]): path for path in layers}

    def hook(module: nn.Module, args: Any) -> None:
        if id(module) in paths:
            note(paths[id(module)])

    handle = register_module_forward_pre_hook(hook)  # scripted modules take no hooks of their own
    try:
        yield
    finally:
        handle.remove()
