"""Find the state dict of a model in a saved object, clean its names, and load it into a model."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gatdiag.errors import InputError, ModelError
from gatdiag.names import escape_surrogates, join_names, quote

# In order of preference: weights before averages of them.
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
_MAX_DEPTH = 4  # of nested dictionaries
_MAX_NAMES = 4  # in a note
_HINT = (
    "Give the model that was saved, built with the same arguments; if its widths depend on the graph, name that graph "
    "with --data."
)


class NoModelError(InputError):
    """An intact file without a model that can be read, such as the state of an optimizer or pickled objects."""


@dataclass(frozen=True)
class Weights:
    """The weights of a model in a saved object.

    Attributes:
        tensors: Name -> tensor.
        within: Keys that lead to the state dict.
        keys: Name -> key in the state dict.
        notes: How they were found.
    """

    tensors: dict[str, Tensor]
    within: tuple[str, ...]
    keys: Mapping[str, str]
    notes: tuple[str, ...]


def find_weights(data: Any) -> Weights:
    """Find the state dict of the model.

    Looks under the usual keys first, for weights before averages of them; then at the dictionary's own tensors; then
    under any other key, if only one leads to tensors and it is not part of the training loop, such as the optimizer.

    Raises:
        NoModelError: There is none.
        InputError: There are several under unusual keys.
    """
    if not isinstance(data, MutableMapping):
        kind = "a single tensor" if isinstance(data, Tensor) else f"an object of type {type(data).__name__}"
        raise NoModelError(f"expected a state dict, or a dictionary with one, got {kind}")
    within = _find_path(data, _MAX_DEPTH, set())
    if within is None:
        raise NoModelError(
            f"there is no state dict in it: expected dense tensors by name, or one of the usual keys, got "
            f"{_list_keys(data) or 'no keys'}"
        )
    state_dict = data
    for key in within:
        state_dict = state_dict[key]
    is_lightning = any(isinstance(key, str) and key.startswith("pytorch-lightning") for key in data)
    usable = [key for key, value in state_dict.items() if _is_weight(key, value)]
    names, prefixes = clean_names(usable, modules=("model", "net") if is_lightning else ())
    notes = [*_describe_choice(data, within, state_dict)]
    if prefixes:
        notes.append(f"Prefixes removed from the names: {', '.join(prefixes)}")
    tensors = {name: state_dict[key] for name, key in names.items()}
    return Weights(tensors, tuple(map(str, within)), names, tuple(notes))


def _find_path(data: Any, depth: int, seen: set[int]) -> tuple[Any, ...] | None:
    """Keys that lead to a state dict. Looks at each dictionary once, as those in a file can contain each other."""
    if not isinstance(data, MutableMapping) or depth == 0 or id(data) in seen:
        return None
    seen.add(id(data))
    if "param_groups" in data:  # an optimizer's state
        return None
    # First the usual keys: there may be other tensors next to a state dict, such as class weights.
    for key in (*_KEYS, *_AVERAGES):
        if (rest := _find_path(data.get(key), depth - 1, seen)) is not None:
            return (key, *rest)
    if any(_is_weight(key, value) for key, value in data.items()):
        return ()
    return _find_path_under_any_key(data, depth, seen)


def _find_path_under_any_key(data: Mapping[Any, Any], depth: int, seen: set[int]) -> tuple[Any, ...] | None:
    found = {
        key: rest
        for key, value in data.items()
        if not any(part in str(key).lower() for part in _NOT_THE_MODEL)
        and (rest := _find_path(value, depth - 1, seen)) is not None
    }
    if len(found) > 1:
        raise InputError(f"it has several state dicts ({_list_keys(found)}): save the model's by itself")
    return next(((key, *rest) for key, rest in found.items()), None)


def _is_weight(key: Any, value: Any) -> bool:
    return isinstance(key, str) and is_plain(value) and key != "n_averaged"


def is_plain(value: Any) -> bool:
    """True for a dense tensor with data and a usual, real dtype."""
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.dtype in _TYPES
        and not value.is_meta
        and not value.is_nested
    )


def _describe_choice(data: Mapping[Any, Any], within: tuple[Any, ...], state_dict: Mapping[Any, Any]) -> Iterator[str]:
    """Notes on which of several state dicts was read, and what was left out."""
    usual = (*_KEYS, *_AVERAGES) if within else ()
    others = [key for key in usual if key != within[0] and _find_path(data.get(key), _MAX_DEPTH - 1, set()) is not None]
    is_average = bool(within) and within[0] in _AVERAGES
    if others:
        what = "the averaged weights" if is_average else "the weights"
        yield f"Read {what} under {quote(within[0])}, not those under {', '.join(map(quote, others))}"
    elif is_average:
        yield f"The file has only averaged weights, under {quote(within[0])}"
    if "n_averaged" in state_dict:
        yield "These weights are averages over training (n_averaged is among them)"
    if unsupported := [key for key, value in state_dict.items() if isinstance(value, Tensor) and not is_plain(value)]:
        what = "sparse, quantized, complex, float8 or without data"
        yield f"Left out {len(unsupported)} tensors ({what}): {_list_keys(unsupported)}"
    if other := [key for key, value in state_dict.items() if not isinstance(value, Tensor)]:
        yield f"Left out {len(other)} entries that are not tensors: {_list_keys(other)}"


def _list_keys(keys: Iterable[Any]) -> str:
    return join_names(map(quote, keys), _MAX_NAMES)


def clean_names(keys: Iterable[str], *, modules: tuple[str, ...] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """Remove what wrappers add to parameter names, and escape what is no valid Unicode.

    The names of `torch.compile`, FSDP and activation checkpointing are removed anywhere in a key; `module.`
    (DataParallel, DDP, averaged models) and the attributes in `modules` only if every key begins with them.

    Args:
        keys: Keys of a state dict.
        modules: Attributes in which a wrapper keeps the model, such as "model" in a LightningModule.

    Returns:
        Name -> key, in order, and the removed prefixes. None is removed if two keys would get the same name.

    Example:
        >>> clean_names(["module._orig_mod.att", "module._orig_mod.bias"])
        ({'att': 'module._orig_mod.att', 'bias': 'module._orig_mod.bias'}, ('_orig_mod.', 'module.'))
    """
    keys = list(keys)
    parts = [key.split(".") for key in keys]
    wrappers = _WRAPPERS.intersection(part for split in parts for part in split[:-1])
    parts = [[part for part in split[:-1] if part not in wrappers] + split[-1:] for split in parts]
    prefixes = [f"{wrapper}." for wrapper in sorted(wrappers)]
    while parts and (first := parts[0][0]) in {"module", *modules}:
        if not all(len(split) > 1 and split[0] == first for split in parts):
            break
        parts = [split[1:] for split in parts]
        prefixes.append(f"{first}.")
    names = [escape_surrogates(".".join(split)) for split in parts]
    if len(set(names)) < len(keys):
        return {escape_surrogates(key): key for key in keys}, ()
    return dict(zip(names, keys, strict=True)), tuple(prefixes)


# --- load into a model ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorMatch:
    """The tensors of a checkpoint, matched with those of a model.

    Attributes:
        tensors: Name in the model -> tensor of the checkpoint.
        names: Name in the model -> name in the checkpoint.
        missing: Descriptions of tensors that the checkpoint does not have, or in another shape.
        unexpected: Names of tensors that the model does not have.
    """

    tensors: Mapping[str, Tensor]
    names: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    def describe_differences(self, limit: int) -> tuple[str, ...]:
        """Describe missing and unexpected tensors, naming up to `limit` of each."""
        missing = "missing in the checkpoint or of another shape (the model keeps its own)"
        differences = {missing: self.missing, "unexpected in the checkpoint (not used)": self.unexpected}
        return tuple(f"{what}: {join_names(names, limit)}" for what, names in differences.items() if names)


def match_tensors(model: nn.Module, tensors: Mapping[str, Tensor], keys: Mapping[str, str]) -> TensorMatch:
    """Match the tensors of a checkpoint with those of a model by name, up to a prefix of all names such as "model.".

    Raises:
        InputError: Less than half of the model's tensors are in the checkpoint with the same shape.

    Example:
        >>> import torch
        >>> match = match_tensors(nn.Linear(2, 1), {"net.weight": torch.ones(1, 2)}, {"net.weight": "net.weight"})
        >>> list(match.tensors), match.missing
        (['weight'], ("'bias'",))
    """
    own = model.state_dict()
    prefixes = dict.fromkeys(f"{name.partition('.')[0]}." for name in (*own, *tensors))
    candidates = [{name: name for name in tensors}, dict(keys)]
    for prefix in prefixes:
        candidates.append({name: prefix + name for name in tensors})
        candidates.append({name: name.removeprefix(prefix) for name in tensors})
    renamed = max(candidates, key=lambda candidate: sum(name in own for name in candidate.values()))
    found = {renamed[name]: tensor for name, tensor in tensors.items() if renamed[name] in own}
    if not found:
        raise InputError(
            f"The model and the checkpoint have no tensor of the same name: the checkpoint has "
            f"{join_names(map(quote, tensors), 3)}, the model {join_names(map(quote, own), 3)}. {_HINT}"
        )
    reshaped = {
        name: f"{quote(name)} {list(tensor.shape)}, the model's {list(own[name].shape)}"
        for name, tensor in found.items()
        if not is_lazy(own[name]) and own[name].shape != tensor.shape
    }
    match = TensorMatch(
        {name: tensor for name, tensor in found.items() if name not in reshaped},
        {renamed[name]: name for name in tensors if renamed[name] in found},
        (*(quote(name) for name in own if name not in found), *reshaped.values()),
        tuple(quote(name) for name in tensors if renamed[name] not in own),
    )
    if 2 * len(match.tensors) < len(own):
        raise InputError(
            f"The checkpoint is of another model: it has {len(match.tensors)} of the model's {len(own)} tensors with "
            f"the same shape ({'; '.join(match.describe_differences(3))}). {_HINT}"
        )
    return match


def load_weights_(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors of a `TensorMatch` into a model, in place; its other tensors keep their values."""
    try:
        model.load_state_dict(dict(tensors), strict=False)
    except RuntimeError as error:
        raise ModelError(f"The checkpoint cannot be loaded into the model: {error}") from error
