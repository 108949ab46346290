"""Names of parameters: as wrappers leave them in a file, and as the model has them."""

import re
from collections.abc import Iterable

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}  # torch.compile, FSDP, checkpointing
_NUMBER = re.compile(r"([0-9]+)")


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
    while parts and (first := parts[0][0]) in {"module", *modules} and all(_leads(first, split) for split in parts):
        parts = [split[1:] for split in parts]
        taken.append(f"{first}.")
    names = [".".join(split) for split in parts]
    if len(set(names)) < len(keys):
        return {key: key for key in keys}, ()
    return dict(zip(names, keys, strict=True)), tuple(taken)


def _leads(first: str, split: list[str]) -> bool:
    return len(split) > 1 and split[0] == first


def by_number(name: str) -> list[tuple[int, str]]:
    """What names are sorted by so that their numbers count.

    Example:
        >>> sorted(["convs.10", "convs.2"], key=by_number)
        ['convs.2', 'convs.10']
    """
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(_NUMBER.split(name))]
