"""The state dict of a model in what was saved, under the keys that people use; its names; a model that takes it."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gatdiag.errors import InputError, ModelError
from gatdiag.names import join_names, quote

# In order of preference: the weights being trained come before their averages.
_KEYS = (
    *("state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "model_dict", "weights"),
    *("params", "state", "app"),
)
_AVERAGES = ("ema_state_dict", "state_dict_ema", "model_ema", "ema_model", "ema", "averaged_model", "swa_state_dict")
_NOT_THE_MODEL = ("optim", "sched", "scaler", "callback", "loop", "rng", "hyper", "hparams", "args", "config", "extra")
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}  # torch.compile, FSDP, checkpointing
_TYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}
_DEPTH = 4  # of dictionaries within each other
_ODD = "sparse, quantized, complex, of float8 or without data"
_LISTED = 4  # names in a note
_WAY_OUT = (
    "Give the model that was saved, with the same arguments; widths may follow from the graph it was trained on, which "
    "--data names."
)


class NoModelError(InputError):
    """A file is whole, but holds no model that is read: an optimizer's state alone, say, or objects of Python's."""


@dataclass(frozen=True)
class Weights:
    """Where the weights of a model are in what was saved.

    Attributes:
        tensors: Name -> tensor.
        within: Keys that lead to the dictionary that holds them.
        keys: Name -> key in it.
        notes: How they were found.
    """

    tensors: dict[str, Tensor]
    within: tuple[str, ...]
    keys: Mapping[str, str]
    notes: tuple[str, ...]


def find_weights(data: Any) -> Weights:
    """Finds the one state dict that a tool for the model is about.

    A dictionary with tensors of its own is a state dict. Otherwise it is looked for under the usual keys, the weights
    being trained before averages of them; then under any key, if it is the only one that leads to tensors and does not
    belong to the optimizer or other parts of the training loop.

    Raises:
        NoModelError: There is none.
        InputError: There are several, and nothing says which is the model.
    """
    if not isinstance(data, MutableMapping):
        kind = "a single tensor" if isinstance(data, Tensor) else f"an object of type {type(data).__name__}"
        raise NoModelError(f"expected a state dict, or a dictionary that holds one, got {kind}")
    within = _path(data, _DEPTH, set())
    if within is None:
        keys = _some(data) or "nothing at all"
        holders = [data, *(value for value in data.values() if isinstance(value, Mapping))]
        odd = [key for holder in holders for key in _odd(holder)]
        reason = f", of which {_some(odd)} cannot be used, being {_ODD}" if odd else ""
        raise NoModelError(
            f"there is no state dict in it: expected tensors by name, or the usual keys, got {keys}{reason}"
        )
    holder = data
    for key in within:
        holder = holder[key]
    lightning = any(isinstance(key, str) and key.startswith("pytorch-lightning") for key in data)
    usable = [key for key, value in holder.items() if _is_weight(key, value)]
    names, taken = clean_names(usable, modules=("model", "net") if lightning else ())
    notes = [*_notes(data, within, holder)]
    if taken:
        notes.append(f"Prefixes taken off the names: {', '.join(taken)}")
    tensors = {name: holder[key] for name, key in names.items()}
    return Weights(tensors, tuple(map(str, within)), names, tuple(notes))


def _path(data: Any, depth: int, seen: set[int]) -> tuple[Any, ...] | None:
    """Keys that lead to a state dict; no dictionary is looked at twice, for a file can make them contain each other."""
    if not isinstance(data, MutableMapping) or depth == 0 or id(data) in seen:
        return None
    seen.add(id(data))
    if "param_groups" in data:  # an optimizer's state
        return None
    # A few tensors beside a state dict (class weights, say) do not make the whole one.
    for key in (*_KEYS, *_AVERAGES):
        if (rest := _path(data.get(key), depth - 1, seen)) is not None:
            return (key, *rest)
    if any(_is_weight(key, value) for key, value in data.items()):
        return ()
    return _below_any(data, depth, seen)


def _below_any(data: Mapping[Any, Any], depth: int, seen: set[int]) -> tuple[Any, ...] | None:
    found = {
        key: rest
        for key, value in data.items()
        if not any(part in str(key).lower() for part in _NOT_THE_MODEL)
        and (rest := _path(value, depth - 1, seen)) is not None
    }
    if len(found) > 1:
        raise InputError(f"it holds several state dicts ({_some(found)}): save the one that is meant by itself")
    return next(((key, *rest) for key, rest in found.items()), None)


def _is_weight(key: Any, value: Any) -> bool:
    return isinstance(key, str) and is_plain(value) and key != "n_averaged"


def is_plain(value: Any) -> bool:
    """True for a tensor as models train them: dense, with data, of real numbers of a usual type."""
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.dtype in _TYPES
        and not value.is_meta
        and not value.is_nested
    )


def _notes(data: Mapping[Any, Any], within: tuple[Any, ...], holder: Mapping[Any, Any]) -> Iterator[str]:
    """Which of several state dicts was read, and what of it is left out."""
    usual = (*_KEYS, *_AVERAGES) if within else ()
    others = [key for key in usual if key != within[0] and _path(data.get(key), _DEPTH - 1, set()) is not None]
    is_average = bool(within) and within[0] in _AVERAGES
    if others:
        what = "the average of the weights" if is_average else "the weights"
        yield f"Read {what} under {quote(within[0])}; not those under {', '.join(map(quote, others))}"
    elif is_average:
        yield f"Only the average of the weights over training is in the file, under {quote(within[0])}"
    if "n_averaged" in holder:
        yield "These weights are an average over training (they come with n_averaged)"
    if odd := _odd(holder):
        yield f"{len(odd)} tensors are left out, being {_ODD}: {_some(odd)}"
    if other := [key for key, value in holder.items() if not isinstance(value, Tensor)]:
        yield f"{len(other)} entries beside the tensors are left out: {_some(other)}"


def _odd(holder: Mapping[Any, Any]) -> list[Any]:
    return [key for key, value in holder.items() if isinstance(value, Tensor) and not is_plain(value)]


def _some(keys: Iterable[Any]) -> str:
    return join_names(map(quote, keys), _LISTED)


def clean_names(keys: Iterable[str], *, modules: tuple[str, ...] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """The names that the model itself gives to its parameters.

    What `torch.compile`, FSDP and activation checkpointing put into a key is taken out wherever it stands; `module.`
    (DataParallel, DDP, averaged models), and the attributes of `modules`, only where every key begins with it.

    Args:
        keys: Of a state dict.
        modules: Attributes in which a wrapper keeps the model, such as "model" in a LightningModule.

    Returns:
        Name -> key, in order, and the prefixes that were taken off. Keys stay as they are where two of them would
        get the same name.

    Example:
        >>> clean_names(["module._orig_mod.att", "module._orig_mod.bias"])
        ({'att': 'module._orig_mod.att', 'bias': 'module._orig_mod.bias'}, ('_orig_mod.', 'module.'))
    """
    keys = list(keys)
    parts = [key.split(".") for key in keys]
    inside = _WRAPPERS.intersection(part for split in parts for part in split[:-1])
    parts = [[part for part in split[:-1] if part not in inside] + split[-1:] for split in parts]
    taken = [f"{wrapper}." for wrapper in sorted(inside)]
    while parts and (first := parts[0][0]) in {"module", *modules}:
        if not all(len(split) > 1 and split[0] == first for split in parts):
            break
        parts = [split[1:] for split in parts]
        taken.append(f"{first}.")
    names = [".".join(split) for split in parts]
    if len(set(names)) < len(keys):
        return {key: key for key in keys}, ()
    return dict(zip(names, keys, strict=True)), tuple(taken)


# --- into a model -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """How the tensors of a checkpoint and those of a model go together.

    Attributes:
        tensors: The model's name -> tensor of the checkpoint.
        names: The model's name -> the checkpoint's.
        lacking: What the model has and the checkpoint lacks, or has in another shape, in words.
        unexpected: What the checkpoint has and the model lacks.
    """

    tensors: Mapping[str, Tensor]
    names: Mapping[str, str]
    lacking: tuple[str, ...]
    unexpected: tuple[str, ...]

    def differences(self, most: int) -> tuple[str, ...]:
        """Words for what does not fit: up to so many names of each kind."""
        lacking = "missing in the checkpoint, or of another shape, so that the model keeps its own"
        differing = {lacking: self.lacking, "unexpected in the checkpoint, and not used": self.unexpected}
        return tuple(f"{what}: {join_names(which, most)}" for what, which in differing.items() if which)


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
        >>> list(found.tensors), found.lacking
        (['weight'], ("'bias'",))
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
            f"The model knows no tensor of the checkpoint: that holds {join_names(map(quote, tensors), 3)}, and the "
            f"model {join_names(map(quote, own), 3)}. {_WAY_OUT}"
        )
    reshaped = {
        name: f"{quote(name)} {list(tensor.shape)}, the model's {list(own[name].shape)}"
        for name, tensor in found.items()
        if not is_lazy(own[name]) and own[name].shape != tensor.shape
    }
    fitted = Fit(
        {name: tensor for name, tensor in found.items() if name not in reshaped},
        {meant[name]: name for name in tensors if meant[name] in found},
        (*(quote(name) for name in own if name not in found), *reshaped.values()),
        tuple(quote(name) for name in tensors if meant[name] not in own),
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
        model.load_state_dict(dict(tensors), strict=False)
    except RuntimeError as error:
        raise ModelError(f"The model does not take the checkpoint's weights: {error}") from error
